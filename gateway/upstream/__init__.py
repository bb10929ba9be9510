"""The HTTP clients that requests reach engines by."""
