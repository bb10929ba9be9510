"""What a policy may call during an Episode."""
