"""MinerU2.5 in small as users call it: pages are read part by part, by `vlm ocr`, `vlm run` and from Python."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import vlm
from tests.kits.cli_kit import call, one_sentence
from tests.kits.publications import qwen_kit
from visual_engines.answers.mineru_markdown import to_markdown
from visual_engines.families.mineru import ANGLES, ASKS, MINERU, READ
from vlm.errors import ImageError, InputError
from vlm.processing import processor as processors
from vlm.registry.page_steps import Block

pytestmark = pytest.mark.usefixtures("cache_of_module")
BLOCKS = [Block("title", (0.1, 0.05, 0.9, 0.2)), Block("text", (0.1, 0.25, 0.5, 0.6), ANGLES["right"]),
          Block("table", (0.5, 0.25, 0.9, 0.6)), Block("image", (0, 0.6, 1, 0.7)),
          Block("equation", (0.2, 0.7, 0.8, 0.9))]  # fmt: skip
LAYOUT = (56, 84)
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, whose tokenizer has what layouts are written with, and three pages beside it."""
    folder = tmp_path_factory.mktemp("mineru") / "hf"
    qwen_kit.save(folder, second=False)
    tokenizer = (folder / "tokenizer.json").read_text()
    for i, token in enumerate(MINERU.tokens):
        assert f'"w{i} "' in tokenizer
        tokenizer = tokenizer.replace(f'"w{i} "', f'"{token}"')
    (folder / "tokenizer.json").write_text(tokenizer)
    random = np.random.default_rng(4)
    for i in range(3):
        Image.fromarray(random.integers(0, 256, (200, 150, 3), np.uint8)).save(folder.parent / f"{i}.png")
    return folder


@pytest.fixture
def steps(monkeypatch):
    """Layouts as they would be; random weights write none. Some pages' may be others, by what the model wrote."""
    layouts: dict[str, list[Block]] = {}
    own = replace(MINERU, blocks=lambda answer: layouts.get(answer, BLOCKS), layout_size=LAYOUT)
    monkeypatch.setattr(processors, "page_steps", lambda engine, tokenizer: own)
    return layouts


def asked(pipe, picture: Image.Image, ask, **options):
    """Returns what one step writes by itself."""
    user = {"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": ask.prompt}]}
    written = pipe.generate(messages=[SYSTEM, user], **{**ask.settings, **options}).raw_text
    return written.removesuffix("<|im_end|>").removesuffix("<|endoftext|>")


def layout_of(pipe, page, **options) -> str:
    picture = Image.open(page).convert("RGB").resize(LAYOUT, Image.Resampling.BICUBIC)
    return asked(pipe, picture, MINERU.layout, **options)


def read(pipe, page, **options) -> str:
    """A page, step by step, cut as the publishers' client cuts it."""
    picture, parts = Image.open(page).convert("RGB"), []
    for block in BLOCKS:
        sides = (*picture.size, *picture.size)
        crop = picture.crop(tuple(share * side for share, side in zip(block.box, sides, strict=True)))
        if block.angle:
            crop = crop.rotate(block.angle, expand=True)
        ask = {"table": ASKS["table"], "equation": ASKS["equation"]}.get(block.kind, READ)
        parts.append((block, "" if block.kind == "image" else asked(pipe, crop, ask, **options)))
    return to_markdown(parts)


def test_a_model_is_known_by_its_tokenizer(folder, tmp_path):
    """Or by its name; other models of the same classes are none."""
    pipe = vlm.load(folder, device="cpu")
    assert pipe.processor.page_steps is MINERU and pipe.capabilities.reads_pages_in_steps
    shutil.copytree(folder, tmp_path / "MinerU2.5-2509-1.2B")
    tokenizer = tmp_path / "MinerU2.5-2509-1.2B" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace(MINERU.tokens[0], "w0 "))
    assert vlm.load(tokenizer.parent, device="cpu").processor.page_steps is MINERU
    tokenizer.parent.rename(tmp_path / "other")
    other = vlm.load(tmp_path / "other", device="cpu")
    assert other.processor.page_steps is None and not other.capabilities.reads_pages_in_steps


def test_pages_are_read_part_by_part(folder, steps):
    """Those of several together, and each as by itself; a prompt beside an image is a request of its own."""
    pipe = vlm.load(folder, device="cpu", max_batch_size=3)
    pages, how = [folder.parent / f"{i}.png" for i in range(3)], {"max_new_tokens": 6}
    expected = [read(pipe, page, **how) for page in pages]
    assert len(set(expected)) == 3
    inputs = [*({"images": [str(page)]} for page in pages), {"images": [str(pages[0])], "prompt": "read"}]
    found = pipe.generate(inputs, **how)
    assert [output.text for output in found[:3]] == expected
    assert all(output.finish_reason == "length" and len(output.token_ids) == 6 * 5 for output in found[:3])
    assert len(found[3].token_ids) == 6
    assert pipe.generate(pages[1], **how).text == expected[1]
    with pytest.raises(InputError, match="which is not streamed"):
        next(pipe.stream(images=[str(pages[0])]))


def test_a_layout_that_is_too_much_costs_one_page(folder, steps):
    pipe = vlm.load(folder, device="cpu", max_batch_size=2)
    pages, how = [folder.parent / f"{i}.png" for i in range(3)], {"max_new_tokens": 6}
    hostile, empty = (layout_of(pipe, pages[i], **how) for i in (0, 2))
    steps |= {hostile: [Block("text", (0, 0, 1, 1))] * 5000, empty: []}
    found = dict(pipe.as_completed([{"images": [str(page)]} for page in pages], on_error="yield", **how))
    assert isinstance(found[0], ImageError) and found[0].kind == "layout" and "5,000 parts" in str(found[0])
    assert found[1].text == read(pipe, pages[1], **how)
    assert (found[2].text, found[2].raw_text) == ("", empty)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_pages_of_a_job(workers, folder, steps, tmp_path):
    """Drawn in processes or here; a layout that is too much is a failed page, and the others are read."""
    pipe, how = vlm.load(folder, device="cpu"), {"max_new_tokens": 6, "seed": 0}
    pages = [folder.parent / f"{i}.png" for i in range(3)]
    steps[layout_of(pipe, pages[1], **how)] = [Block("text", (0, 0, 1, 1))] * 5000
    out = call("ocr", *pages, "--out", tmp_path, "--model", folder, "--device", "cpu", "--max-new-tokens", 6,
               "--workers", workers)  # fmt: skip
    assert out.exit_code == 1 and "the page's layout has 5,000 parts" in out.stderr
    for i in (0, 2):
        assert (tmp_path / f"{i}.md").read_text().strip() == read(pipe, pages[i], **how)


def test_pages_that_are_run(folder, steps):
    pages = [word for i in range(2) for word in ("--image", folder.parent / f"{i}.png")]
    how = ("--model", folder, "--device", "cpu", "--max-new-tokens", 6)
    out = call("run", *pages, *how, "--json")
    assert out.exit_code == 0, out.stderr
    pipe = vlm.load(folder, device="cpu")
    texts = [read(pipe, folder.parent / f"{i}.png", max_new_tokens=6) for i in range(2)]
    assert [json.loads(line)["text"] for line in out.stdout.splitlines()] == texts
    out = call("run", *pages[:2], *how, "--num-return-sequences", 2, "--temperature", 1)
    assert "a page that is read in steps has one output" in one_sentence(out)
    out = call("run", *pages[:2], *how, "--check-accuracy")
    assert "a page is read part by part; add --prompt" in one_sentence(out)


def test_layouts_of_random_weights_cost_nothing_but_the_page(folder):
    """As they are written, at the size that was published."""
    found = vlm.load(folder, device="cpu").generate(folder.parent / "0.png", max_new_tokens=4)
    assert (found.text, len(found.token_ids)) == ("", 4)
