"""How tensors lie that operations share with their kernels."""
