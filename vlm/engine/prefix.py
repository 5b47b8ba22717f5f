"""What a KV block holds, as a key: equal beginnings of prompts have equal keys and share their blocks.

The key of a block is a hash of the block before it and of its own tokens, where an id beyond the vocabulary counts as
the content that stands behind it (an image's, a prompt table's), not as a number. The first
block follows the number of the adapter that all is computed with.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence as Tokens

from vlm.requests.adapters import NO_ADAPTER, adapter_key


def block_keys(
    tokens: Tokens[int],
    block_size: int,
    vocab_size: int,
    content_keys: Tokens[bytes],
    *,
    adapter_id: int = NO_ADAPTER,
) -> list[bytes]:
    """Returns the keys of all whole blocks of `tokens`. content_keys[i]: of what id vocab_size + i stands for"""
    keys, before = [], adapter_key(adapter_id)
    for end in range(block_size, len(tokens) + 1, block_size):
        identity = _identity(tokens[end - block_size : end], vocab_size, content_keys)
        before = hashlib.blake2b(before + identity, digest_size=16).digest()
        keys.append(before)
    return keys


def _identity(tokens: Tokens[int], vocab_size: int, content_keys: Tokens[bytes]) -> bytes:
    if max(tokens) < vocab_size:
        return array("I", tokens).tobytes()
    return b"".join(t.to_bytes(4, "little") if t < vocab_size else content_keys[t - vocab_size] for t in tokens)
