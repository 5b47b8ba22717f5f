"""Compiled graphs over a linear cache: a slot a sequence."""
