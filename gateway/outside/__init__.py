"""Outside models, reached through the LiteLLM library and treated like one more engine."""
