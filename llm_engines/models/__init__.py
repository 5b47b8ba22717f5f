"""Model families, one a file."""
