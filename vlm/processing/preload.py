"""Importing this imports what reads images, so that no image waits for it. It leaves no thread behind: it is imported
in the process that the workers are forked from."""

import contextlib
import importlib
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts its threads when it is imported

import torch
from PIL import Image

from vlm.processing.image_processor import ImageProcessor
from vlm.registry.catalogs import families

torch.set_num_threads(1)
with contextlib.suppress(ImportError):  # a PDF then says what it needs
    importlib.import_module("pypdfium2")
_blank = Image.new("RGB", (8, 8), "white")
for _spec in {spec.name: spec for family in families().values() for spec in family.image_processors}.values():
    ImageProcessor.default(_spec, (8, 8))([_blank])
