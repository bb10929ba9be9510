"""The public OpenAI-compatible API, the capture of every Turn, and the admin API."""
