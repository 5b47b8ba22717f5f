"""Logits -> the next tokens of sequences: a file an operation."""
