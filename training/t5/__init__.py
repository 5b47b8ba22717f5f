"""Language, model and loop behind `training/mini_t5.py`."""
