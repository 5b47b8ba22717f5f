"""Triton kernels, and one of CUDA C++; imported only where tensors are on CUDA."""
