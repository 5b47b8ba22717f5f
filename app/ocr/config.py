"""What a job is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vlm.errors import InputError
from vlm.limits import MAX_PROCESSES
from vlm.options import check_limits, option, same_option
from vlm.processing.media.pool import MediaConfig
from vlm.ranges import Range, at_least
from vlm.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class JobConfig:
    """What is read of each document and how it is written. Raises InputError for a value that is not allowed."""

    format: str = option("md", "md: markdown; mmd: the model's own text; jsonl: an object a page, in Dolma's fields.")
    pages: str | None = option(None, "Of every document: 1-4,7.", default="all")
    prompt: str | None = option(
        None, "What a model that is asked in words, or by a question on the page, is asked of each.",
        default="as published, where the model's name is known; else nothing",
    )  # fmt: skip
    question: str | None = option(
        None, "What a model that answers questions is asked about each page (Donut, Pix2Struct; of Florence-2 what the"
        " task of --prompt is about).",
    )  # fmt: skip
    max_new_tokens: int | None = same_option(SamplingParams, "max_new_tokens", allowed=None)  # a page
    limit: int | None = option(
        None, "Pages to read in this run; without it the same command goes on.", default="all", allowed=at_least(1)
    )
    exact_pixels: bool = same_option(MediaConfig, "exact_pixels")
    recompute: bool = option(False, "Read everything again; else only what was not read yet.")
    retries: int = option(
        2, "Of a page whose text repeats itself, by sampling.", allowed=at_least(0, "it must be 0 or more")
    )
    max_page_error_rate: float = option(
        1.0, "A document with a larger part of bad pages is not written.",
        allowed=Range(0, 1, words="it must lie between 0 and 1"),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_limits(self, flags=True)

    def sampling(self, attempt: int) -> dict[str, Any]:
        """Returns the settings of an attempt, at first the model's own, mostly greedy. A page that loops would loop
        again: further attempts draw, ever more freely. Each gives the same text whenever it is made."""
        first = {"max_new_tokens": self.max_new_tokens, "seed": attempt}
        return first | ({"temperature": min(0.2 * attempt, 1.0), "top_p": 0.95} if attempt else {})


def check_gpu_price(price: float | None) -> None:
    """Raises InputError for what no device costs an hour."""
    allowed = Range(0, high_open=True, words="it must be a finite number, 0 or more")
    if price is not None and (error := allowed.error(price)):
        raise InputError(f"--gpu-price is {price:g}; {error}.")


@dataclass(frozen=True)
class EstimateConfig:
    """Which pages an estimate reads. Raises InputError for a value that is not allowed."""

    BATCHES: ClassVar[int] = 8  # as many pages as are read at once, so often, unless told

    sample: int | None = option(
        None, "Pages to read.", default="8 times what is read at once, or as many as take ten seconds",
        allowed=at_least(1),
    )  # fmt: skip
    seed: int = option(0, "Of the draw of pages, and of the intervals.", allowed=at_least(0))

    def __post_init__(self) -> None:
        check_limits(self, flags=True)


@dataclass(frozen=True)
class PlaceConfig:
    """Where a job runs, and which part of it. Raises InputError for a value that is not allowed."""

    workers: int | None = option(
        None, "Processes that draw pages and prepare them for the model; 0: threads of this one.",
        default="all cores but one on CUDA, half of them on the CPU",
        allowed=Range(0, MAX_PROCESSES, words=f"it must be 0 (read pages in the same process) to {MAX_PROCESSES:,}"),
    )  # fmt: skip
    shard: str | None = option(None, "One part of the documents: 0/4 is the first of four.", default="all")
    devices: str | None = option(None, "Several, with an engine on each: cuda:0,cuda:1, or all.", default="--device")
    ray: bool = option(False, "On the Ray cluster of $RAY_ADDRESS, or one started on this machine.")
    engines: int | None = option(
        None, "Engines on the Ray cluster.", default="one a GPU, or one without GPUs", allowed=at_least(1)
    )

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        if self.ray and self.devices:
            raise InputError("--devices is for one machine; with --ray, --engines says how many.")
        if self.engines and not self.ray:
            raise InputError("--engines is for --ray; on one machine, --devices names a device for each engine.")
