"""The CLI's command groups, one noun a file."""
