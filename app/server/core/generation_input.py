"""What the protocols' readers leave of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vlm.processing.media.reading import ImageFile


@dataclass(frozen=True)
class GenerationInput:
    """Holds one input, as a protocol's reader leaves it."""

    source: dict[str, Any]  # an input of Pipeline.generate
    files: Sequence[ImageFile]  # its images
    sampling: dict[str, Any]

    @property
    def count(self) -> int:
        """Outputs that are decoded at once."""
        return max(self.sampling.get("num_return_sequences") or 1, self.sampling.get("num_beams") or 1)
