"""Triton kernels; imported only where tensors are on CUDA."""
