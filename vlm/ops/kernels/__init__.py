"""Kernels of Triton and of CUDA C++; imported only where tensors are on CUDA."""
