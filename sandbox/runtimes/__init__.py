"""Where untrusted code runs: the Runtime port and its implementations."""
