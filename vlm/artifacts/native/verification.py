"""Whether an engine's files are as they were built: hashed by threads, beside what else is done."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vlm.artifacts.hashes import THREADS, expected_hash, submit_hash
from vlm.errors import EngineError


class Verification:
    """The hashing of files, under way from the beginning to the end of a `with`."""

    def __init__(self, folder: Path, files: Mapping[str, Mapping[str, Any]]):
        """`files`: as vlm.artifacts.native.manifest.Manifest has them."""
        self._folder, self._files = folder, files
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="verify")
        largest_first = sorted(files, key=lambda name: -files[name]["size"])
        self._hashes = {name: submit_hash(folder / name, files[name], self._pool) for name in largest_first}

    def __enter__(self) -> Verification:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def edited(self) -> list[str]:
        """Waits for the hashes, and returns the files that were edited. Raises EngineError for one that cannot be
        read."""
        return [name for name, entry in self._files.items() if self._hash(name) != expected_hash(entry)]

    def _hash(self, name: str) -> str:
        try:
            return self._hashes[name]()
        except OSError as error:
            raise EngineError(f"{self._folder / name} cannot be read: {error.strerror}.") from None
