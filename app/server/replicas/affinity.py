"""What a request may have in common with earlier ones: images, and the beginning of a prompt. A replica that has seen
them holds what was computed of them.

A body is not parsed for that: what is wrong with it the replica says, and a mistake here costs time alone.
"""

from __future__ import annotations

import re
from hashlib import blake2b

PREFIX_BYTES = (4096, 1024, 256)  # of a prompt; what is shorter is computed again at little cost
PROMPT = re.compile(rb'"(?:messages|prompt|input|text_input|data)"\s*:\s*')  # OpenAI's fields, and KServe's
IMAGE = b"data:image/"
IMAGE_ENDS = 4096  # bytes at either end of an image, which with its length tell it from others
MAX_IMAGES = 16


def affinity_keys(body: bytes) -> list[bytes]:
    """Returns the marks of a JSON body's images, then of its prompt's beginnings, the longest first."""
    return [*_images(body), *_prefixes(body)]


def _images(body: bytes) -> list[bytes]:
    keys: list[bytes] = []
    start = body.find(IMAGE)
    while start >= 0 and len(keys) < MAX_IMAGES:
        end = body.find(b'"', start)
        end = len(body) if end < 0 else end
        head, tail = body[start : min(end, start + IMAGE_ENDS)], body[max(start, end - IMAGE_ENDS) : end]
        keys.append(_mark(b"image", b"%d" % (end - start), head, tail))
        start = body.find(IMAGE, end)
    return keys


def _prefixes(body: bytes) -> list[bytes]:
    prompt = PROMPT.search(body)
    if prompt is None:
        return []
    start = prompt.end()
    return [_mark(b"prompt", body[start : start + size]) for size in PREFIX_BYTES if len(body) - start >= size]


def _mark(*parts: bytes) -> bytes:
    mark = blake2b(digest_size=16)
    for part in parts:
        mark.update(part)
    return mark.digest()
