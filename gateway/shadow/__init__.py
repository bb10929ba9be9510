"""Shadows: live requests mirrored to a candidate that nobody sees, off the client's path."""
