"""Keys of contents: every byte counts, whatever the size, in every process."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from vlm.requests import content_key as hashing
from vlm.requests.content_key import PIECE, SIZE, content_key


@pytest.mark.parametrize("size", [1, PIECE, PIECE + 1, 5 * PIECE + 3])
def test_every_byte_counts(size):
    content = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    key, keys = content_key(b"header", content.data), set()
    assert len(key) == SIZE and content_key(b"header", content.tobytes()) == key
    places = sorted({0, size - 1, min(PIECE, size - 1), size // 2})
    for place in places:
        content[place] ^= 1
        keys.add(content_key(b"header", content.data))
        content[place] ^= 1
    assert key not in keys and len(keys) == len(places)
    assert content_key(b"another", content.data) != key


def test_values_of_any_type_are_their_bytes():
    values = np.arange(PIECE, dtype=np.float32)
    assert content_key(values.data) == content_key(values.tobytes())


FORKED = """
import os
from vlm.requests.content_key import PIECE, _helpers, content_key

content = bytes(3 * PIECE)
key, helpers = content_key(content), _helpers()
child = os.fork()
if child == 0:
    os._exit(content_key(content) != key or _helpers() is helpers)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="fork")
def test_a_process_that_was_forked_has_threads_of_its_own():
    # in a process without any others: what is forked from this one may wait for a lock that a library's thread holds
    shown = subprocess.run([sys.executable, "-c", FORKED], stdout=subprocess.PIPE, timeout=300, check=True)
    assert shown.stdout == b"0\n"


def test_who_hashes_waits_for_no_thread_that_is_at_something_else(monkeypatch):
    content, gate = bytes(range(256)) * (3 * PIECE // 256), threading.Event()
    key, helpers = content_key(content), hashing._helpers()
    monkeypatch.setattr(helpers, "size", 2)
    with monkeypatch.context() as patch:
        patch.setattr(helpers, "_pool", hashing.ThreadPoolExecutor(1))
        helpers._pool.submit(gate.wait, 60)
        assert content_key(content) == key and not gate.is_set()
        with helpers.free:  # another content's: nobody is asked
            assert content_key(content) == key
        gate.set()
