"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import hashlib


def content_key(data: bytes) -> bytes:
    """Of an image's pixels or a table's rows."""
    return hashlib.blake2b(data, digest_size=16).digest()
