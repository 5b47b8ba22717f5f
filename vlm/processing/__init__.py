"""What stands between files and tensors: images, documents, tokens, text."""
