"""What an engine is built for, and what it then holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vlm.config.base import Config, errors_in, raise_errors
from vlm.errors import ConfigError, listed
from vlm.options import option
from vlm.ranges import Range, at_least, one_of

DTYPES = ("float32", "float16", "bfloat16")
LIMIT = Range(1, 2**31 - 1)  # positions and rows are int32


def read_targets(text: str) -> tuple[str, ...]:
    """Reads `sm80,sm86` as its parts."""
    return read_names(text.lower())


def read_names(text: str) -> tuple[str, ...]:
    """Reads `head,visual.*` as its parts."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class BuildConfig(Config):
    """What an engine is to be built for. `None` means: as much as the model allows. What a backend makes of it says
    vlm.backends.installed.checked_backend."""

    dtype: str = option(
        "float32", f"Computing type, and that of the weights: {', '.join(DTYPES)}.", allowed=one_of(*DTYPES)
    )
    max_batch_size: int = option(8, "Sequences decoded at once, at most.", allowed=LIMIT)
    max_seq_len: int | None = option(
        None, "Decoder tokens a sequence, prompt included.", default="what the model was made for", allowed=LIMIT
    )
    max_encoder_input_len: int | None = option(
        None, "Encoder rows (tokens of a text) a request.", default="what the model takes", allowed=LIMIT
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
        errors = errors_in(self)
        if "target" not in errors and (unknown := [x for x in self.target if not re.fullmatch(r"sm[1-9]\d{1,2}", x)]):
            errors["target"] = f"target is {listed(unknown)}, it must be like sm89 or sm80,sm86"
        if not errors and self.tp_size % (self.encoder_tp_size or 1):
            errors["encoder_tp_size"] = (
                f"encoder_tp_size is {self.encoder_tp_size}, it must divide tp_size {self.tp_size}"
            )
        raise_errors(errors, "tp_size")

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
