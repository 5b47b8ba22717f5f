"""What `vlm quantize` calibrates with and reports on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlm.options import check_limits, option
from vlm.ranges import at_least

MAX_NEW_TOKENS = 256  # of an output, where a user does not say how many


@dataclass(frozen=True)
class InputsConfig:
    """The inputs of a user. Raises InputError for a value that is not allowed."""

    calibrate: Path | None = option(
        None, "Inputs of yours: a folder of pages (or one document), a .txt or .tsv of texts, or a .jsonl of texts,"
        " conversations, or questions about images.",
    )  # fmt: skip
    report_samples: int = option(
        32, "Inputs for the report, others than those of the calibration where there are enough.", allowed=at_least(1)
    )
    max_new_tokens: int | None = option(
        None, "Tokens of an output, at most.", default=f"{MAX_NEW_TOKENS}, or as many as the input leaves room for",
        allowed=at_least(1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
