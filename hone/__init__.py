"""The composition package: the CLI, the supervisors behind ``hone up`` and ``hone demo``, process entry points.

It holds no logic of its own: it reads the configuration, builds the parts of one process and runs them.
"""

__version__ = "0.1.0"
