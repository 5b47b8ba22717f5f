"""Pages, model and loop behind `training/mini_nougat.py`."""
