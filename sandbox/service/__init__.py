"""The tool service: sandbox sessions over HTTP, for tools that run between two calls of a model."""
