"""Processes that work on bytes from outside, within a budget."""
