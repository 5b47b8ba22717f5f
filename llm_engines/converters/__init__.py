"""Checkpoints of other programs, one a file."""
