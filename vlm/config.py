"""Frozen configurations: what a model is (`ModelConfig`, `VisionConfig`), what an engine is built for
(`BuildConfig`), and how it is run (`RuntimeConfig`)."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from vlm.errors import NAME_A_PLACE, ConfigError, listed, shown
from vlm.options import errors_of, option, to_tuples
from vlm.packaged import adapter_folder, is_adapter_name
from vlm.ranges import OfType, Range, at_least, one_of

KV_CACHE_DTYPES = ("int8", "fp8")  # of a cache of 8 bits
DTYPES = ("float32", "float16", "bfloat16")
MAX_SPECULATIVE_TOKENS = 16  # a step's matrix products take little longer for a few rows more
MAX_THREADS = 1024  # OpenMP ends the process where it cannot start them
PART = Range(0, 1, low_open=True, high_open=True, words="it must lie between 0 and 1")  # of a GPU's memory


def read_targets(text: str) -> tuple[str, ...]:
    """Reads `sm80,sm86` as its parts."""
    return tuple(part.strip().lower() for part in text.split(",") if part.strip())


def read_names(text: str) -> tuple[str, ...]:
    """Reads `head,visual.*` as its parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class Config:
    """Base of the frozen dataclasses: reads and writes plain dictionaries, rejects unknown keys."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Raises ConfigError that names every unknown key, and every value of another type than its field's."""
        types = _types(cls)
        if unknown := sorted(set(values) - types.keys()):
            raise ConfigError(f"{cls.__name__} does not know {listed(unknown)}; it takes {listed(sorted(types), 40)}.")
        values = {name: to_tuples(value) for name, value in values.items()}  # JSON has none
        if errors := _type_errors(cls, values, ";"):
            raise ConfigError(f"{cls.__name__} cannot have these values: {listed(errors.values())}.")
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def depth_in_all(self) -> int:
        """Layers of a network, those of the networks within it included."""
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        own = [getattr(self, name, 0) for name in ("num_layers", "depth", "linears")]
        nested = [value.depth_in_all for value in values if isinstance(value, Config)]
        return sum(own) + sum(getattr(self, "depths", ())) + sum(nested)


@functools.cache
def _types(config: type[Config]) -> Mapping[str, OfType]:
    """Returns the types of a configuration's fields."""
    hints = typing.get_type_hints(config)
    return {field.name: OfType(hints[field.name]) for field in dataclasses.fields(config)}


def _type_errors(config: type[Config], values: Mapping[str, Any], separator: str) -> dict[str, str]:
    """Returns what is wrong with values of another type than their fields', by the fields' names."""
    types = _types(config)
    return {
        name: f"{name} is {shown(value)}{separator} {error}"
        for name, value in values.items()
        if (error := types[name].error(value))
    }


@dataclass(frozen=True)
class ModelConfig(Config):
    """What the runtime needs to know of any decoder. Families extend it."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    max_positions: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    decoder_start_token_id: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def embedding_size(self) -> int:
        """Returns the width of an embedding, and of a prompt table's row."""
        return self.hidden_size

    @property
    def position_axes(self) -> int:
        """Returns how many numbers a token's position is; several where rows of images stand in a plane."""
        return 1

    @property
    def cross_attention(self) -> bool:
        """Says whether it looks at an encoder's output. A decoder alone does not."""
        return True

    @property
    def encoder_size(self) -> int:
        """Returns the width of the rows of the encoder that it looks at."""
        return self.hidden_size

    @property
    def position_limit(self) -> int | None:
        """Tokens that positions allow; None where they are relative: `max_positions` is but the default then."""
        return self.max_positions


@dataclass(frozen=True)
class VisionConfig(Config):
    """What the runtime needs to know of any visual encoder. Towers extend it.

    A network whose images have all one size says `num_features` alone. One that takes several says which
    (`fixed_size`, `takes`, `shapes`), and how many rows each becomes (`rows_of`, `grid_of`, `min_rows`).
    """

    image_size: tuple[int, int]  # (height, width), pixels; where there are several sizes, the one of the most rows
    num_channels: int

    @property
    def num_features(self) -> int:
        """Feature rows of an image of `image_size`."""
        raise NotImplementedError

    @property
    def fixed_size(self) -> bool:
        """Says whether all images have `image_size`."""
        return True

    @property
    def network_size(self) -> tuple[int, int] | None:
        """(height, width) of all that the network takes, images or tiles of them; None where these have several."""
        return self.image_size if self.fixed_size else None

    @property
    def network_rows(self) -> int:
        """Feature rows of what the network takes, at most."""
        return self.max_rows

    def takes(self, height: int, width: int) -> bool:
        """Says whether images of so many pixels are read."""
        return (height, width) == tuple(self.image_size)

    @property
    def usual_size(self) -> tuple[int, int]:
        """(height, width) of an image as people bring them: what is measured, and warmed up for."""
        return self.image_size

    @property
    def shapes(self) -> str:
        """Returns the shapes of pixel values that are read, as errors name them."""
        return str((self.num_channels, *self.image_size))

    def rows_of(self, height: int, width: int) -> int:
        """Returns the feature rows of an image of a size that it takes, in pixels."""
        return self.num_features

    def grid_of(self, height: int, width: int) -> tuple[int, ...] | None:
        """Returns how the rows of such an image lie, (down, across), where anything depends on it."""
        return None

    @property
    def min_rows(self) -> int:
        """Feature rows of the smallest image."""
        return self.num_features

    @property
    def max_rows(self) -> int:
        """Feature rows of the largest image."""
        height, width = self.image_size
        return self.rows_of(height, width)

    @property
    def hidden_size(self) -> int:
        """Width of a feature row."""
        raise NotImplementedError

    @property
    def image_token_id(self) -> int | None:
        """The token that Hugging Face repeats for an image's rows in a decoder's prompt; None: there is none."""
        return None


@dataclass(frozen=True)
class BuildConfig(Config):
    """What an engine is to be built for. `None` means: as much as the model allows. What a backend makes of it says
    vlm.backends.installed.checked_backend."""

    dtype: str = option(
        "float32", f"Computing type, and that of the weights: {', '.join(DTYPES)}.", allowed=one_of(*DTYPES)
    )
    max_batch_size: int = option(8, "Sequences decoded at once, at most.", allowed=at_least(1))
    max_seq_len: int | None = option(
        None, "Decoder tokens a sequence, prompt included.", default="what the model was made for", allowed=at_least(1)
    )
    max_encoder_input_len: int | None = option(
        None, "Encoder rows (tokens of a text) a request.", default="what the model takes", allowed=at_least(1)
    )
    backend: str = option("torch", "What runs it.")
    target: tuple[str, ...] = option(  # compute capabilities; (): of this machine
        (), "GPUs of a TensorRT plan, like sm80,sm86.", default="the one here; without one, all from sm80 on",
        read=read_targets,
    )  # fmt: skip
    quantization: str | None = option(None, "Of the weights.", default="as --dtype says")
    group_size: int | None = option(
        None, "Weights that share a scale, where a quantization has groups.", default="128", allowed=at_least(2)
    )
    tp_size: int = option(1, "GPUs that split each layer.", allowed=at_least(1))
    encoder_tp_size: int | None = option(
        None, "GPUs that split each layer of an encoder of texts, where it is to be split among fewer than the decoder:"
        " a divisor of tp_size; 1: each GPU has the whole encoder.",
        default="--tp-size", allowed=at_least(1),
    )  # fmt: skip
    pp_size: int = option(1, "Pipeline stages that share the layers, each of tp_size GPUs.", allowed=at_least(1))
    ignore: tuple[str, ...] | None = option(
        None, "Layers whose weights are not quantized: names, parts of names or patterns, several apart by ','.",
        default="head,visual", read=read_names,
    )  # fmt: skip

    def __post_init__(self) -> None:
        errors = _errors_of(self)
        if "target" not in errors and (unknown := [x for x in self.target if not re.fullmatch(r"sm[1-9]\d{1,2}", x)]):
            errors["target"] = f"target is {listed(unknown)}, it must be like sm89 or sm80,sm86"
        if not errors and self.tp_size % (self.encoder_tp_size or 1):
            errors["encoder_tp_size"] = (
                f"encoder_tp_size is {self.encoder_tp_size}, it must divide tp_size {self.tp_size}"
            )
        _check(errors, "tp_size")

    @property
    def quantization_options(self) -> dict[str, Any]:
        """Returns what is said of the quantization beside its name."""
        values = {"group_size": self.group_size, "ignore": None if self.ignore is None else list(self.ignore)}
        return {name: value for name, value in values.items() if value is not None}

    def check_quantization_options(self) -> None:
        """Raises ConfigError for options of a quantization where there is none."""
        if self.quantization is None and (names := tuple(self.quantization_options)):
            raise ConfigError(
                f"{listed(names)} {'is' if len(names) == 1 else 'are'} of weights that are quantized, and the build"
                " names no quantization; name one, or leave that out.",
                settings=(*names, "quantization"),
            )

    @property
    def num_ranks(self) -> int:
        """Returns how many processes, a GPU each, run what is built."""
        return self.tp_size * self.pp_size

    @property
    def mapping(self) -> dict[str, int]:
        """Returns the ranks as manifests name them: {"tp", "pp"}, and "encoder_tp" where that is not "tp"."""
        own, sizes = self.encoder_tp_size, {"tp": self.tp_size, "pp": self.pp_size}
        return sizes if own in (None, self.tp_size) else {**sizes, "encoder_tp": own}

    def options(self) -> list[str]:
        """Returns the words after `vlm build MODEL -o OUT` that ask for the same."""
        ignore = None if self.ignore is None else ",".join(self.ignore)
        sizes = {name: size if (size := getattr(self, name)) > 1 else None for name in ("tp_size", "pp_size")}
        values = {**self.to_dict(), "target": ",".join(self.target) or None, "ignore": ignore, **sizes}
        settings = {name: value for name, value in values.items() if value is not None}
        return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(frozen=True)
class EngineLimits(Config):
    """What an engine holds, resolved: 0 where its model has no such thing."""

    max_batch_size: int  # sequences decoded at once
    max_seq_len: int = 0  # decoder tokens of a sequence, prompt included; 0: there is no decoder
    max_encoder_input_len: int = 0  # encoder rows of a request; 0: there is no encoder besides that of prompts' images

    @classmethod
    def from_manifest(cls, values: Mapping[str, int | None]) -> EngineLimits:
        """Reads what a manifest keeps, where `None` stands for what there is not."""
        return cls(**{name: value or 0 for name, value in values.items()})

    def to_manifest(self) -> dict[str, int | None]:
        """Returns what a manifest and a BuildConfig keep."""
        return {name: value or None for name, value in self.to_dict().items()}

    def within(self, **limits: int | None) -> EngineLimits:
        """Returns these limits, lowered where a smaller one is named; `None` keeps its own."""
        return replace(self, **{name: min(value, getattr(self, name)) for name, value in limits.items() if value})

    @property
    def max_input_len(self) -> int:
        """Tokens of the longest text: the decoder's, or those of an encoder alone."""
        return self.max_seq_len or self.max_encoder_input_len


@dataclass(frozen=True)
class RuntimeConfig(Config):
    """How an engine is run."""

    device: str = option("auto", "auto, cpu, cuda or cuda:N.")
    devices: str | None = option(
        None, "Of an engine for several ranks, each one's, in their order: cuda:0,cuda:1, or all.", default="--device"
    )
    block_size: int = option(16, "Tokens a block of the KV cache.", cli=False, allowed=at_least(1))
    burst: int | None = option(
        None, "Decode steps between two looks of the host, at most.", cli=False, allowed=at_least(1),
        default="16 on a GPU; on a CPU 1, and some of a small model: it hides nothing there, and what arrives waits",
    )  # fmt: skip
    kv_cache_free_gpu_memory_fraction: float = option(
        0.9, "The cache's share of a GPU's memory that is free once the weights are loaded.", allowed=PART
    )
    cross_kv_cache_fraction: float = option(
        0.5, "The share of a GPU's cache for keys and values of the encoder.", allowed=PART
    )
    max_kv_blocks: int | None = option(
        None, "Blocks of the KV cache.", cli=False, allowed=at_least(1),
        default="from the fraction (CUDA) or for a full batch (CPU)",
    )  # fmt: skip
    max_batch_size: int | None = option(
        None, "Sequences decoded at once, at most.", cli=False, allowed=at_least(1), default="as built"
    )
    max_encoder_batch_size: int = option(8, "Images encoded in one pass.", cli=False, allowed=at_least(1))
    max_encoder_tokens: int = option(
        16384, "Tokens of texts, or patches of images of any size, encoded in one pass.", cli=False, allowed=at_least(1)
    )
    max_prefill_tokens: int = option(
        8192, "Tokens of prompts between two bursts; longer ones are taken in chunks.", cli=False, allowed=at_least(1)
    )
    prefix_sharing: bool = option(True, "Equal beginnings of prompts are computed and kept once.", cli=False)
    encoder_cache_size: int = option(
        256, "Images whose features are kept for their next use.", cli=False,
        allowed=at_least(0, "it must be 0 (off) or more"),
    )  # fmt: skip
    kv_cache_dtype: str | None = option(
        None, "Of keys and values in the cache: int8 or fp8 keep them in 8 bits, with a scale a token and head.",
        default="as the engine computes", allowed=one_of(*KV_CACHE_DTYPES),
    )  # fmt: skip
    num_speculative_tokens: int = option(
        0, "Tokens that prompt lookup proposes for an output in a decode step, at most: what followed the same words in"
        " its own text or the encoder's. One pass verifies them, and outputs stay the same. 0: none.",
        allowed=Range(0, MAX_SPECULATIVE_TOKENS, words=f"it must be between 0 (off) and {MAX_SPECULATIVE_TOKENS}"),
    )  # fmt: skip
    batch_invariant: bool = option(
        False, "On a GPU a request's tokens depend, to the bit, on nothing that it is batched with: every pass has"
        " the rows of a full one, texts and prompts are computed one at a time.",
        flags=("--batch-invariant/--no-batch-invariant",),
    )  # fmt: skip
    lora: tuple[str, ...] = option(
        (), "An adapter (LoRA or IA3, packaged or a folder of PEFT's) that requests may name: NAME=FOLDER."
    )
    max_loras: int | None = option(
        None, "Adapters on the device at once; requests of others wait until one of these is not in use.",
        default="those of --lora", allowed=at_least(1), only_with="lora",
    )  # fmt: skip
    max_cpu_loras: int | None = option(
        None, "Adapters that there is room for on the host, which take turns on the device.",
        default="--max-loras, or those of --lora", allowed=at_least(1), only_with="lora",
    )  # fmt: skip
    max_lora_rank: int | None = option(
        None, "The highest rank of an adapter that there is room for.", default="that of --lora", allowed=at_least(1),
        only_with="lora",
    )  # fmt: skip
    prompt_table: str | None = option(
        None, "Tuned prompts whose tasks requests may name: a folder that vlm convert or PEFT wrote, or a .npy file of"
        " floats [tasks, rows, hidden].",
    )  # fmt: skip
    cuda_graphs: bool = option(True, "Replay a decode step as a CUDA graph.", cli=False)
    threads: int | None = option(
        None, "CPU threads at most.", default="$OMP_NUM_THREADS, or the usable cores", allowed=Range(1, MAX_THREADS)
    )

    def __post_init__(self) -> None:
        errors = _errors_of(self)
        if self.devices is not None and self.device != type(self).device:
            errors["devices"] = "device and devices are both given, leave one of the two out"
        if self.prompt_table == "":
            errors["prompt_table"] = f"prompt_table is empty, {NAME_A_PLACE}"
        if "lora" not in errors and (wrong := _adapter_errors(self.lora)):
            errors["lora"] = "; ".join(wrong)
        _check(errors, "device")

    @property
    def lora_folders(self) -> dict[str, Path]:
        """Returns the folders of adapters by their names, in the order of their numbers."""
        return {name: adapter_folder(folder) for name, _, folder in (each.partition("=") for each in self.lora)}

    def on(self, device_type: str) -> RuntimeConfig:
        """Returns what holds on a type of device: the CPU is never batch-invariant; a GPU that is takes each text and
        each prompt in passes of its own, keeps nothing of them for another one, and drafts nothing: a step's rows would
        be more at times."""
        if not self.batch_invariant or device_type == "cpu":
            return replace(self, batch_invariant=False)
        return replace(self, max_encoder_tokens=1, prefix_sharing=False, num_speculative_tokens=0)


def _errors_of(config: Config) -> dict[str, str]:
    """Returns what is wrong with values, by their fields' names: with those of another type, or else beyond limits."""
    values = {name: _plain(getattr(config, name)) for name in _types(type(config))}
    return _type_errors(type(config), values, ",") or dict(errors_of(config, ","))


def _plain(value: Any) -> Any:
    """Returns a path as a string, and lists as tuples."""
    return os.fspath(value) if isinstance(value, os.PathLike) else to_tuples(value)


def _check(errors: Mapping[str, str], *others: str) -> None:
    """Raises ConfigError for what is wrong with fields, if anything is. `others`: which the sentences may name, too."""
    if errors:
        raise ConfigError("; ".join(errors.values()) + ".", settings=(*errors, *others))


def _adapter_errors(lora: tuple[str, ...]) -> list[str]:
    """Returns what is wrong with adapters that are named NAME=FOLDER."""
    parts = [each.partition("=") for each in lora]
    bad = [each for each, (name, _, folder) in zip(lora, parts, strict=True) if not (name and folder)]
    names = [name for name, _, _ in parts]
    odd = [name for name in names if name and not is_adapter_name(name)]
    again = sorted({name for name in names if names.count(name) > 1})
    return [
        *([f"lora is {listed(map(repr, bad))}, it must be NAME=FOLDER"] if bad else []),
        *([f"lora names {listed(map(repr, odd))}, a name is of printable words with a letter or digit"] if odd else []),
        *([f"lora names {listed(again)} twice, give each adapter a name of its own"] if again else []),
    ]
