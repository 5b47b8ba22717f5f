"""The packaged model, which is trained: Hugging Face's tokens on real pages, and pages read as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, VisionEncoderDecoderModel

import vlm
from tests.checkout import ROOT
from tests.kits.models import tiny
from training.nougat import foreign
from training.nougat.typesetting import fonts
from vlm.config import RuntimeConfig

FACES = fonts.installed()
FOLDER = ROOT / "vlm" / "assets" / "mini-nougat"
PAGES = {name: ROOT / "examples" / f"{name}.png" for name in ("page", "table", "math")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def inputs() -> list[Image.Image]:
    """The example pages, and what becomes of them when they are cropped, noisy or blank: nine, of very different
    lengths."""
    pages = [Image.open(path).convert("RGB") for path in PAGES.values()]
    rng = np.random.default_rng(0)
    noisy = [Image.fromarray((np.asarray(p) - rng.integers(0, 60, (*p.size[::-1], 1))).clip(0, 255).astype(np.uint8))
             for p in pages]  # fmt: skip
    cropped = [page.crop((0, 0, page.width, height)) for page, height in zip(pages, (140, 330, 520), strict=True)]
    return [pages[0], cropped[0], noisy[1], pages[1], cropped[1], Image.new("RGB", (900, 900), "white"), pages[2],
            cropped[2], noisy[0]]  # fmt: skip


@pytest.fixture(scope="module")
def reference(inputs) -> list[list[int]]:
    """Hugging Face's greedy tokens of each page, in FP32; images are of one size, no page sees another."""
    model = VisionEncoderDecoderModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(FOLDER)
    pixels = torch.cat([processor(image, return_tensors="pt").pixel_values for image in inputs])
    return tiny.hf_tokens(model, pixels, 280)


def load(cache, **runtime):
    return vlm.load("mini-nougat", cache_dir=cache, runtime=RuntimeConfig(device="cpu", **runtime))


def test_the_pages_differ_in_length(reference):
    assert len({len(tokens) for tokens in reference}) >= 6 and max(map(len, reference)) > 200


LONGER = pytest.mark.slow  # a step a token: a longer case of the two others, and of tiny models' in test_nougat


@pytest.mark.parametrize(
    "runtime",
    [
        {},
        {"max_batch_size": 4, "burst": 4, "block_size": 8},
        pytest.param({"max_batch_size": 1, "burst": 1}, marks=LONGER),
    ],
)
def test_tokens_equal_hugging_faces(cache, inputs, reference, runtime):
    model = vlm.load(
        "mini-nougat", cache_dir=cache, max_batch_size=9, runtime=RuntimeConfig(device="cpu")
    ) if not runtime else load(cache, **runtime)  # fmt: skip
    found = model.generate(inputs, max_new_tokens=280, loop_detection=False)
    assert [out.token_ids for out in found] == reference


def test_the_examples_are_read_without_an_error(cache):
    found = load(cache).generate(list(PAGES.values()))
    for path, out in zip(PAGES.values(), found, strict=True):
        assert out.text == path.with_suffix(".txt").read_text().strip()
        assert out.finish_reason == "eos"


def character_errors(cache, sheets) -> float:
    found = load(cache).generate([sheet.image for sheet in sheets])
    [rates] = foreign.score(sheets, [out.text for out in found]).values()
    return rates["cer"]


def test_pages_that_pillow_draws_in_its_own_font_are_read(cache):
    """Many sizes, margins and spacings, no full stops, in a font that no training page shows."""
    assert character_errors(cache, foreign.own_font_pages(8)) <= 0.02


@pytest.mark.skipif("DejaVuSans" not in FACES, reason="DejaVu Sans is not installed with its three faces")
def test_letter_pages_in_lower_case_without_a_full_stop_are_read(cache):
    assert character_errors(cache, foreign.issue_pages(FACES)) <= 0.02
