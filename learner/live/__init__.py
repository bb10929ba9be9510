"""Learning from consented traffic of clients."""
