"""Families of models that read images, a file each: what users call a model, and all of it but the networks."""
