"""Model folders of which one value of one JSON file is another: they are converted, built and run, or refused in one
sentence."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.kits.models.families import MODELS
from tests.kits.publications import florence_kit, idefics3_kit, lighton_kit, pix2struct_kit, qwen_kit
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.locate import packaged_models
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import VlmError

pytestmark = pytest.mark.slow
GONE = object()
VALUES = (
    None, GONE, -1, 0, 1, 2, 7, 10**12, 1e400, float("nan"), 0.5, "x", "", "1", "{{ 1/0 }}", [], [1], [None], ["a", 2],
    {}, {"a": 1}, True, False,
)  # fmt: skip
PUBLISHED = {  # with their processors and tokenizers -> what is asked of them beside an image
    "florence2": (lambda folder: florence_kit.write(florence_kit.florence2(), folder, remote=False), {}),
    "florence2, Microsoft's": (lambda folder: florence_kit.write(florence_kit.florence2(), folder, remote=True), {}),
    "idefics3": (idefics3_kit.save, {}),
    "lighton-ocr": (lighton_kit.save, {}),
    "pix2struct": (lambda folder: pix2struct_kit.save(folder, is_vqa=True), {"question": "a b"}),
    "qwen-vl": (qwen_kit.save, {"prompt": "a b"}),
    "mini-nougat": (lambda folder: shutil.copytree(packaged_models()["mini-nougat"], folder), {}),
    "mini-llava": (lambda folder: shutil.copytree(packaged_models()["mini-llava"], folder), {"prompt": "a b"}),
}
UNREAD = ("eval.json", "vocab.json")
SMALL = 2**21  # bytes


def places(value: Any, above: tuple = ()) -> Iterator[tuple]:
    """Yields where values stand in a JSON document, but for the whole."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(min(len(value), 4)):
            yield (*above, key)
            yield from places(value[key], (*above, key))


def mutate(folder: Path, draw: random.Random) -> str:
    """Changes one value in one of a folder's JSON files, and says which."""
    files = sorted(f for f in folder.glob("*.json") if f.name not in UNREAD and f.stat().st_size < SMALL)
    file = draw.choice([f for f in files if not f.name.endswith("index.json")])
    document = json.loads(file.read_text("utf-8"))
    *above, last = draw.choice(list(places(document)))
    part = document
    for key in above:
        part = part[key]
    value = draw.choice(VALUES)
    if value is GONE:
        del part[last]
    else:
        part[last] = value
    file.write_text(json.dumps(document), "utf-8")
    return f"{file.name} {[*above, last]} {'gone' if value is GONE else value!r}"


@contextlib.contextmanager
def one_sentence(what: str) -> Iterator[None]:
    """Takes errors that people are told, which have a line, and fails on all others."""
    try:
        yield
    except VlmError as error:
        assert str(error) and "\n" not in str(error), what
    except Exception as error:
        raise AssertionError(what) from error


def mutants(source: Path, folder: Path, *, count: int, seed: str) -> Iterator[tuple[Path, str]]:
    draw = random.Random(seed)
    for _ in range(count):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder / "model")
        yield folder, mutate(folder / "model", draw)


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_converted_or_refused(name, tmp_path):
    MODELS[name]().save_pretrained(tmp_path / "hf")
    for folder, what in mutants(tmp_path / "hf", tmp_path / "mutant", count=12, seed=name):
        with one_sentence(what):
            convert_folder(folder / "model", folder / "checkpoint")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_runs_or_is_refused(name, tmp_path):
    save, asked = PUBLISHED[name]
    save(tmp_path / "hf")
    pixels = np.random.default_rng(0).integers(0, 255, (120, 90, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    for folder, what in mutants(tmp_path / "hf", tmp_path / "mutant", count=12, seed=name):
        with one_sentence(what), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            checkpoint = Checkpoint.open(convert_folder(folder / "model", folder / "checkpoint").path)
            pipe = Pipeline(build_engine(checkpoint, folder / "engine", BuildConfig()), RuntimeConfig(device="cpu"))
            pipe.generate([{"images": [str(tmp_path / "image.png")]} | asked], max_new_tokens=3)
