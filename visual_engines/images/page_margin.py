"""The margin of a page as Nougat's image processor finds it, from the few rows and columns where it can end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

THRESHOLD = 200  # of a page's shades, from 0 to 255: what is darker is no margin
STRIP = 64  # rows, whose intermediate floats stay in the processor's cache
CANDIDATES = 16  # rows or columns that are looked at for an end of the margin

Box = tuple[slice, slice]  # rows, columns


def content_box(page: np.ndarray) -> Box | None:
    """Maps page [H, W, 3] uint8 -> the box of what is darker than THRESHOLD on the page's own scale of 0 to 255; None
    for a page of one shade"""
    for bounds in (_bounds_by_channels, _bounds_by_luma):
        if box := _box_within(page, bounds(page)):
            return box
    return _box_of_all(page)


@dataclass(frozen=True)
class _Bounds:
    """What the shades of a page are within."""

    rows: np.ndarray  # [H] uint8, no shade of a row is darker
    columns: np.ndarray  # [W] uint8
    lightest: np.ndarray  # [H] uint8, no shade of a row is lighter


def _bounds_by_channels(page: np.ndarray) -> _Bounds:
    """Bounds a shade by the least and the largest of its pixel's channels: at once, and exactly where all are grey."""
    lines, shades = page.reshape(len(page), -1), _shades_of_grey()
    columns = lines.min(axis=0).reshape(-1, 3).min(axis=1)
    return _Bounds(shades[lines.min(axis=1)], shades[columns], shades[lines.max(axis=1)])


def _bounds_by_luma(page: np.ndarray) -> _Bounds:
    """Bounds a shade by Pillow's of the pixel, which is the same or one lighter; for paper that is not white."""
    import numpy as np
    from PIL import Image

    luma = np.asarray(Image.fromarray(page).convert("L"))
    rows, columns = (np.maximum(luma.min(axis), 1) - 1 for axis in (1, 0))
    return _Bounds(rows, columns, luma.max(axis=1))


def _box_within(page: np.ndarray, bounds: _Bounds) -> Box | None:
    """Returns the box where a few rows and columns prove it; None where they do not."""
    low = int(_grey(page[[bounds.rows.argmin()]]).min())  # at most
    high = int(_grey(page[[bounds.lightest.argmax()]]).max())  # at least
    if low >= high:
        return None
    # a shade more on each side than rounding can make of them
    dark = _limit(int(bounds.rows.min()), high) - 1, _limit(low, int(bounds.lightest.max())) + 1
    rows, columns = _dark_span(page, bounds.rows, dark), _dark_span(page.swapaxes(0, 1), bounds.columns, dark)
    return (rows, columns) if rows and columns else None


def _dark_span(lines: np.ndarray, shades: np.ndarray, dark: tuple[int, int]) -> slice | None:
    """Returns what is from the first to the last of some lines [n, length, 3] with a shade below a limit that is within
    `dark`; None where that is not sure. `shades`: of which no line has a darker one."""
    candidates = (shades < dark[1]).nonzero()[0]
    first, last = (_first_dark(lines, order[:CANDIDATES], dark) for order in (candidates, candidates[::-1]))
    return None if first is None or last is None else slice(first, last + 1)


def _first_dark(lines: np.ndarray, candidates: np.ndarray, dark: tuple[int, int]) -> int | None:
    for line in candidates.tolist():
        if (shade := int(_grey(lines[[line]]).min())) < dark[1]:
            return line if shade < dark[0] else None
    return None


def _box_of_all(page: np.ndarray) -> Box | None:
    """Returns the box from the shades of all pixels; None for a page of one shade."""
    import torch

    grey = torch.cat([_grey(page[top : top + STRIP].copy()) for top in range(0, len(page), STRIP)])
    low, high = (int(value) for value in grey.aminmax())
    if low == high:
        return None
    limit = _limit(low, high)
    return _span(grey.amin(1) < limit), _span(grey.amin(0) < limit)


def _span(mask: Tensor) -> slice:
    """Returns what is from the first to the last index that is marked."""
    places = mask.nonzero()[:, 0]
    return slice(int(places[0]), int(places[-1]) + 1)


@lru_cache(maxsize=1024)
def _limit(low: int, high: int) -> int:
    """Returns the shade below which all are darker than THRESHOLD, where these two are stretched to 0 and 255."""
    import torch

    shades = torch.arange(low, high + 1, dtype=torch.uint8)
    return low + int(((shades - low) / (high - low) * 255 < THRESHOLD).sum())


def _grey(pixels: np.ndarray) -> Tensor:
    """Maps [n, length, 3] uint8 -> [n, length] uint8, as torchvision weighs and truncates"""
    import torch

    red, green, blue = torch.from_numpy(pixels).unbind(-1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).to(torch.uint8)


@cache
def _shades_of_grey() -> np.ndarray:
    """Returns the shades of pixels whose channels are alike, by their level."""
    import numpy as np

    levels = np.arange(256, dtype=np.uint8)
    return _grey(np.stack([levels] * 3, axis=-1)[None])[0].numpy()
