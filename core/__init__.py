"""Hone's nouns, errors, configuration schema and pure statistics.

No I/O, no torch, no web framework: every other package imports this one and this one imports none of ours.
"""
