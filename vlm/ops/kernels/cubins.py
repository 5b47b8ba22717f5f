"""Machine code that was compiled before, on disk: a process that starts finds its kernels as the last one left them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

from vlm.artifacts.cache import cache_root
from vlm.artifacts.files import write_atomically

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
        write_atomically(path, hashlib.sha256(code).digest() + code)
    return code
