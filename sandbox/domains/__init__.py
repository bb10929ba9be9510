"""Domains: sources of Tasks. ``base.py`` is the port, ``registry.py`` finds one by name."""
