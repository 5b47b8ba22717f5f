"""What `vlm bench ocr` measures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from vlm.config import RuntimeConfig
from vlm.errors import InputError, listed
from vlm.options import option, same_option
from vlm.ranges import at_least
from vlm_app.bench.config import SubjectConfig
from vlm_app.bench.lists import names, numbers
from vlm_app.bench.pages.kinds import KINDS
from vlm_app.ocr.config import PlaceConfig
from vlm_app.ocr.readers.engines import EngineConfig

DEFAULT_TOKENS = 1000  # a page, with random weights


@dataclass(frozen=True)
class OcrBenchConfig(SubjectConfig):
    """Documents, from files to written markdown. The job is ours alone: Hugging Face has none to compare with."""

    backends: tuple[str, ...] = ()  # as built, or torch
    hf: bool = False
    tp_size: int = 1  # each device has an engine of its own
    encoder_tp_size: int | None = None
    pp_size: int = 1
    repeats: int = option(2, "The median of so many runs counts, each of documents of its own.", allowed=at_least(1))
    kinds: tuple[str, ...] = option(
        KINDS, f"Of documents, by turns: {', '.join(KINDS)}; several apart by ','.", default="all", read=names
    )
    documents: int = option(24, "Of each run; one of png or jpeg is an image a page.", allowed=at_least(1))
    pages_per_document: int = option(8, "In each.", allowed=at_least(1))
    workers: tuple[int, ...] = option(
        (), 'Processes that prepare pages, several apart by ";": a row each.', default="as vlm ocr chooses",
        read=partial(numbers, option="--workers"),
    )  # fmt: skip
    devices: str | None = same_option(PlaceConfig, "devices")
    batch_invariant: bool = same_option(RuntimeConfig, "batch_invariant", value=True, default="on")
    batch_size: int | None = option(
        None, "Pages read at once.", default=f"as built, or {EngineConfig.CUDA_BATCH_SIZE} on CUDA",
        allowed=at_least(1), sets=("max_batch_size",),
    )  # fmt: skip
    tokens: int | None = option(
        None, "Of a page: exactly so many with random weights, else at most.",
        default=f"{DEFAULT_TOKENS} with random weights, else the model's end", allowed=at_least(1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kinds or (unknown := [kind for kind in self.kinds if kind not in KINDS]):
            raise InputError(f"--kinds holds {listed(unknown) if self.kinds else 'none'}; allowed are {listed(KINDS)}.")
        if self.workers and min(self.workers) < 0:
            raise InputError(f"--workers holds {min(self.workers)}; its numbers must be at least 0.")

    @property
    def is_random(self) -> bool:
        """Says whether the weights are random, so that the length of outputs is ours to choose."""
        return self.arch is not None

    @property
    def max_new_tokens(self) -> int | None:
        return self.tokens or (DEFAULT_TOKENS if self.is_random else None)
