"""Pixels as each family wants them."""
