"""Algorithms of quantization, a file each."""
