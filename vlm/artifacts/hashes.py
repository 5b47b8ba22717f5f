"""SHA-256 of files: of the whole, and of its pieces, which threads hash beside each other."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

PIECE = 2**24  # bytes; what manifests keep under this name is of pieces of this size: another one has another name
PIECES = "pieces_sha256"
THREADS = min(8, os.cpu_count() or 1)  # reading and hashing release the GIL


class ContentHash:
    """The hashes of a content that comes in parts, by threads of its own while the caller writes it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="hash")
        self._whole, self._pieces, self._size = hashlib.sha256(), _PieceDigests(), 0

    def __enter__(self) -> ContentHash:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def update(self, part: Any) -> list[Future[None]]:
        """Begins to hash the next part, bytes or an array of them; returns what is to be waited for."""
        self._size += len(part)
        return [self._pool.submit(hasher.update, part) for hasher in (self._whole, self._pieces)]

    def entry(self) -> dict[str, Any]:
        """Returns what manifests keep, as `file_entry` does."""
        return _entry(self._size, self._whole.hexdigest(), self._pieces.hexdigest)


class _PieceDigests:
    """The SHA-256 of each piece of a content that comes in parts."""

    def __init__(self) -> None:
        self._done: list[bytes] = []
        self._piece, self._room = hashlib.sha256(), PIECE

    def update(self, part: Any) -> None:
        rest = memoryview(part)
        while len(rest) >= self._room:
            self._piece.update(rest[: self._room])
            rest = rest[self._room :]
            self._done.append(self._piece.digest())
            self._piece, self._room = hashlib.sha256(), PIECE
        self._piece.update(rest)
        self._room -= len(rest)

    def hexdigest(self) -> str:
        last = [self._piece.digest()] if self._room < PIECE else []
        return _combined(self._done + last)


def file_entry(path: Path) -> dict[str, Any]:
    """Returns what manifests keep of a file: its `size` and `sha256`, and of one that is larger than a piece
    `pieces_sha256`, the SHA-256 of the SHA-256s of its pieces. Raises OSError."""
    with ThreadPoolExecutor(THREADS, thread_name_prefix="hash") as pool:
        size = path.stat().st_size
        return _entry(size, sha256_of(path), _submit_pieces(path, size, pool))


def expected_hash(entry: Mapping[str, Any]) -> str:
    """Returns what `submit_hash` comes to for a file that is as its entry says."""
    return entry.get(PIECES, entry["sha256"])


def submit_hash(path: Path, entry: Mapping[str, Any], pool: ThreadPoolExecutor) -> Callable[[], str]:
    """Begins to hash a file by pieces, or as a whole where its entry has that hash alone. Returns what waits for the
    result, and raises OSError."""
    if PIECES in entry:
        return _submit_pieces(path, entry["size"], pool)
    return pool.submit(sha256_of, path).result


def sha256_of(path: Path) -> str:
    """Returns a file's SHA-256. Raises OSError."""
    hasher = hashlib.sha256()
    for piece in _read_pieces(path):
        hasher.update(piece)
    return hasher.hexdigest()


def _submit_pieces(path: Path, size: int, pool: ThreadPoolExecutor) -> Callable[[], str]:
    """Does so by pieces: each task takes its turn at them."""
    tasks = min(THREADS, -(-size // PIECE))
    digests = [pool.submit(_digests, path, first, tasks) for first in range(tasks)]

    def result() -> str:
        rounds = itertools.zip_longest(*(future.result() for future in digests))
        return _combined(digest for one_each in rounds for digest in one_each if digest is not None)

    return result


def _digests(path: Path, first: int, step: int) -> list[bytes]:
    return [hashlib.sha256(piece).digest() for piece in _read_pieces(path, first, step)]


def _read_pieces(path: Path, first: int = 0, step: int = 1) -> Iterator[memoryview]:
    """Yields every `step`th piece of a file from a number on, each in the memory of the one before it. They are large:
    a thread waits for the GIL after each of them, 5 ms where others import modules."""
    buffer = memoryview(bytearray(PIECE))
    with path.open("rb") as file:
        for number in itertools.count(first, step):
            file.seek(number * PIECE)
            if not (count := file.readinto(buffer)):
                return
            yield buffer[:count]


def _combined(digests: Iterator[bytes] | list[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()


def _entry(size: int, whole: str, pieces: Callable[[], str]) -> dict[str, Any]:
    return {"sha256": whole, "size": size} | ({PIECES: pieces()} if size > PIECE else {})
