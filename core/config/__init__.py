"""The configuration schema, and the one place that reads files and environment (``load.py``)."""
