"""The full TensorRT's timing cache: a second build on the same GPU does not time the same kernels again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.artifacts.files import write_atomically
from vlm.backends.tensorrt.library import Library


def timing_file(library: Library, target: str, folder: Path) -> Path | None:
    """Returns the file of timings, one a library, version and GPU; None where the library keeps no timings."""
    return folder / f"{library.name}-{library.version}-{target}.timing" if library.keeps_timings else None


def read_timings(config: Any, file: Path | None) -> None:
    """Gives the kept timings to a builder's configuration; those that do not fit this GPU are left out."""
    if file is None:
        return
    if not config.set_timing_cache(config.create_timing_cache(_content(file)), False):
        config.set_timing_cache(config.create_timing_cache(b""), False)


def write_timings(config: Any, file: Path | None) -> None:
    """Writes a builder's timings, whole: builds beside this one may read the file."""
    if file is None:
        return
    write_atomically(file, config.get_timing_cache().serialize())


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
