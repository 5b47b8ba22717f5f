"""Checkpoints of other programs."""
