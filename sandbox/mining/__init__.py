"""Tasks from recorded Episodes of clients."""
