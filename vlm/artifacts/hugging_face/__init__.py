"""Folders and files as Hugging Face's libraries write them."""
