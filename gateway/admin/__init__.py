"""Routes under ``/admin/v1``."""
