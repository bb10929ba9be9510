"""What a Tenant and a key may use: requests, tokens, streams, budgets."""
