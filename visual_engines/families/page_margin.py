"""The margin of a page as Nougat's image processor finds it, from the few rows and columns where it can end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image
    from torch import Tensor

THRESHOLD = 200  # of a page's shades, from 0 to 255: what is darker is no margin
STRIP = 64  # rows, whose intermediate floats stay in the processor's cache
CANDIDATES = 16  # rows or columns that are looked at for an end of the margin

Box = tuple[int, int, int, int]  # left, top, right, bottom, as Pillow has it


def content_box(page: Image.Image) -> Box | None:
    """Returns the box of what is darker than THRESHOLD on the page's own scale of 0 to 255; None for one shade."""
    return _likely_box(page) or _sure_box(page)


def _likely_box(page: Image.Image) -> Box | None:
    """Returns the box where a few rows and columns prove it; None where only all pixels tell.

    Pillow's shades, which cost a tenth, are those of `_grey` or one lighter.
    """
    import numpy as np

    shades = np.asarray(page.convert("L"))
    rows, columns, lightest = shades.min(axis=1), shades.min(axis=0), shades.max(axis=1)
    low = int(_row(page, int(rows.argmin())).min())  # at most; and at least one less than Pillow's
    high = int(_row(page, int(lightest.argmax())).max())  # at least; and at most Pillow's
    if low >= high:
        return None
    # a shade more on each side than rounding can make of them
    dark = _limit(max(0, int(rows.min()) - 1), high) - 1, _limit(low, int(lightest.max())) + 1
    left, right = _ends(columns, dark, lambda line: _column(page, line))
    top, bottom = _ends(rows, dark, lambda line: _row(page, line))
    if left is None or top is None or right is None or bottom is None:
        return None
    return left, top, right + 1, bottom + 1


def _ends(shades: np.ndarray, dark: tuple[int, int], grey: Callable[[int], Tensor]) -> tuple[int | None, int | None]:
    """Returns the first and the last of some lines with a shade below a limit that is within `dark`; None where that is
    not sure. `shades`: of each line Pillow's darkest, `grey`: all of one line."""
    candidates = (shades <= dark[1]).nonzero()[0].tolist()
    return _first(candidates, dark, grey), _first(candidates[::-1], dark, grey)


def _first(candidates: list[int], dark: tuple[int, int], grey: Callable[[int], Tensor]) -> int | None:
    for line in candidates[:CANDIDATES]:
        if (shade := int(grey(line).min())) < dark[1]:
            return line if shade < dark[0] else None
    return None


def _sure_box(page: Image.Image) -> Box | None:
    """Returns the box from the shades of all pixels; None for a page of one shade."""
    import torch

    strips = (page.crop((0, top, page.width, min(top + STRIP, page.height))) for top in range(0, page.height, STRIP))
    grey = torch.cat([_grey(strip) for strip in strips])
    low, high = (int(value) for value in grey.aminmax())
    if low == high:
        return None
    dark = grey < _limit(low, high)
    (top, bottom), (left, right) = (_span(dark.any(axis)) for axis in (1, 0))
    return left, top, right, bottom


def _span(mask: Tensor) -> tuple[int, int]:
    """Returns the first index that is marked, and the one after the last."""
    places = mask.nonzero()[:, 0]
    return int(places[0]), int(places[-1]) + 1


def _limit(low: int, high: int) -> int:
    """Returns the shade below which all are darker than THRESHOLD, where these two are stretched to 0 and 255."""
    import torch

    shades = torch.arange(low, high + 1, dtype=torch.uint8)
    return low + int(((shades - low) / (high - low) * 255 < THRESHOLD).sum())


def _row(page: Image.Image, line: int) -> Tensor:
    return _grey(page.crop((0, line, page.width, line + 1)))


def _column(page: Image.Image, line: int) -> Tensor:
    return _grey(page.crop((line, 0, line + 1, page.height)))


def _grey(page: Image.Image) -> Tensor:
    """Returns shades [H, W] uint8, as torchvision weighs and truncates."""
    import numpy as np
    import torch

    red, green, blue = torch.from_numpy(np.array(page)).unbind(-1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).to(torch.uint8)
