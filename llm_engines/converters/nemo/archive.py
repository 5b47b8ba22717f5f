"""What NVIDIA NeMo saves: a .nemo archive (a tar, plain or gzip), or a folder with what one holds.

model_config.yaml  model_weights.ckpt (or mp_rank_00/model_weights.ckpt, …)  <hash>_tokenizer.model
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from vlm.artifacts.archives import bounded_members, extract, open_archive
from vlm.artifacts.files import read_small
from vlm.errors import CheckpointError, VlmError

CONFIG = "model_config.yaml"
DISTRIBUTED = "model_weights"  # the folder of a distributed checkpoint
EXPORT = "export it to a Hugging Face folder with NeMo's scripts/checkpoint_converters and give that"
MOST_YAML = 2**18  # bytes; published ones have some 20 KB


@contextlib.contextmanager
def opened(source: Path, out: Path, alone: str | None = None) -> Iterator[Path]:
    """Yields the folder itself, or one with an archive's content for as long as it is needed, beside `out`: the
    temporary directory of the system may be small. `alone`: the only file that is needed. Errors name the source."""
    if source.is_dir():
        yield source
        return
    with _scratch(out) as scratch:
        try:
            _unpack(source, Path(scratch), alone)
            yield Path(scratch)
        except VlmError as error:
            error.args = (str(error).replace(scratch, str(source)),)
            raise


def config_of(source: Path) -> dict[str, Any]:
    """Reads the configuration of a folder, or of an archive, of which nothing else is unpacked. CheckpointError as of
    `opened` and `read_config`."""
    with opened(source, Path(tempfile.gettempdir()) / "nemo", alone=CONFIG) as folder:
        return read_config(folder / CONFIG)


def _scratch(out: Path) -> tempfile.TemporaryDirectory[str]:
    near = next(parent for parent in out.resolve().parents if parent.is_dir())
    try:
        return tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=near)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror}.") from None


def _unpack(archive: Path, folder: Path, alone: str | None) -> None:
    """Unpacks an archive, or of it the file `alone`. Members that are no plain files and folders below `folder` are
    refused; nothing is executed."""
    try:
        with open_archive(archive) as tar:
            members = _members(tar, archive)
            for member in members if alone is None else _named(alone, members):
                extract(tar, member, archive, folder)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise CheckpointError(
            f"{archive} is no NeMo archive, damaged or truncated ({reason}); fetch it again."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{archive} cannot be unpacked: {error.strerror or error}.") from None


def _named(name: str, members: Iterator[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
    """Yields the first member of a name; none behind it is read."""
    return islice((member for member in members if PurePosixPath(member.name) == PurePosixPath(name)), 1)


def _members(tar: tarfile.TarFile, archive: Path) -> Iterator[tarfile.TarInfo]:
    """Yields the members. Raises CheckpointError for a distributed checkpoint's before they are unpacked."""
    for member in bounded_members(tar, archive):
        if DISTRIBUTED in PurePosixPath(member.name).parts:
            raise CheckpointError(distributed(archive))
        yield member


def distributed(source: Path) -> str:
    """Returns why a distributed checkpoint is refused, and what to do."""
    return (
        f"{source} keeps its weights as a distributed checkpoint of Megatron-core ({DISTRIBUTED}/, zarr or torch_dist),"
        f" which is not read; {EXPORT}."
    )


def read_config(path: Path) -> dict[str, Any]:
    """Reads a configuration; CheckpointError where there is none, or it is damaged."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads no aliases, by which a short file may become a long text; NeMo writes none."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("it has aliases")
            return super().compose_node(parent, index)

    try:
        config = yaml.load(read_small(path, MOST_YAML).decode("utf-8"), Loader)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is no NeMo model: it holds no {path.name}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} is damaged: it is no valid YAML ({str(error).splitlines()[0]}); fetch it again."
        ) from None
    if not isinstance(config, dict):
        raise CheckpointError(
            f"{path} is damaged: it holds a {type(config).__name__}, expected is a mapping; fetch it again."
        )
    return {name: _resolved(value, config) for name, value in config.items()}


def _resolved(value: Any, config: Mapping[str, Any]) -> Any:
    """Resolves `${.encoder_seq_length}`: it is the field of that name beside it."""
    if isinstance(value, str) and value.startswith("${.") and value.endswith("}"):
        return config.get(value[3:-1], value)
    return value
