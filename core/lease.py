"""Lease: who leads under a name, and until when."""

from core.noun import Noun


class Lease(Noun):
    """The right to act alone under ``name``; what is done under an older ``token`` is refused."""

    name: str
    """What it is about, such as ``fleet:smollm2``."""
    owner: str
    """The process that holds it, for people."""
    token: int
    """Grows whenever the lease is acquired, and never falls."""
    until: float
    """Unix seconds."""
