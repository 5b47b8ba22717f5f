"""What a benchmark measures."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from vlm.config import Config
from vlm.errors import InputError


@dataclass(frozen=True)
class BenchConfig(Config):
    """One run. Everything that is drawn at random follows from `seed`."""

    arch: str | None = None  # a published shape or a Hugging Face config.json, with random weights
    model: str | None = None  # or a model
    device: str = "auto"
    dtype: str | None = None  # None: float32 on the CPU, bfloat16 on CUDA
    batch_size: int = 1
    pages: int = 1  # images in all
    new_tokens: int = 1000  # a page, exactly
    repeats: int = 3
    seed: int = 0
    hf: bool = True  # measure Hugging Face in the same run
    hf_new_tokens: int = 100  # tokens of its run; its time a token is taken from them
    hf_batch_size: int | None = None  # None: ours

    def __post_init__(self) -> None:
        if (self.arch is None) == (self.model is None):
            raise InputError("give either --model NAME, or --random-weights --arch NAME.")
        for name in ("batch_size", "pages", "new_tokens", "repeats", "hf_new_tokens", "hf_batch_size"):
            least = 2 if name.endswith("new_tokens") else 1
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}.")

    @property
    def subject(self) -> str:
        """What is measured, in words."""
        return self.model or f"{self.arch}, random weights"


@dataclass(frozen=True)
class TextBenchConfig(Config):
    """One run: every combination of the lists is a row."""

    arch: str | None = None
    model: str | None = None
    device: str = "auto"
    dtype: str | None = None
    batch_sizes: tuple[int, ...] = (1,)
    lengths: tuple[tuple[int, int], ...] = ((64, 64),)  # tokens in, tokens out
    num_beams: tuple[int, ...] = (1,)
    repeats: int = 3
    seed: int = 0
    hf: bool = True
    hf_new_tokens: int | None = None  # None: all; fewer are extrapolated
    hf_repeats: int = 1

    def __post_init__(self) -> None:
        if (self.arch is None) == (self.model is None):
            raise InputError("give either --model NAME, or --random-weights --arch NAME.")
        numbers = [*self.batch_sizes, *self.num_beams, *itertools.chain(*self.lengths), self.repeats, self.hf_repeats]
        if not numbers or min(numbers) < 1:
            raise InputError("batch sizes, beams, lengths and repeats must be at least 1.")
        if min(out for _, out in self.lengths) < 2 or (self.hf_new_tokens or 2) < 2:
            raise InputError("at least 2 tokens out are needed to time one.")

    @property
    def subject(self) -> str:
        return self.model or f"{self.arch}, random weights"

    @property
    def limits(self) -> dict[str, int]:
        """What the engine must hold; a beam takes a sequence's place."""
        return {
            "max_batch_size": max(self.batch_sizes) * max(self.num_beams),
            "max_seq_len": max(out for _, out in self.lengths) + 1,
            "max_encoder_input_len": max(length for length, _ in self.lengths),
        }

    @property
    def rows(self) -> list[Workload]:
        return [Workload(*row) for row in itertools.product(self.lengths, self.num_beams, self.batch_sizes)]


@dataclass(frozen=True)
class Workload:
    """One row."""

    lengths: tuple[int, int]
    num_beams: int
    batch_size: int

    def to_dict(self) -> dict[str, int]:
        given, made = self.lengths
        return {"batch_size": self.batch_size, "num_beams": self.num_beams, "input_len": given, "output_len": made}
