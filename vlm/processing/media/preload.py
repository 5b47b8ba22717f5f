"""Importing this imports what reads images, so that no image waits for it; image processors are loaded by their
pool's preparations. It leaves no thread behind: it is imported in the process that the workers are forked from."""

import contextlib
import importlib
import os
import warnings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy starts its threads when it is imported

import torch

import vlm.processing.media.reading  # noqa: F401
from vlm.processing.workers.fork_server import run_preparations

torch.set_num_threads(1)
warnings.filterwarnings("ignore", module=r"PIL\.")  # of what is odd in a file: our own checks decide
with contextlib.suppress(ImportError):  # a PDF then says what it needs
    importlib.import_module("pypdfium2")
run_preparations()
