"""What a benchmark measures."""

from __future__ import annotations

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
