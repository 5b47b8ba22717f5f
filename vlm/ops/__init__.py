"""Leaf operations, a file each: the definition with its plain-torch reference; on CUDA a Triton kernel of the same maths."""
