"""The shared encoder-decoder runtime: it speaks token ids and tensors, never text."""
