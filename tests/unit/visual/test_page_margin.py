"""The margin of a page: the box that transformers' class cuts out, found from a few rows and columns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import NougatImageProcessor

from visual_engines.images import page_margin
from visual_engines.images.page_margin import content_box


def page(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Returns [H, W, 3] uint8."""
    height, width = generator.integers(40, 160, 2)
    paper, ink = {"coloured": ((240, 244, 219), (90, 20, 160)), "dark": ((70, 70, 70), (10, 10, 10))}.get(
        kind, ((255, 255, 255), (0, 0, 0))
    )
    pixels = np.full((height, width, 3), paper, np.float64)
    top, left = generator.integers(0, [height // 2, width // 2])
    down, across = generator.integers(1, [height // 2, width // 2])
    pixels[top : top + down, left : left + across] = ink
    if kind in ("scan", "coloured", "dark"):
        pixels += generator.normal(0, 6, pixels.shape[: 2 if kind == "scan" else 3] + (1,) * (kind == "scan"))
    if kind == "faint":  # its edges are at the limit
        pixels[top] = generator.integers(190, 210, (width, 3))
        pixels[:, left] = generator.integers(190, 210, (height, 3))
    if kind == "photo":
        pixels = generator.integers(0, 256, pixels.shape).astype(float)
    return pixels.clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("kind", ["drawn", "scan", "coloured", "dark", "faint", "photo"])
def test_the_box_is_that_of_transformers_class(kind):
    generator, theirs = np.random.default_rng(7), NougatImageProcessor()
    for _ in range(40):
        pixels = page(kind, generator)
        expected = theirs.crop_margin(torch.from_numpy(pixels).permute(2, 0, 1)).permute(1, 2, 0)
        assert np.array_equal(pixels[content_box(pixels)], expected.numpy())


def test_a_page_of_one_shade_has_no_content():
    for shade in ((0, 0, 0), (255, 255, 255), (10, 200, 90)):
        assert content_box(np.full((9, 7, 3), shade, np.uint8)) is None


@pytest.mark.parametrize("kind", ["drawn", "scan", "coloured"])
def test_of_most_pages_a_few_rows_and_columns_are_looked_at(kind, monkeypatch):
    """Rather than every pixel, which takes ten times as long."""
    monkeypatch.setattr(page_margin, "_box_of_all", lambda page: pytest.fail("every pixel was looked at"))
    generator = np.random.default_rng(7)
    for _ in range(10):
        content_box(page(kind, generator))
