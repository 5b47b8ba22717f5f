"""NVIDIA NeMo's archives: https://github.com/NVIDIA/NeMo."""
