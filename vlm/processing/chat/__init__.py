"""Conversations, and the prompts that templates make of them."""
