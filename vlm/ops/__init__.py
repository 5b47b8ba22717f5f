"""Leaf operations, a file each: definition and plain-torch reference; on CUDA a Triton kernel of the same maths."""
