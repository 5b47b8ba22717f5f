"""Finds the files below a folder of this machine, and tells which folders it could not look into."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path


class FolderSearch:
    """Walks through folders; each is entered once, however many links lead to it."""

    def __init__(self) -> None:
        self.failed: list[tuple[Path, str]] = []  # folders that cannot be read, and why
        self._entered: set[str] = set()

    def files(self, root: Path) -> Iterator[tuple[Path, Path]]:
        """Yields files and the folder of each below `root`; sorted, hidden ones left out.

        Links to folders are followed after all else, but those to a folder that holds the link: what lies around
        `root` was not asked for.
        """
        self._entered.clear()
        waiting = deque([root])
        while waiting:
            for where, links, names in self._walk(waiting.popleft()):
                waiting.extend(where / name for name in links)
                below = where.relative_to(root)
                yield from ((where / name, below) for name in names)

    def _walk(self, start: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
        """Yields folders that were not entered before: links to folders in each, and its files."""
        for where, folders, names in os.walk(start, onerror=self._note):
            real = os.path.realpath(where)
            if real in self._entered:
                folders.clear()
                continue
            self._entered.add(real)
            folders[:] = _visible(folders)
            links = [name for name in folders if os.path.islink(os.path.join(where, name))]
            yield Path(where), [name for name in links if not _holds(os.path.join(where, name), real)], _visible(names)

    def _note(self, error: OSError) -> None:
        self.failed.append((Path(error.filename), error.strerror or str(error)))


def _visible(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("."))


def _holds(link: str, folder: str) -> bool:
    """Does a link lead to `folder`, or to one that it lies in?"""
    target = os.path.realpath(link)
    return os.path.commonpath([target, folder]) == target
