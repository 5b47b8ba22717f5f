"""What makes equal contents equal: images and tables are known by a hash of their values."""

from __future__ import annotations

import hashlib


def content_key(data: bytes) -> bytes:
    """Returns a key of an image's pixels or of a table's rows."""
    return hashlib.blake2b(data, digest_size=16).digest()
