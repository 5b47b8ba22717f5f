"""What a job is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlm.errors import InputError


@dataclass(frozen=True)
class JobConfig:
    """What is read of each document and how it is written."""

    format: str = "md"
    pages: str | None = None  # "1-4,7"; None: all
    max_new_tokens: int | None = None  # a page
    recompute: bool = False
    retries: int = 2  # of a page whose text repeats itself
    max_page_error_rate: float = 1.0  # of a document; one with more bad pages is not written

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InputError(f"--retries is {self.retries}; it must be 0 or more.")
        if not 0.0 <= self.max_page_error_rate <= 1.0:
            raise InputError(f"--max-page-error-rate is {self.max_page_error_rate:g}; it must lie between 0 and 1.")

    def sampling(self, attempt: int) -> dict[str, Any]:
        """Greedy at first. A page that loops would loop again: further attempts draw, ever more freely, and give the
        same text whenever they are made."""
        first = {"max_new_tokens": self.max_new_tokens}
        if not attempt:
            return first
        return first | {"temperature": min(0.2 * attempt, 1.0), "top_p": 0.95, "seed": attempt}
