"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import hashlib


def content_key(*parts: bytes | memoryview) -> bytes:
    """Returns a key of an image's pixels or of a table's rows."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(part)
    return hasher.digest()
