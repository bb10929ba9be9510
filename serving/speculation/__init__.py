"""Speculative decoding as the fleet sees it: how well it works, whether it is exact, and what to do about it."""
