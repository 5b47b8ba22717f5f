"""Hashes of whole files, and of pieces that threads hash beside each other."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from vlm.artifacts import hashes
from vlm.artifacts.hashes import ContentHash, expected_hash, file_entry, sha256_of, submit_hash

PIECE = 64
SIZES = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 20 * PIECE + 5]  # more pieces than threads


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(hashes, "PIECE", PIECE)
    monkeypatch.setattr(hashes, "THREADS", 3)


def pieces_hash(content: bytes) -> str:
    pieces = [content[begin : begin + PIECE] for begin in range(0, len(content), PIECE)]
    return hashlib.sha256(b"".join(hashlib.sha256(piece).digest() for piece in pieces)).hexdigest()


def hash_of(path, entry) -> str:
    with ThreadPoolExecutor(1) as pool:
        return submit_hash(path, entry, pool)()


@pytest.mark.parametrize("size", SIZES)
def test_an_entry_has_the_hash_of_the_file_and_of_a_large_one_that_of_its_pieces(size, tmp_path):
    content = random.Random(size).randbytes(size)
    (path := tmp_path / "file").write_bytes(content)
    expected = {"sha256": hashlib.sha256(content).hexdigest(), "size": size}
    if size > PIECE:
        expected["pieces_sha256"] = pieces_hash(content)
    entry = file_entry(path)
    assert entry == expected and sha256_of(path) == entry["sha256"]
    assert hash_of(path, entry) == expected_hash(entry)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("part", [1, 7, PIECE, 5 * PIECE + 1])
def test_a_content_that_comes_in_parts_has_the_entry_of_its_file(size, part, tmp_path):
    content = random.Random(size).randbytes(size)
    (path := tmp_path / "file").write_bytes(content)
    with ContentHash() as hashing:
        for begin in range(0, size, part):
            wait(hashing.update(content[begin : begin + part]))
        assert hashing.entry() == file_entry(path)


def test_every_byte_counts_whichever_hash_an_entry_has(tmp_path):
    path, content = tmp_path / "file", bytearray(10 * PIECE + 5)
    path.write_bytes(content)
    entry = file_entry(path)
    older = {name: entry[name] for name in ("sha256", "size")}
    for place in (0, PIECE - 1, PIECE, 7 * PIECE + 3, len(content) - 1):
        edited = bytearray(content)
        edited[place] ^= 1
        path.write_bytes(edited)
        for each in (entry, older):
            assert hash_of(path, each) != expected_hash(each), place
    swapped = bytearray(content)
    swapped[0], swapped[PIECE] = 1, 2
    path.write_bytes(swapped)
    ordered = file_entry(path)
    path.write_bytes(swapped[PIECE : 2 * PIECE] + swapped[:PIECE] + swapped[2 * PIECE :])
    assert hash_of(path, ordered) != expected_hash(ordered)


def test_a_file_that_shrinks_meanwhile_is_another_one_and_one_that_goes_an_oserror(tmp_path):
    (path := tmp_path / "file").write_bytes(bytes(10 * PIECE))
    entry = file_entry(path)
    path.write_bytes(bytes(5 * PIECE))
    assert hash_of(path, entry) != expected_hash(entry)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        hash_of(path, entry)
