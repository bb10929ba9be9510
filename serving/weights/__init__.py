"""What stands in folders: the Base, adapters, and the checksums that bind one to the other."""
