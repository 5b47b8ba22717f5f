"""Models from the Hugging Face Hub: what is needed of a repository, nothing more, resumed where it broke off."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.hugging_face.chat_template import NAMED_DEFAULT
from vlm.artifacts.hugging_face.hf_folder import PROCESSOR_FILES
from vlm.artifacts.hugging_face.model_files import ModelFiles, read_object
from vlm.artifacts.hugging_face.quantization_files import QUANTIZATION_FILES
from vlm.artifacts.progress import Progress
from vlm.errors import ModelNotFoundError, cut, first_line
from vlm.limits import MAX_TOKENIZER_BYTES

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo


REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@[\w./-]+)?")  # owner/name, owner/name@revision
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")
TIMEOUT_SECONDS = 10
MOST_FILES = 10_000  # of a repository that are fetched
SLACK_BYTES = 2**20  # that may come beyond the listed ones
# the first models had no owner; the Hub answers to those names with the owners they have now
OWNERS = {
    "openai-community": "gpt2 gpt2-medium gpt2-large gpt2-xl openai-gpt roberta-base-openai-detector"
                        " roberta-large-openai-detector",
    "google-t5": "t5-small t5-base t5-large t5-3b t5-11b",
    "distilbert": "distilgpt2 distilroberta-base distilbert-base-cased distilbert-base-uncased"
                  " distilbert-base-multilingual-cased distilbert-base-german-cased"
                  " distilbert-base-uncased-finetuned-sst-2-english distilbert-base-cased-distilled-squad"
                  " distilbert-base-uncased-distilled-squad",
    "google-bert": "bert-base-uncased bert-base-cased bert-large-uncased bert-large-cased bert-base-chinese"
                   " bert-base-german-cased bert-base-multilingual-cased bert-base-multilingual-uncased"
                   " bert-large-uncased-whole-word-masking bert-large-cased-whole-word-masking",
    "FacebookAI": "roberta-base roberta-large roberta-large-mnli xlm-roberta-base xlm-roberta-large"
                  " xlm-mlm-en-2048 xlm-mlm-17-1280 xlm-mlm-100-1280 xlm-clm-ende-1024 xlm-clm-enfr-1024",
    "albert": "albert-base-v1 albert-base-v2 albert-large-v1 albert-large-v2 albert-xlarge-v2 albert-xxlarge-v2",
    "xlnet": "xlnet-base-cased xlnet-large-cased",
    "almanach": "camembert-base",
    "Salesforce": "ctrl",
    "transfo-xl": "transfo-xl-wt103",
}  # fmt: skip
CANONICAL = {name: f"{owner}/{name}" for owner, names in OWNERS.items() for name in names.split()}


def is_repo_id(name: str) -> bool:
    """Says whether `name` has the form `owner/name` or `owner/name@revision`."""
    return REPO_ID.fullmatch(name) is not None


def repo_id(name: str) -> str | None:
    """Returns the repository that a name stands for, perhaps with a revision: one without an owner by the owner that
    the Hub gave it; None for what is no name on the Hub."""
    old, at, revision = name.partition("@")
    full = CANONICAL.get(old, old) + at + revision
    return full if is_repo_id(full) else None


def needed_files(names: Iterable[str], extra: tuple[str, ...] = (), named: str | None = None) -> list[str]:
    """Picks of a repository's files the configurations, the processor, and one set of weights: those that its
    config.json names (`named`), else safetensors before pickles. Where there are none beside its config.json, those of
    each folder that has a config.json of its own: a part each. `extra`: patterns of further files that families
    read."""
    names = sorted(names)
    top = [name for name in names if "/" not in name or name == NAMED_DEFAULT or _is_named(name, named)]
    whole = _needed(top, extra, named)
    if "config.json" not in whole or _weights(whole, named):
        return whole
    folders = [name.removesuffix("config.json") for name in names if name.endswith("/config.json")]
    parts = {
        folder: [n.removeprefix(folder) for n in names if n.rpartition("/")[0] + "/" == folder] for folder in folders
    }
    return whole + [
        f"{folder}{name}" for folder, inner in parts.items() if _weights(inner) for name in _needed(inner, extra)
    ]


def _is_named(name: str, named: str | None) -> bool:
    """Says whether a file is the one that a config.json names, or a shard beside the index that it names."""
    if name == named or named is None or not named.endswith(".index.json"):
        return name == named
    return name.rpartition("/")[0] == named.rpartition("/")[0] and fnmatch(name, "*.safetensors")


def _needed(names: list[str], extra: tuple[str, ...], named: str | None = None) -> list[str]:
    beside = ("config.json", *QUANTIZATION_FILES, *PROCESSOR_FILES, NAMED_DEFAULT, *extra)
    return _matching(names, beside) + _weights(names, named)


def _weights(names: Iterable[str], named: str | None = None) -> list[str]:
    names = [*names]
    if named is not None:
        shards = _matching(names, ("*.safetensors",)) if named.endswith(".index.json") else []
        return [named, *shards] if named in names else []
    for usual, any_name in ((SAFETENSORS, "*.safetensors"), (PICKLES, "*.bin")):
        if (found := _matching(names, usual)) and all(name.endswith(".index.json") for name in found):
            return found + _matching(names, (any_name,))  # the shards have names of their own
        if found:
            return found
    return []


def download(
    repo_id: str,
    revision: str | None = None,
    *,
    check: Callable[[ModelFiles], None] | None = None,
    extra: tuple[str, ...] = (),
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Downloads a repository -> its folder in the Hub's own cache (`$HF_HOME`). Without a network an earlier download
    serves.

    `repo_id` may carry the revision: `owner/name@revision`. `endpoint` None: the public Hub, or `$HF_ENDPOINT`.
    `check` is given what is seen of the repository before its weights are fetched; what it raises ends the download.
    `extra`: patterns of files that are needed beside the usual ones.
    Raises ModelNotFoundError: no such repository or revision, no access, no network, no weights in it.
    """
    from huggingface_hub import errors

    repo_id, _, tag = repo_id.partition("@")
    revision = revision or tag or None
    try:
        return _snapshot(repo_id, revision, check=check, extra=extra, endpoint=endpoint, progress=progress)
    except errors.GatedRepoError:
        reason = f"needs its owner's permission: ask for it on the model's page, then log in with `{_LOGIN}`"
    except errors.RevisionNotFoundError:
        reason = f"has no revision {revision!r}; leave it out for the newest"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        reason = f"is not there, or is private (then log in with `{_LOGIN}`); check the spelling"
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]: of httpx, or of httpx2
        return _cached(repo_id, revision, error)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # the client checks names of files and commits, and takes the rest for well-formed
        raise ModelNotFoundError(
            f"the Hub's answer about the model {repo_id} cannot be used ({first_line(error)[:200]}); check the"
            " endpoint (HF_ENDPOINT), or give a folder on disk."
        ) from error
    raise ModelNotFoundError(f"the Hub's model {repo_id} {reason}.")


_LOGIN = "hf auth login"


def _snapshot(
    repo_id: str,
    revision: str | None,
    *,
    check: Callable[[ModelFiles], None] | None,
    extra: tuple[str, ...],
    endpoint: str | None,
    progress: Progress | None,
) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    info = HfApi(endpoint=endpoint).model_info(repo_id, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
    names = [file.rfilename for file in info.siblings or ()]
    top = frozenset(name.partition("/")[0] for name in names)
    if check:
        check(ModelFiles(f"the Hub's model {repo_id}", top, info.config or {}))
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    fetch = functools.partial(snapshot_download, repo_id, revision=revision, endpoint=endpoint)
    named = None
    if _may_name_weights(sizes):
        meter = _meter(f"Downloading {repo_id}", sizes["config.json"], None)
        named = _named_weights(Path(fetch(allow_patterns=["config.json"], tqdm_class=meter)))
    files = needed_files(names, extra, named)
    _check_usable(repo_id, files, named)
    _check_listed(repo_id, files, sizes, named)
    options: dict[str, Any] = {"tqdm_class": _meter(f"Downloading {repo_id}", _size(info, files), progress)}
    # by the revision's name, not its commit: the cache then knows without a network which commit that was
    return Path(fetch(allow_patterns=files, **options))


def _may_name_weights(sizes: Mapping[str, int]) -> bool:
    """Says whether config.json may name the weights: some have a name of their own, and it is no larger than one is."""
    weights = [name for name in sizes if name.endswith((".safetensors", ".safetensors.index.json"))]
    is_small = sizes.get("config.json", math.inf) <= MAX_TOKENIZER_BYTES
    return set(weights) > set(_matching(weights, SAFETENSORS)) and is_small


def _named_weights(folder: Path) -> str | None:
    """Returns the file of the weights that a folder's config.json names; None where it names none."""
    name = read_object(folder / "config.json").get("transformers_weights")
    return None if name is None else str(name)


def _cached(repo_id: str, revision: str | None, error: Exception) -> Path:
    """Returns what an earlier download left, complete, when the Hub cannot be asked."""
    old = repo_id.rpartition("/")[2]
    for name in (repo_id, *([old] if CANONICAL.get(old) == repo_id else [])):  # other programs cache under the old name
        if (folder := _complete(name, revision)) is not None:
            return folder
    raise ModelNotFoundError(
        f"the Hub's model {repo_id} could not be fetched ({first_line(error)}) and is not in the local cache;"
        " check the network and run again (a broken download resumes), or give a folder on disk."
    ) from error


def _complete(repo_id: str, revision: str | None) -> Path | None:
    """Returns the cached folder of a repository; None where it is not there or lacks its weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(repo_id, revision=revision, allow_patterns=["config.json"], local_files_only=True)
        files = (file.relative_to(folder).as_posix() for file in Path(folder).rglob("*") if file.is_file())
        named = _named_weights(Path(folder))
        _check_usable(repo_id, needed_files(files, named=named), named)
    except (LocalEntryNotFoundError, ModelNotFoundError):
        return None
    return Path(folder)


def _check_usable(repo_id: str, files: list[str], named: str | None) -> None:
    if "config.json" not in files:
        raise ModelNotFoundError(f"the Hub's model {repo_id} has no config.json; it is no transformers model.")
    if named is not None and named not in files:
        raise ModelNotFoundError(
            f"the Hub's model {repo_id} has no {cut(named, 100)}, which its config.json names (transformers_weights);"
            " give a folder on disk."
        )
    if named is None and not _weights(_last(files)):
        raise ModelNotFoundError(
            f"the Hub's model {repo_id} has no {SAFETENSORS[0]} or {PICKLES[0]}; other formats are not read."
        )


def _check_listed(repo_id: str, files: list[str], sizes: Mapping[str, int], named: str | None) -> None:
    if len(files) > MOST_FILES:
        raise ModelNotFoundError(
            f"the Hub's model {repo_id} lists {len(files):,} files to fetch, the limit is {MOST_FILES:,}; give"
            " a folder on disk."
        )
    weights = _weights(_last(files)) if named is None else _weights(files, named)
    for file, name in zip(files, _last(files), strict=True):
        if sizes[file] > MAX_TOKENIZER_BYTES and (name if named is None else file) not in weights:
            raise ModelNotFoundError(
                f"the Hub's model {repo_id} has a {file} of {sizes[file]:,} bytes, which is no weights; files beside"
                f" them have up to {MAX_TOKENIZER_BYTES:,}."
            )


def _last(files: Iterable[str]) -> list[str]:
    """Returns the names that files have in their folders."""
    return [file.rpartition("/")[2] for file in files]


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]


def _size(info: ModelInfo, files: list[str]) -> int:
    return sum(file.size or 0 for file in info.siblings or () if file.rfilename in files)


def _meter(description: str, total: int, progress: Progress | None) -> type:
    """Returns a tqdm class that shows nothing and reports bytes to `progress`.

    huggingface_hub makes several bars for one download (files, bytes received, bytes written; which ones differs by
    version): the furthest one in bytes counts.
    """
    from tqdm import tqdm

    furthest = 0

    class Meter(tqdm):
        def __init__(self, *args: Any, **kwargs: Any):
            kwargs.pop("name", None)
            self._bytes = kwargs.get("unit") == "B"
            self._count = kwargs.get("initial") or 0
            super().__init__(*args, **{**kwargs, "disable": True})

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal furthest
            self._count += n or 0
            if self._bytes and total and self._count > 2 * total + SLACK_BYTES:  # twice: begun again after a break
                raise ModelNotFoundError(f"{description}: more than the listed {total:,} bytes came; it was ended.")
            if self._bytes and progress and self._count > furthest:
                furthest = self._count
                progress(description, min(int(furthest), total), total)
            return super().update(n)

    return Meter
