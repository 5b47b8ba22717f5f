"""`--model X` -> an engine directory. What is missing is downloaded, converted and built once, into the cache."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlm import __version__
from vlm.artifacts import hub
from vlm.artifacts.cache import cache_errors, cache_root
from vlm.artifacts.engine_dir import EngineDir
from vlm.artifacts.manifest import FORMAT_VERSION
from vlm.artifacts.progress import Progress
from vlm.backends.installed import backend as backend_named
from vlm.backends.installed import checked_backend
from vlm.backends.selection import pick
from vlm.build.kinds import kind_of, vision_of
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import EngineError, LimitError, ModelNotFoundError, listed
from vlm.packaged import MODEL, packaged, user_path
from vlm.parallel.environment import rank_among
from vlm.registry.catalogs import check_files, check_model, families, tokenizer_files

LIMITS = tuple(field.name for field in dataclasses.fields(EngineLimits))
FILE_ENDINGS = tuple(".nemo .pt .pth .ckpt .bin .safetensors .gguf .onnx .tar .gz .tgz .zip".split())
HASHED_WHOLE = 2**20  # bytes; larger files are known by size and time


@dataclass(frozen=True)
class Source:
    """What a model's name stands for, on this disk."""

    name: str  # as the user gave it
    path: Path
    kind: str  # see vlm.build.kinds.kind_of


def resolve(
    model: str | Path,
    *,
    on: str = "cpu",
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_seq_len: int | None = None,
    max_encoder_input_len: int | None = None,
    backend: str | None = None,
    tp_size: int | None = None,
    pp_size: int | None = None,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Returns the engine directory of a packaged name, a Hub id, a Hugging Face folder (or another program's folder or
    file), a checkpoint or an engine directory.

    An engine that is given is used as it is; `None` takes what it has. For the others `None` means BuildConfig's
    defaults and the type that the backend has `on` cpu or cuda, where "auto" is what vlm.backends.selection.pick takes.
    Two processes that ask at once build once; an interrupted build leaves nothing behind.
    Raises ModelNotFoundError, LimitError and EngineError (an engine that was built for less or for something else, or
    for other ranks than mpirun, torchrun or srun has started), and what conversion and build raise.
    """
    auto = backend == "auto"
    limits = {"max_batch_size": max_batch_size, "max_seq_len": max_seq_len}
    overrides = limits | {"max_encoder_input_len": max_encoder_input_len, "dtype": dtype}
    overrides |= {"tp_size": tp_size, "pp_size": pp_size} | ({} if auto else {"backend": backend})
    overrides = {name: value for name, value in overrides.items() if value is not None}
    runner = None if auto else backend_named(backend or BuildConfig.backend)  # refused before a download
    source = locate(model, progress=progress)
    if source.kind == "engine":
        engine = EngineDir.open(source.path, verify=False)
        rank_among(engine.build.num_ranks, source.path)
        _check_engine(engine, overrides)
        return source.path
    runner = runner or backend_named(pick(on, dtype, vision_of(source.path, source.kind)).name)
    build = BuildConfig(**{"dtype": runner.default_dtype(on), **overrides, "backend": runner.name})
    rank_among(build.num_ranks, source.name)  # refused before a build
    build = checked_backend(build).for_this_machine(build)
    return _cached_engine(source, build, cache_dir, progress)


def locate(model: str | Path, *, progress: Progress | None = None) -> Source:
    """Returns what `model` names; a Hub id is downloaded. A packaged name comes before a folder (`./name`) of that
    name.

    Raises ModelNotFoundError that lists what is allowed, UnsupportedModelError for a kind that is known and not served.
    """
    if not isinstance(model, str | os.PathLike):
        raise ModelNotFoundError(f"a model's name is of type {type(model).__name__}; {_allowed()}.")
    name, path = str(model), user_path(model)
    if not name:
        raise ModelNotFoundError(f"the model's name is empty; {_allowed()}.")
    if name in packaged_models():
        path = packaged_models()[name]
    elif not os.path.exists(path) and (repo := hub.repo_id(name)) is not None:
        path = _downloaded(name, repo, progress)
    kind = kind_of(path)
    if kind not in ("engine", "checkpoint") and os.path.exists(path):
        check_model(path)
    if kind is None:
        raise ModelNotFoundError(_unknown(name, path))
    return Source(name, path, kind)


def _downloaded(name: str, repo: str, progress: Progress | None) -> Path:
    """Returns the folder of a Hub's model. Where there is none, says so of a path that may have been meant, too."""
    try:
        return hub.download(repo, check=check_files, extra=tokenizer_files(), progress=progress)
    except ModelNotFoundError as error:
        if (missing := _missing_path(name)) is None:
            raise
        raise ModelNotFoundError(f"model {name!r} does not exist: {missing}, and {error}") from error


def _missing_path(name: str) -> str | None:
    """Says why a name of two parts looks like one of a folder or file that is not there; None: it does not."""
    folder, slash, rest = name.partition("/")
    if slash and os.path.isdir(folder):
        return f"the folder {folder} has no {rest}"
    return "there is no such file" if name.lower().endswith(FILE_ENDINGS) else None


def packaged_models() -> dict[str, Path]:
    """Returns names and folders of the models that come with the package."""
    return packaged(MODEL)


def _unknown(name: str, path: Path) -> str:
    state = "does not exist"
    if os.path.isdir(path):  # of os.path, which raises for no name, however long
        state = "is a folder that holds neither an engine, nor a checkpoint, nor a config.json"
    elif os.path.exists(path):
        state = "is a file that is no model"
    near = f" (is it {listed(names)}?)" if state == "does not exist" and (names := similar_names(name)) else ""
    return f"model {name!r} {state}{near}; {_allowed()}."


def _allowed() -> str:
    names = listed(packaged_models()) or "none"
    return (
        f"give a packaged name ({names}), a Hub id (owner/name), a Hugging Face folder, a FairSeq or .nemo archive,"
        " a checkpoint or an engine directory"
    )


def similar_names(name: str) -> list[str]:
    """Returns names that may have been meant: of nearly the same spelling, or with the owner of the family."""
    words = " ".join(spec.summary for spec in families().values())
    with_owner = [f"{owner}/{name}" for owner, pattern in re.findall(r"([\w-]+)/([\w.-]+\*[\w.-]*)", words)
                  if fnmatch.fnmatchcase(name, pattern)]  # fmt: skip
    by_spelling = {each.lower(): each for each in (*packaged_models(), *hub.CANONICAL)}
    return [by_spelling[near] for near in difflib.get_close_matches(name.lower(), by_spelling, 3, 0.75)] or with_owner


def _check_engine(engine: EngineDir, overrides: dict[str, Any]) -> None:
    """Raises EngineError or LimitError for what an engine does not serve: it serves smaller limits than its own; a
    larger one or another dtype needs a build."""
    path, build, limits = engine.path, engine.build, engine.limits
    if build.max_seq_len is None and "max_seq_len" in overrides:
        raise EngineError(
            f"the engine {path} is an encoder alone: max_encoder_input_len is its limit, leave max_seq_len out."
        )
    short = {n: v for n, v in overrides.items() if n in LIMITS and v > getattr(limits, n)}
    other = {n: v for n, v in overrides.items() if n not in LIMITS and v != getattr(build, n)}
    if not short and not other:
        return
    has = ", ".join(f"{name} {getattr(build, name)}" for name in (*short, *other))
    wants = ", ".join(f"{name} {value}" for name, value in (short | other).items())
    error = LimitError if short else EngineError
    raise error(
        f"the engine {path} was built for {has}, asked is {wants}; rebuild it: {rebuild_command(engine, overrides)}."
    )


def rebuild_command(engine: EngineDir, overrides: Mapping[str, Any]) -> str:
    """Returns the command that builds an engine anew, with these fields of its BuildConfig changed."""
    changed = {name for name, value in overrides.items() if value != getattr(engine.build, name)}
    own: dict[str, Any] = {"target": ()} if "backend" in changed else {}
    if overrides.get("tp_size", engine.build.tp_size) % (engine.build.encoder_tp_size or 1):
        own["encoder_tp_size"] = None
    build = dataclasses.replace(engine.build, **{**own, **overrides})
    return f"vlm build MODEL -o {engine.path} {' '.join(build.options())}"


def _cached_engine(source: Source, build: BuildConfig, cache_dir: str | Path | None, progress: Progress | None) -> Path:
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
    from vlm.artifacts.checkpoint import Checkpoint
    from vlm.build.ahead import check_build
    from vlm.build.builder import build_engine
    from vlm.convert.folder import convert_folder

    if source.kind == "checkpoint":
        build_engine(Checkpoint.open(source.path), out, build, progress=progress)
        return
    check_build(source.path, source.kind, build)
    # beside the engines: the temporary directory of the system may be small
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent) as draft:
        checkpoint = convert_folder(source.path, Path(draft) / "checkpoint", progress=progress)
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
        paths = [path / name for name in hub.needed_files((file.name for file in path.iterdir()), tokenizer_files())]
    else:
        paths = [path, *path.rglob("*")]
    return [file for file in paths if file.is_file()]  # a pipe may block, a device may never end


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
