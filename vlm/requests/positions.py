"""Positions of several axes: tokens one after the other, rows of an image by their place in it (M-RoPE, Wang et al.,
Qwen2-VL, arXiv:2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vlm.errors import InputError

if TYPE_CHECKING:
    from vlm.requests.image import Image

Array = npt.NDArray[np.int32]
AXES = 3  # time, rows, columns


@dataclass(frozen=True, eq=False)
class Positions:
    """Holds where the tokens of a sequence stand; what is generated goes on after the prompt's largest position."""

    prompt: Array  # [AXES, T]

    @classmethod
    def from_prompt(cls, tokens: Items[int], images: Items[Image], first_row: int) -> Positions:
        """Places a prompt whose ids from `first_row` on are the images' rows, one image's after the other's. Raises
        InputError where an image's rows do not follow one another."""
        ids = np.array(tokens, np.int64)
        prompt, end, following = np.empty((AXES, len(ids)), np.int32), 0, 0
        for begin, image in _runs(ids, images, first_row):
            prompt[:, end:begin] = np.arange(following, following + begin - end)
            down, across = _grid(image)
            following, end = following + begin - end, begin + image.rows
            prompt[0, begin:end] = following
            prompt[1:, begin:end] = np.indices((down, across)).reshape(2, -1) + following
            following += max(down, across)
        prompt[:, end:] = np.arange(following, following + len(ids) - end)
        return cls(prompt)

    @property
    def deltas(self) -> list[list[int]]:
        """Returns by how much positions differ from places in the sequence [2, AXES]: that of the prompt's last token,
        and those of all that follow it."""
        length = self.prompt.shape[1]
        return [(self.prompt[:, -1] - (length - 1)).tolist(), [int(self.prompt.max()) + 1 - length] * AXES]

    def between(self, start: int, end: int) -> Array:
        """Returns the positions [AXES, end - start] of a part of the sequence, generated tokens included."""
        beyond = np.arange(max(start, self.prompt.shape[1]), end, dtype=np.int32) + self.deltas[1][0]
        return np.concatenate([self.prompt[:, start:end], np.broadcast_to(beyond, (AXES, len(beyond)))], 1)


def _runs(ids: npt.NDArray[np.int64], images: Items[Image], first_row: int) -> list[tuple[int, Image]]:
    """Returns where the rows of images begin in a prompt, in its order."""
    begins = first_row + np.cumsum([0, *(image.rows for image in images)])
    found = [(int(at), image) for row, image in zip(begins, images, strict=False) for at in np.flatnonzero(ids == row)]
    runs = sorted(found, key=lambda run: run[0])
    whole = all((np.diff(ids[at : at + image.rows]) == 1).all() for at, image in runs)
    if not whole or sum(image.rows for _, image in runs) != np.count_nonzero(ids >= first_row):
        raise InputError(
            "this model's positions follow its images: all rows of an image must stand in the prompt, one after the"
            " other."
        )
    return runs


def _grid(image: Image) -> tuple[int, int]:
    assert image.grid is not None
    return image.grid[-2], image.grid[-1]
