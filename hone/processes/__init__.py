"""One composition root per process; each is started as ``python -m hone.processes.NAME``."""
