"""Verifiers: judges of Episodes. ``base.py`` is the port, ``registry.py`` makes one from a VerifierSpec."""
