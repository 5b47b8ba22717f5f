"""Models for Triton Inference Server: a repository is written, and its Python models are run."""
