"""The Anthropic Messages API: every request becomes a chat completion, every answer a message."""
