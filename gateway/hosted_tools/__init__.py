"""Tools that the gateway runs itself while a model answers: code and shell in a sandbox, tools of MCP servers."""
