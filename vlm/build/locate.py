"""What a model's name stands for: a packaged model, one of the Hub, which is downloaded, or what lies on the disk."""

from __future__ import annotations

import difflib
import fnmatch
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.artifacts.hugging_face import hub
from vlm.artifacts.progress import Progress
from vlm.build.kinds import family_of, kind_of
from vlm.errors import ModelNotFoundError, VlmError, listed
from vlm.packaged import MODEL, packaged, user_path
from vlm.registry.catalogs import check_files, check_model, families, tokenizer_files

if TYPE_CHECKING:
    from vlm.registry.spec import FamilySpec

FILE_ENDINGS = tuple(".nemo .pt .pth .ckpt .bin .safetensors .gguf .onnx .tar .gz .tgz .zip".split())


@dataclass(frozen=True)
class Source:
    """What a model's name stands for, on this disk."""

    name: str  # as the user gave it
    path: Path
    kind: str  # see vlm.build.kinds.kind_of


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


def family_on_disk(model: str) -> FamilySpec | None:
    """Returns a model's family before anything of it is loaded or fetched; None for one that is not on this disk, whose
    converter alone can tell, or of which something is wrong: that is told when it is loaded."""
    path = packaged_models().get(model, user_path(model))
    try:
        return None if (kind := kind_of(path)) is None else family_of(path, kind)
    except VlmError:
        return None


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
