"""The OpenAI Responses API, on top of chat completions."""
