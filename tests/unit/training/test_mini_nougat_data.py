"""Training data and the packaged model's papers: what would silently spoil a training run or a claim."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from tests.checkout import ROOT
from training.nougat import evaluate, page_checks
from training.nougat.examples import draw_examples
from training.nougat.typesetting import fonts
from training.nougat.typesetting.pages import COLUMNS, DENSE, KINDS, MAX_TOKENS, ROWS, Renderer, encode
from training.nougat.typesetting.text import CHARACTERS, EOS, PAD, TOKEN, Writer, is_held_out, word_table
from vlm.processing.text.tokenization import Tokenizer
from vlm_app.ocr.checks.check_file import read_checks
from vlm_app.ocr.checks.judging import failure

ASSET = ROOT / "vlm" / "assets" / "mini-nougat"
FACES = fonts.installed()
with_fonts = pytest.mark.skipif(
    not set(FACES) - {fonts.HELD_OUT}, reason="none of the training fonts is installed with its three faces"
)


def test_held_out_words_are_never_in_training():
    training, held_out = (set(word_table(side)[0]) for side in (False, True))
    assert not training & held_out and len(held_out) > 500
    assert all(map(is_held_out, held_out)) and not any(map(is_held_out, training))
    text = " ".join(Writer(random.Random(0)).sentence(4000)).lower()
    rare = [word for word in held_out if len(word) > 7]
    assert not [word for word in rare if f" {word} " in text]


def test_a_font_that_is_missing_is_named_with_its_package(tmp_path):
    with pytest.raises(SystemExit, match="apt-get install fonts-liberation, or give "):
        draw_examples(Renderer(fonts.installed(tmp_path)), tmp_path)


@with_fonts
@pytest.mark.parametrize("kind", KINDS)
def test_pages_know_where_every_character_is(kind):
    renderer, rng = Renderer(FACES), random.Random(kind)
    for _ in range(6):
        sample = renderer.sample(rng, kind)
        arrays = encode(sample)
        length = len(sample.text)
        assert set(sample.text) <= set(CHARACTERS) and sample.text == sample.text.strip()
        assert arrays["tokens"][length] == EOS and (arrays["tokens"][length + 1 :] == PAD).all()
        assert "".join(CHARACTERS[t - 4] for t in arrays["tokens"][:length]) == sample.text
        assert arrays["cells"].shape == (MAX_TOKENS,) and arrays["cells"].max() < ROWS * COLUMNS
        assert arrays["dense"].shape == (ROWS * COLUMNS, DENSE)
        check_ink(sample)


def check_ink(sample) -> None:
    """Where a letter is said to be, the page is not blank."""
    image = sample.image.astype(int)
    paper = np.bincount(image[image > 0]).argmax()
    for character, x, y in sample.page.drawn:
        if character.isalnum():
            row, column = int(y + sample.top), int(x + sample.left)
            patch = image[max(0, row - 6) : row + 7, max(0, column - 5) : column + 6]
            assert patch.min() < paper - 25, (character, sample.text)


@with_fonts
def test_the_same_seed_draws_the_same_page():
    renderer = Renderer(FACES)
    first, again = (renderer.sample(random.Random(3), "mixed") for _ in range(2))
    assert first.text == again.text and np.array_equal(first.image, again.image)


def test_the_tokenizer_changes_nothing():
    tokenizer = Tokenizer.from_dir(ASSET)
    text = CHARACTERS + "  two  spaces\n\n\n| a | \\(x^{2}\\) #\t".replace("\t", "")
    ids = tokenizer.encode(text)
    assert ids == [TOKEN[c] for c in text] and tokenizer.decode([0, *ids, 2, 1, 1]) == text


@pytest.mark.parametrize(
    ("a", "b", "distance"), [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0), ("ab" * 80, "ba" * 80, 2)]
)
def test_edit_distance(a, b, distance):
    assert evaluate.edit_distance(a, b) == evaluate.edit_distance(b, a) == distance


def test_the_card_states_the_measured_figures():
    results = json.loads((ASSET / "eval.json").read_text())["results"]
    card = (ASSET / "README.md").read_text()
    assert results["held-out words"]["pages"] >= 512
    for kind in (*KINDS, "all"):
        cells = " | ".join(f"{100 * figures['cer'][kind]:.2f}%" for figures in results.values())
        assert cells in card, kind
    assert results["held-out words"]["cer"]["all"] <= 0.02
    for family, (_, licence, _) in fonts.FAMILIES.items():
        assert family in card and licence in card


def test_the_card_states_how_many_checks_pass():
    checks, card = json.loads((ASSET / "eval.json").read_text())["checks"], (ASSET / "README.md").read_text()
    assert checks["pages"] >= 80 and set(checks["rates"]) == {"clean", "degraded"}
    for kind in ("present", "absent", "order", "table", "baseline"):
        cells = [f"{100 * passed / judged:.1f}% of {judged}" for passed, judged in
                 (rates[kind] for rates in checks["rates"].values())]  # fmt: skip
        assert f"| {kind} | {' | '.join(cells)} |" in card
    for rates in checks["rates"].values():
        assert rates["all"][0] / rates["all"][1] >= 0.9


@with_fonts
def test_a_page_passes_the_checks_that_are_made_of_it(tmp_path):
    count = 2 * len(KINDS)  # in wide fonts the first page of tables may have no room for one
    page_checks.write(Renderer(FACES), tmp_path, count=count)
    pages = page_checks.checked_pages(Renderer(FACES), count, seed=17)
    for state in ("clean", "degraded"):
        entries = read_checks(tmp_path / f"{state}.jsonl")
        assert {entry.check.type for entry in entries} == {"present", "absent", "order", "table", "baseline"}
        for check in (entry.check for entry in entries):
            assert (tmp_path / check.pdf).is_file()
            text = pages[int(Path(check.pdf).stem)].text
            assert failure(check, text) is None, text
            other = "another page of which nothing is known"
            assert check.type in ("absent", "baseline") or failure(check, other) is not None


def test_the_weights_are_small_enough_to_ship():
    assert (ASSET / "model.safetensors").stat().st_size <= 14_000_000
