"""Families of text models, a file each: what users call a model, and all of it but the networks."""
