"""Products of rows and weights, and what is computed beside them: a file an operation."""
