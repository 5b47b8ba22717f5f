"""Checkpoints and EngineDirs, the folders that vlm writes."""
