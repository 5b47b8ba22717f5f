"""Engines that are built once and kept in the cache, by what they are built of and for."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vlm import __version__
from vlm.artifacts.cache import cache_errors, cache_root
from vlm.artifacts.hugging_face import hub
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.native.manifest import FORMAT_VERSION
from vlm.artifacts.progress import Progress
from vlm.backends.installed import backend as backend_named
from vlm.build.locate import Source
from vlm.config import BuildConfig
from vlm.errors import EngineError, VlmError
from vlm.registry.catalogs import tokenizer_files

HASHED_WHOLE = 2**20  # bytes; larger files are known by size and time


def cached_engine(source: Source, build: BuildConfig, cache_dir: str | Path | None, progress: Progress | None) -> Path:
    """Returns the engine of a source, which is built where the cache has none. Processes that ask at once build once;
    an interrupted build leaves nothing behind."""
    root = cache_root(cache_dir)
    name = f"{_slug(source.name)}-{build.dtype}-{_key(source, build)}"
    out = root / "engines" / name
    if _is_whole(out):
        return out
    with cache_errors(root), _locked(root / "locks" / f"{name}.lock", progress):
        if not _is_whole(out):  # another process may have built it meanwhile
            _sweep(out)
            _build(source, out, build, progress)
    return out


def _build(source: Source, out: Path, build: BuildConfig, progress: Progress | None) -> None:
    from vlm.artifacts.native.checkpoint import Checkpoint
    from vlm.build.ahead import build_check, check_build
    from vlm.build.builder import build_engine
    from vlm.convert.folder import convert_folder

    if source.kind == "checkpoint":
        build_engine(Checkpoint.open(source.path), out, build, progress=progress)
        return
    check_build(source.path, source.kind, build)
    # beside the engines: the temporary directory of the system may be small
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent) as draft:
        checkpoint = convert_folder(
            source.path, Path(draft) / "checkpoint", progress=progress, check=build_check(build)
        )
        build_engine(checkpoint, out, build, progress=progress)


def _is_whole(path: Path) -> bool:
    """Says whether a cached engine is there and complete; a damaged one is built again."""
    if not path.is_dir():
        return False
    try:
        EngineDir.open(path, verify=False)
    except EngineError:
        return False
    return True


def _sweep(out: Path) -> None:
    """Removes what a killed build of the same engine left; the lock is held, so nobody writes it."""
    for leftover in (*out.parent.glob(f".{out.name}.*"), out):
        shutil.rmtree(leftover, ignore_errors=True)


def _key(source: Source, build: BuildConfig) -> str:
    """Returns a key of the source's content, the build options, this version of vlm and the engine format."""
    path = source.path.resolve()
    content = [str(path), sorted(_fingerprint(path, file) for file in _files(source))]
    parts = [content, build.to_dict(), backend_named(build.backend).cache_key(), __version__, FORMAT_VERSION]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _files(source: Source) -> list[Path]:
    """Returns what a build reads of the source."""
    path = source.path.resolve()
    if source.kind == "hf":
        names = hub.needed_files((file.name for file in path.iterdir()), tokenizer_files())
        paths = [path / name for name in dict.fromkeys((*names, *_weights(HFFolder(path))))]
    else:
        paths = [path, *path.rglob("*")]
    return [file for file in paths if file.is_file()]  # a pipe may block, a device may never end


def _weights(folder: HFFolder) -> list[str]:
    """Returns the files of a folder's weights, which may have names of their own; none where the build will say what is
    wrong with them."""
    try:
        return [folder.weights, *folder.weight_files]
    except VlmError:
        return []


def _fingerprint(root: Path, file: Path) -> list[str | int]:
    stat = file.stat()
    small = stat.st_size <= HASHED_WHOLE
    mark = hashlib.sha256(file.read_bytes()).hexdigest() if small else stat.st_mtime_ns
    return [file.relative_to(root).as_posix(), stat.st_size, mark]


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name.rstrip("/").rpartition("/")[2]).strip(".-")[:40] or "model"


@contextlib.contextmanager
def _locked(path: Path, progress: Progress | None) -> Iterator[None]:
    """Holds a build's lock: one process at a time; the lock vanishes with its holder."""
    from filelock import FileLock, Timeout

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if progress:
            progress("Waiting for another process that builds the same engine", 0, 0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
