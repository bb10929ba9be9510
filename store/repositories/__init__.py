"""Repositories: nouns in, nouns out, one class for each noun, all on the connection of one unit of work."""
