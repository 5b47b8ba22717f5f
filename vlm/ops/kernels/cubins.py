"""Machine code that was compiled before, on disk: a process that starts finds its kernels as the last one left them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from vlm.artifacts.cache import cache_root

DIGEST = hashlib.sha256().digest_size  # bytes ahead of the code


def cached(key: str, compile: Callable[[], bytes]) -> bytes:
    """Returns what `compile` made for this key, now or earlier. What is damaged is made again; a disk that takes
    nothing costs the time of compiling alone."""
    path = cache_root() / "kernels" / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        if kept[:DIGEST] == hashlib.sha256(kept[DIGEST:]).digest():
            return kept[DIGEST:]
    code = compile()
    with contextlib.suppress(OSError):
        _write(path, hashlib.sha256(code).digest() + code)
    return code


def _write(path: Path, content: bytes) -> None:
    """Writes a file that no other process sees in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except OSError:
        os.unlink(draft)
        raise
