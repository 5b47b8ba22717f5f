"""Torch modules over a paged cache."""
