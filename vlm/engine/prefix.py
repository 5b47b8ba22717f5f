"""What a KV block holds, as a key: equal beginnings of prompts have equal keys and share their blocks.

The key of a block is a hash of the block before it and of its own tokens, where an id beyond the vocabulary counts as
the content that stands behind it (an image's, a prompt table's), not as a number. The first
block follows the number of the adapter that all is computed with.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence as Items
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from vlm.requests.adapters import NO_ADAPTER, adapter_key
from vlm.requests.prompt_table import NO_CONTENTS, Contents


def block_keys(
    tokens: Items[int],
    block_size: int,
    vocab_size: int,
    contents: Contents = NO_CONTENTS,
    *,
    adapter_id: int = NO_ADAPTER,
    known: Items[bytes] = (),
) -> list[bytes]:
    """Returns the keys of all whole blocks of `tokens`, of which the first may be known. Id vocab_size + i stands for
    row i of `contents`."""
    first, end = len(known) * block_size, len(tokens) // block_size * block_size
    ids, named = array("I", tokens[first:end]), dict[int, bytes]()
    if contents:
        rows = np.array(ids, np.int64)
        named = _named_rows(rows, block_size, vocab_size, contents)
        ids = array("I", rows.astype(np.uint32).tobytes())
    identities, size = ids.tobytes(), ids.itemsize * block_size
    keys, before = [*known], known[-1] if known else adapter_key(adapter_id)
    for block, begin in enumerate(range(0, len(identities), size)):
        identity = identities[begin : begin + size]
        if block in named:
            identity += named[block]
        before = blake2b(before + identity, digest_size=16).digest()
        keys.append(before)
    return keys


def _named_rows(ids: npt.NDArray[np.int64], block_size: int, vocab_size: int, contents: Contents) -> dict[int, bytes]:
    """Replaces ids that stand for rows by those of their places in what they are rows of; returns what that is by
    block: wherever such rows begin in it, the place there and the content's key."""
    at, begins = (ids >= vocab_size).nonzero()[0], np.array(contents.begins)
    parts = begins.searchsorted(ids[at] - vocab_size, side="right") - 1
    ids[at] -= begins[parts]
    is_first = at % block_size == 0
    is_first[:1] = True
    is_first[1:] |= (at[1:] != at[:-1] + 1) | (parts[1:] != parts[:-1])
    named: defaultdict[int, bytes] = defaultdict(bytes)
    for place, part in zip(at[is_first].tolist(), parts[is_first].tolist(), strict=True):
        named[place // block_size] += (place % block_size).to_bytes(4, "little") + contents.keys[part]
    return named
