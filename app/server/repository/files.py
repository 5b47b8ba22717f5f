"""The files of a model repository, on this disk or in a store; what is remote is fetched once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vlm.artifacts.cache import cache_errors, cache_root
from vlm.artifacts.files import atomic_dir
from vlm.artifacts.progress import Progress
from vlm.errors import InputError
from vlm_app.core.storage import file_state, files_below, is_remote, location, object_state, objects_below, reaching

if TYPE_CHECKING:
    from vlm_app.core.storage import RemotePath


@dataclass(frozen=True)
class Tree:
    """What lies below a folder, as it was listed."""

    root: Path  # or what acts as one
    stamps: dict[PurePosixPath, str]  # of each file below it; a stamp changes when the file is written

    @classmethod
    def from_url(cls, url: str) -> Tree:
        """Lists what lies at a URL. Raises InputError where it cannot be reached or holds nothing."""
        root = location(url)
        if not is_remote(root) and not root.is_dir():
            what = "is no folder" if root.exists() else "does not exist"
            raise InputError(f"the model repository {url} {what}; give a folder of models: NAME/VERSION/….")
        with reaching(root):
            stamps = dict(_remote(root) if is_remote(root) else _local(root))
        if not stamps:
            raise InputError(f"the model repository {url} holds no files; give a folder of models: NAME/VERSION/….")
        return cls(root, stamps)

    def folders(self, at: PurePosixPath) -> list[str]:
        """Returns the names of those in a folder."""
        below = (file.relative_to(at).parts for file in self.stamps if file.is_relative_to(at))
        return sorted({parts[0] for parts in below if len(parts) > 1})

    def text(self, at: PurePosixPath) -> str:
        path = self.root.joinpath(*at.parts)
        with reaching(path):
            return path.read_bytes().decode("utf-8", "replace")

    def holds(self, at: PurePosixPath) -> bool:
        """Says whether a folder is there, and not empty."""
        return any(file.is_relative_to(at) for file in self.stamps)

    def stamp(self, at: PurePosixPath) -> str:
        """Changes with the files of a folder."""
        files = sorted((str(file), stamp) for file, stamp in self.stamps.items() if file.is_relative_to(at))
        return hashlib.sha256(json.dumps([str(self.root), files]).encode()).hexdigest()[:16]

    def local(self, at: PurePosixPath, progress: Progress | None = None) -> Path:
        """Returns a folder on this disk: itself, or its copy in the cache, which is made when there is none."""
        if not is_remote(self.root):
            return self.root.joinpath(*at.parts)
        from filelock import FileLock

        out = cache_root() / "repositories" / f"{'-'.join(at.parts)}-{self.stamp(at)}"
        with cache_errors(cache_root()):
            out.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(out.parent / f"{out.name}.lock"):
            if not out.is_dir():
                with atomic_dir(out, lambda folder: False, "copy", InputError) as draft:
                    self._fetch(at, draft, progress)
        return out

    def _fetch(self, at: PurePosixPath, draft: Path, progress: Progress | None) -> None:
        names = [file.relative_to(at) for file in self.stamps if file.is_relative_to(at)]
        for index, name in enumerate(names):
            if progress:
                progress(f"Fetching {at.parts[0]}", index, len(names))
            source, target = self.root.joinpath(*at.parts, *name.parts), draft / name
            target.parent.mkdir(parents=True, exist_ok=True)
            assert is_remote(source)
            with reaching(source):
                source.fs.get_file(source.path, str(target))


def _local(root: Path) -> Iterator[tuple[PurePosixPath, str]]:
    for file, _ in files_below(root):
        yield PurePosixPath(file.relative_to(root).as_posix()), file_state(file).stamp


def _remote(root: RemotePath) -> Iterator[tuple[PurePosixPath, str]]:
    root.fs.invalidate_cache()
    for name, info in objects_below(root):
        yield name, object_state(info).stamp
