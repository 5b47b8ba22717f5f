"""Tokens and text, both ways."""
