"""NVIDIA NeMo's GPTs: a .nemo archive (a tar, plain or gzip), or a folder with what one holds.

model_config.yaml  model_weights.ckpt (or mp_rank_00/model_weights.ckpt, …)  <hash>_tokenizer.model

The network is that of `llm_engines.models.gpt2`.
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from llm_engines.converters.nemo_tokenizer import tokenizer_files
from llm_engines.converters.nemo_weights import EMBEDDING, HEAD, RankFiles
from vlm.artifacts.archives import bounded_members, open_archive
from vlm.artifacts.checkpoint import Checkpoint, Progress, RoleWeights, write_checkpoint
from vlm.artifacts.files import read_small
from vlm.artifacts.weights import TensorSource
from vlm.convert.conversion import apply_rules
from vlm.convert.roles import module_layout
from vlm.errors import CheckpointError, ConfigError, VlmError
from vlm.registry.catalogs import model_spec

CONFIG = "model_config.yaml"
MOST_YAML = 2**20  # bytes
MODEL = "gpt2"  # of the family, too


def convert(source: Path, out: Path, *, progress: Progress | None = None) -> Checkpoint:
    """Converts a .nemo archive or its folder to our checkpoint at `out`, written whole or not at all.

    Raises CheckpointError for what is missing, damaged, unsafe or does not fit, ConfigError that names every field
    which cannot be honoured.
    """
    with opened(source, out) as folder, tempfile.TemporaryDirectory() as scratch:
        config = read_config(folder / CONFIG)
        tokenizer = tokenizer_files(folder, config, Path(scratch))
        return write_checkpoint(
            Path(out),
            family=MODEL,
            roles={"decoder": _role(folder, config | tokenizer.ids, tokenizer.size)},
            generation=tokenizer.ids,
            source=source.resolve().name,
            processor_files=tokenizer.paths,
            progress=progress,
        )


@contextlib.contextmanager
def opened(source: Path, out: Path) -> Iterator[Path]:
    """Yields the folder itself, or one with an archive's content for as long as it is needed, beside `out`: the
    temporary directory of the system may be small. Errors name the source."""
    if source.is_dir():
        yield source
        return
    with _scratch(out) as scratch:
        try:
            _unpack(source, Path(scratch))
            yield Path(scratch)
        except VlmError as error:
            raise type(error)(str(error).replace(scratch, str(source))) from None


def _scratch(out: Path) -> tempfile.TemporaryDirectory[str]:
    near = next(parent for parent in out.resolve().parents if parent.is_dir())
    try:
        return tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=near)
    except OSError as error:
        raise CheckpointError(f"the checkpoint {out} cannot be written: {error.strerror}.") from None


def _unpack(archive: Path, folder: Path) -> None:
    """Members that are no plain files and folders below `folder` are refused; nothing is executed."""
    try:
        with open_archive(archive) as tar:
            tar.extractall(folder, bounded_members(tar, archive), filter="data")
    except tarfile.FilterError as error:
        raise CheckpointError(f"{archive} is not unpacked: its member {error}.") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error).splitlines()[0].rstrip(":")
        raise CheckpointError(
            f"{archive} is no NeMo archive, damaged or truncated ({reason}); fetch it again."
        ) from None
    except OSError as error:
        raise CheckpointError(f"{archive} cannot be unpacked: {error.strerror or error}.") from None


def read_config(path: Path) -> dict[str, Any]:
    """Reads a GPT's configuration; CheckpointError where there is none, ConfigError for that of another network."""
    import yaml

    try:
        config = yaml.safe_load(read_small(path, MOST_YAML).decode("utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} is no NeMo model: it holds no {path.name}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: it is no valid YAML ({str(error).splitlines()[0]}).") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is damaged: it holds a {type(config).__name__}, expected is a mapping.")
    _check_whole(path, config)
    if "GPT" not in (target := str(config.get("target", "GPT"))):
        raise ConfigError(f"{path} is of a {target.rpartition('.')[2]}; of NeMo's models GPTs are supported.")
    return {name: _resolved(value, config) for name, value in config.items()}


def _check_whole(path: Path, config: dict[str, Any]) -> None:
    """Raises ConfigError for what was tuned beside a model and does not hold the model."""
    base = config.get("language_model_path") or config.get("restore_from_path") or "its base model"
    if config.get("virtual_prompt_style") or "PromptLearning" in str(config.get("target")):
        raise ConfigError(
            f"{path} is of tuned prompts alone (NeMo's prompt learning), which are no model; save their rows as a .npy"
            f" file and give it with --prompt-table, --model being {base}."
        )
    peft = config.get("peft")
    scheme = peft.get("peft_scheme") if isinstance(peft, dict) else None
    if scheme not in (None, "none", "None"):
        merge = " merged with it by NeMo's merge_lora_weights/merge.py" if "lora" in str(scheme) else ""
        raise ConfigError(f"{path} is of an adapter alone ({scheme}), which is no model; give {base}{merge}.")


def _resolved(value: Any, config: dict[str, Any]) -> Any:
    """Resolves `${.encoder_seq_length}`: it is the field of that name beside it."""
    if isinstance(value, str) and value.startswith("${.") and value.endswith("}"):
        return config.get(value[3:-1], value)
    return value


def _role(folder: Path, config: dict[str, Any], size: int) -> RoleWeights:
    joined_gate = str(config.get("activation")).startswith("fast")
    tensors, spec = RankFiles(folder, joined_gate, config.get("tensor_model_parallel_size")), model_spec(MODEL)
    network = spec.parse(config | {"model_type": "nemo_gpt", "vocab_size": _vocabulary(tensors, folder, size)})
    network = spec.config_from_weights(network, tensors)
    whole = {name: x[:size] if name in (EMBEDDING, HEAD) else x for name, x in tensors.items()}
    targets = {name: shape for name, (_, shape) in module_layout(spec, network).items()}
    outcome = apply_rules(whole, spec.rules(network), targets)
    if outcome.reasons:
        raise CheckpointError(f"the weights in {folder} do not fit its {CONFIG}: {'; '.join(outcome.reasons)}.")
    return RoleWeights(MODEL, network.to_dict(), TensorSource.from_tensors(outcome.tensors))


def _vocabulary(tensors: Mapping[str, Tensor], folder: Path, size: int) -> int:
    """Returns the number of ids. The embedding is padded (`make_vocab_size_divisible_by`, by the ranks): NeMo never
    draws such an id."""
    if EMBEDDING not in tensors:
        raise CheckpointError(f"the weights in {folder} lack {EMBEDDING}.")
    if (rows := len(tensors[EMBEDDING])) < size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {size} ids, the embedding {rows} rows; they must be of one training."
        )
    return size
