"""Attention over the caches and over packed rows, and what places keys and values there: a file an operation."""
