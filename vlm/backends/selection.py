"""What can run an engine on this machine, and which of it `auto` takes."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple


class Picked(NamedTuple):
    """A backend and why it was taken, as one sentence says it."""

    name: str
    reason: str


def pick(device: str, dtype: str | None = None) -> Picked:
    """What `--backend auto` means on a device ("cpu", "cuda"): on the CPU ONNX Runtime where it is installed and
    computes in `dtype`, else torch."""
    if device != "cpu":
        return Picked("torch", f"it is what runs on {device}")
    installed = _version("onnxruntime")
    if installed is None:
        return Picked("torch", "onnxruntime is not installed: pip install 'vlm-runtime[onnx]'")
    if dtype == "bfloat16":
        return Picked("torch", "onnxruntime does not compute in bfloat16 on the CPU")
    return Picked("onnxruntime", f"onnxruntime {installed} is installed, and the device is the CPU")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
