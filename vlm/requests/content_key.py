"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import hashlib

SIZE = 16  # bytes of a key


def content_key(*parts: bytes | memoryview) -> bytes:
    """Returns a key of an image's pixels or of a table's rows."""
    hasher = hashlib.sha256()  # processors have instructions for it: twice as fast as BLAKE2
    for part in parts:
        hasher.update(part)
    return hasher.digest()[:SIZE]
