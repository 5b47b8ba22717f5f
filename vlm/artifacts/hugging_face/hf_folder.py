"""A Hugging Face model folder: its configuration, its tensors read lazily, its generation defaults, its processor."""

from __future__ import annotations

import functools
import io
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import MEND, open_regular, read_json
from vlm.artifacts.hugging_face.generation_config import generation_defaults, standing_alone
from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.errors import CheckpointError, listed

if TYPE_CHECKING:
    from torch import Tensor

WHAT = "Hugging Face model folder"
REPEATED = 4  # how often a file's bytes may be in its tensors: tied ones are
WEIGHTS = (  # the first that is there counts, as in transformers
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
OTHER_WEIGHTS = {".bin", ".ckpt", ".h5", ".msgpack", ".npz", ".ot", ".pt", ".pth", ".safetensors"}
PROCESSOR_FILES = (
    "*.TTF",  # the font of questions that are drawn on pictures
    "*.ttf",
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "image_processor_config.json",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece*.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer*.json",
    "tokenizer*.model",
    "vocab*.json",
    "vocab*.txt",
)


@dataclass(frozen=True)
class HFFolder:
    """Raises CheckpointError, at the look-up, for whatever is missing, damaged or unsafe. Executes nothing of it."""

    path: Path

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path} is no folder; give a {WHAT} (config.json and weights).")
        config = read_json(self.path / "config.json", CheckpointError, WHAT)
        return self._image_processor | config

    @property
    def _image_processor(self) -> dict[str, Any]:
        """Returns the class that the settings of images name, families may differ in nothing else; and the size that
        these become, which not all configurations say."""
        files = ModelFiles("", path=self.path)
        nested = files.read("processor_config.json").get("image_processor")
        settings = nested if isinstance(nested, dict) else files.read("preprocessor_config.json")
        size = settings.get("crop_size" if settings.get("do_center_crop") else "size")
        kind = settings.get("image_processor_type") or settings.get("feature_extractor_type")
        said = {"image_processor_type": kind, "image_processor_size": size}
        return {name: value for name, value in said.items() if value is not None}

    @functools.cached_property
    def generation(self) -> dict[str, Any]:
        path = self.path / "generation_config.json"
        file = read_json(path, CheckpointError, WHAT) if path.exists() else None
        return standing_alone(generation_defaults(self.config, file))

    @functools.cached_property
    def processor_files(self) -> tuple[Path, ...]:
        paths = {path for pattern in PROCESSOR_FILES for path in self.path.glob(pattern) if path.is_file()}
        return tuple(sorted(paths))

    @functools.cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Returns every tensor by name, mapped from disk."""
        return self._read(self.weight_files)

    @functools.cached_property
    def weight_files(self) -> list[str]:
        """Returns the names of the files that hold tensors."""
        return self._shards(self.weights) if self.weights.endswith(".index.json") else [self.weights]

    @functools.cached_property
    def weights(self) -> str:
        """Returns the file of all weights or the index of their shards: the one that the configuration names, else
        safetensors before pickles, whole before in shards."""
        if (named := self.config.get("transformers_weights")) is not None:
            return self._named(named)
        if there := [name for name in WEIGHTS if (self.path / name).exists()]:
            return there[0]
        others = sorted(path.name for path in self.path.iterdir() if path.suffix in OTHER_WEIGHTS)
        instead = f" that are read, only {listed(others)}" if others else ""
        raise CheckpointError(f"{self.path} holds no weights{instead}; give a folder with one of {listed(WEIGHTS)}.")

    def _named(self, name: Any) -> str:
        what = f"{self.path / 'config.json'}: transformers_weights is {name!r}"
        if not (isinstance(name, str) and name.endswith((".safetensors", ".safetensors.index.json"))):
            raise CheckpointError(
                f"{what}, expected is the name of a .safetensors file or of a .safetensors.index.json; {MEND}."
            )
        if not _leads_inside(name):
            raise CheckpointError(f"{what}, which is outside its folder; {MEND}.")
        if not os.path.exists(self.path / name):
            raise CheckpointError(
                f"{what}, which is not there; fetch the folder with all of its files, as `hf download` does."
            )
        return name

    def _shards(self, name: str) -> list[str]:
        """Returns the files that an index names, of which all tensors are read, as transformers does, whatever it says
        of which are where."""
        places = read_json(self.path / name, CheckpointError, WHAT).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(f, str) for f in places.values()):
            raise CheckpointError(
                f"{self.path / name} is damaged: it has no weight_map of tensor names to files; fetch it again."
            )
        shards = sorted(set(places.values()))
        if outside := [shard for shard in shards if not _leads_inside(shard)]:
            raise CheckpointError(f"{self.path / name} names files outside its folder: {listed(outside)}.")
        if absent := [shard for shard in shards if not os.path.exists(self.path / shard)]:
            raise CheckpointError(f"{self.path} lacks {listed(absent)}, which {name} names; fetch the folder again.")
        return shards

    def _read(self, names: list[str]) -> Mapping[str, Tensor]:
        from vlm.artifacts.weights import TensorFiles

        paths = [self.path / name for name in names]
        if not names[0].endswith(".bin"):
            return TensorFiles(paths)
        return {name: tensor for path in paths for name, tensor in read_pickle(path).items()}


def _leads_inside(name: str) -> bool:
    """Says whether a path that a folder's file names stays within the folder."""
    path = PurePath(os.path.normpath(name))
    return not path.is_absolute() and path.parts[:1] != (os.pardir,)


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Reads a pickled state dict by torch's restricted unpickler; anything but tensors by name is a CheckpointError."""
    return _tensors(path, _unpickled(path))


def read_nested_pickle(path: Path) -> dict[str, Tensor]:
    """Reads a pickle as `read_pickle` does, of modules' state dicts by their names: a.b for b in that of a."""
    state = _unpickled(path)
    if not isinstance(state, dict):
        return _tensors(path, state)
    parts = [(f"{name}.", part) if isinstance(part, dict) else ("", {name: part}) for name, part in state.items()]
    return _tensors(path, {f"{prefix}{name}": x for prefix, part in parts for name, x in part.items()})


def _unpickled(path: Path) -> Any:
    """Raises CheckpointError for a file that is damaged or holds more than tensors in Python's own containers."""
    import torch

    try:
        check_pickle(path)
        # only the zip format of torch >= 1.6 can be mapped
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except CheckpointError:
        raise
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} is damaged or holds Python objects other than tensors, which could run code, so it is not loaded;"
            " save the model as safetensors."
        ) from None
    except Exception as reason:  # a damaged pickle may end in any of them
        first = str(reason).splitlines()[0] if str(reason) else type(reason).__name__
        raise CheckpointError(f"{path} is damaged or truncated ({first}); fetch it again.") from None


def _tensors(path: Path, state: Any) -> dict[str, Tensor]:
    """Returns a state dict that is one, values alone of what was trained. Raises CheckpointError for anything else."""
    if not isinstance(state, dict) or not all(isinstance(name, str) and _is_dense(x) for name, x in state.items()):
        raise CheckpointError(f"{path} is no state dict of tensors by name; save the model as safetensors.")
    check_tensors(path, state)
    return {name: tensor.detach() for name, tensor in state.items()}


def _is_dense(value: Any) -> bool:
    """Says whether it is a tensor that has all of its values."""
    import torch

    is_plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
    return is_plain and not value.is_meta and not value.is_quantized


def check_pickle(path: Path) -> None:
    """Raises CheckpointError for what is no file, and for a zip that unpacks to more than its size: torch stores
    tensors as they are."""
    try:
        with open_regular(path) as file:
            members = zipfile.ZipFile(file).infolist() if zipfile.is_zipfile(file) else []
            size = file.seek(0, io.SEEK_END)
    except zipfile.BadZipFile as error:
        raise CheckpointError(f"{path} is damaged or truncated ({error}); fetch it again.") from None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}.") from None
    if sum(member.file_size for member in members) > size:
        raise CheckpointError(f"{path} unpacks to more than its size, so it is not loaded; fetch it again.")
    if any("/code/" in member.filename for member in members):
        raise CheckpointError(f"{path} is a program of TorchScript's, which is not run; save the model as safetensors.")


def check_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raises CheckpointError for tensors that repeat what the file holds: each row of one may be the same bytes."""
    most = REPEATED * path.stat().st_size
    if sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()) > most:
        raise CheckpointError(f"{path} repeats its bytes in tensors of many times its size; save it as safetensors.")
