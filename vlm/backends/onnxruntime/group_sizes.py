"""Which groups of weights ONNX Runtime's products of 4 bits take."""

from __future__ import annotations

from vlm.backends.base import GROUPED
from vlm.config import BuildConfig
from vlm.errors import listed

GROUP_SIZES = (16, 32, 64, 128, 256)


def group_errors(build: BuildConfig) -> list[str]:
    """Returns, in words, what is wrong with the groups of a build."""
    if build.quantization not in GROUPED or build.group_size in (None, *GROUP_SIZES):
        return []
    return [f"group_size is {build.group_size}, onnxruntime takes {listed(GROUP_SIZES)}"]
