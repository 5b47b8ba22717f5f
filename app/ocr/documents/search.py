"""Finds the files below a folder of this machine, and tells which folders it could not look into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class FolderSearch:
    """Walks through folders; each is entered once, however many links lead to it."""

    def __init__(self) -> None:
        self.unreadable: list[tuple[Path, str]] = []  # folders that cannot be read, and why

    def files(self, root: Path) -> Iterator[tuple[Path, Path]]:
        """Yields files and the folder of each below `root`; sorted, hidden ones left out.

        Links to folders are followed after all else, but those to a folder that holds the link: what lies around
        `root` was not asked for.
        """
        real_paths: set[str] = set()
        pending, links = [(root, os.path.realpath(root))], list[Path]()
        while pending or links:
            folder, real = pending.pop() if pending else _followed(links.pop(0))
            if real in real_paths:
                continue
            real_paths.add(real)
            names, folders, link_names = self._listed(folder)
            yield from ((folder / name, folder.relative_to(root)) for name in names)
            # the next is taken from the end
            pending += [(folder / name, os.path.join(real, name)) for name in reversed(folders)]
            links += [folder / name for name in link_names if not _holds(folder / name, real)]

    def _listed(self, folder: Path) -> tuple[list[str], list[str], list[str]]:
        """Returns files, folders and links to folders, by name; none for a folder that cannot be read."""
        files, folders, links = list[str](), list[str](), list[str]()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    is_folder = _is_folder(entry)
                    (files if not is_folder else links if entry.is_symlink() else folders).append(entry.name)
        except OSError as error:
            self.unreadable.append((folder, error.strerror or str(error)))
        return _visible(files), _visible(folders), _visible(links)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _followed(link: Path) -> tuple[Path, str]:
    return link, os.path.realpath(link)


def _visible(names: list[str]) -> list[str]:
    return sorted(name for name in names if not name.startswith("."))


def _holds(link: Path, folder: str) -> bool:
    """Says whether a link leads to `folder`, or to one that it lies in."""
    target = os.path.realpath(link)
    return os.path.commonpath([target, folder]) == target
