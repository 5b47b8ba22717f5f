"""MinerU2.5's layouts, its parts' pictures and its markdown, on answers as the model writes them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from visual_engines.answers.mineru_markdown import to_markdown
from visual_engines.families.mineru import MINERU, ask, blocks
from vlm.api.outputs import Output
from vlm.api.pages_in_steps import PagesInSteps, lone_image
from vlm.errors import ImageError, InputError
from vlm.limits import MAX_PAGE_BLOCKS
from vlm.processing.media.documents.page_parts import PageImage, check_blocks
from vlm.registry.page_steps import Block

PAGE = (
    "<|box_start|>101 080 899 120<|box_end|><|ref_start|>title<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 150 480 400<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"
    "<|box_start|>520 150 900 300<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|><|txt_contd_tgt|>\n"
    "<|box_start|>100 420 900 600<|box_end|><|ref_start|>table<|ref_end|><|rotate_right|>\n"
    "<|box_start|>110 430 300 450<|box_end|><|ref_start|>text<|ref_end|><|rotate_up|>\n"
    "<|box_start|>300 620 700 660<|box_end|><|ref_start|>equation<|ref_end|><|rotate_up|>\n"
    "<|box_start|>100 680 900 900<|box_end|><|ref_start|>image<|ref_end|><|rotate_up|>\n"
    "<|box_start|>490 950 510 970<|box_end|><|ref_start|>page_number<|ref_end|><|rotate_up|><|im_end|>"
)


def line(box: str, kind: str = "text", turn: str = "<|rotate_up|>") -> str:
    return f"<|box_start|>{box}<|box_end|><|ref_start|>{kind}<|ref_end|>{turn}"


def test_a_layout_is_read_in_its_order():
    found = blocks(PAGE)
    kinds = [block.kind for block in found]
    assert kinds == ["title", "text", "text", "table", "equation", "image", "page_number"]  # no text of the table
    assert found[0].box == (0.101, 0.08, 0.899, 0.12) and [b.angle for b in found] == [0, 0, 0, 90, 0, 0, 0]
    assert [block.goes_on for block in found] == [False, False, True, False, False, False, False]
    asked = [each and each.prompt for each in map(ask, found)]
    text, table, formula = (f"\n{what} Recognition:" for what in ("Text", "Table", "Formula"))
    assert asked == [text, text, text, table, formula, None, None]


HOSTILE = {
    "none": ("", 0),
    "words": ("the page shows a table", 0),
    "reversed": (line("900 400 100 150"), 1),
    "empty": (line("100 100 100 400") + line("100 400 300 400"), 0),
    "outside": (line("100 100 1001 400") + line("100 100 99999 400"), 0),
    "cut off": (line("100 100 900 400") + "<|box_start|>100 500 9", 1),
    "of no kind": (line("100 100 900 400", "spaceship"), 0),
    "no turn": (line("100 100 900 400", turn=""), 1),
    "doubles": (line("100 100 900 400") * 3000 + line("100 100 900 401"), 1),
    "numbers in words": (line("one 100 900 400"), 0),
    "signs": (line("-1 100 900 400"), 0),
    "nested": ("<|box_start|>" * 5000 + line("100 100 900 400"), 0),  # looked at no further
}


@pytest.mark.parametrize(("layout", "count"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_layouts(layout, count):
    found = blocks(layout)
    assert len(found) == count
    assert all(0 <= b.box[0] < b.box[2] <= 1 and 0 <= b.box[1] < b.box[3] <= 1 for b in found)


def test_a_page_has_no_thousands_of_parts_nor_is_covered_often():
    many = blocks("".join(line(f"{x} {y} {x + 1} {y + 1}") for x in range(0, 40, 2) for y in range(0, 80, 2)))
    assert len(many) > MAX_PAGE_BLOCKS
    with pytest.raises(ImageError, match="the page's layout has 800 parts, at most 512 are read") as failed:
        check_blocks(many)
    assert failed.value.kind == "layout"
    with pytest.raises(ImageError, match="cover it 5 times"):
        check_blocks([Block("text", (0, 0, 1, 1))] * 5)
    check_blocks(blocks(PAGE))


def test_pictures_of_parts():
    """Cut from the whole page, turned upright, with a margin or larger where the model needs it."""
    page = np.random.default_rng(0).integers(0, 256, (400, 200, 3), np.uint8)
    image = PageImage(Image.fromarray(page), MINERU)
    assert image.picture().size == (1036, 1036)
    part = lambda box, angle=0: np.asarray(image.part(Block("text", box, angle)))  # noqa: E731
    np.testing.assert_array_equal(part((0.1, 0.25, 0.5, 0.5)), page[100:200, 20:100])
    np.testing.assert_array_equal(part((0.1, 0.25, 0.5, 0.5), 90), np.rot90(page[100:200, 20:100]))
    np.testing.assert_array_equal(part((0.1, 0.25, 0.5, 0.5), 270), np.rot90(page[100:200, 20:100], 3))
    assert part((0, 0.5, 1, 0.51)).shape[:2] == (28, 1400)  # 4 pixels high
    thin = part((0.5, 0, 0.501, 1))  # of one pixel, between margins: a fiftieth of its height, and then larger
    assert thin.shape[:2] == (1400, 28) and (thin[:, 0] == 255).all() and not (thin[:, 14] == 255).all()


TABLE = "<fcel>a<fcel>b | c<nl><fcel>1 < 2<ecel><nl>"
SPANNED = "<fcel>both<lcel><nl><fcel>x<fcel>y & z<nl>"
TEXTS = {
    "title": ("title", "A\ntitle", "# A title"),
    "heading": ("paragraph_title", "1 Aims", "## 1 Aims"),
    "formula": ("equation", "\\[\nE = mc^2\n\\]", "$$\nE = mc^2\n$$"),
    "bare formula": ("equation", "x_1", "$$\nx_1\n$$"),
    "half a formula": ("equation", "\\[ x", "$$\n\\[ x\n$$"),
    "table": ("table", TABLE, "| a | b \\| c |\n| --- | --- |\n| 1 < 2 |  |"),
    "wide cells": ("table", SPANNED, '<table>\n<tr><td colspan="2">both</td></tr>\n'
                   "<tr><td>x</td><td>y &amp; z</td></tr>\n</table>"),
    "html": ("table", "<table><tr><td>1</td></tr></table>", "<table><tr><td>1</td></tr></table>"),
    "code": ("code", "x = 1", "```\nx = 1\n```"),
    "nothing": ("text", "[Non-Text]", ""),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "answer", "markdown"), TEXTS.values(), ids=TEXTS)
def test_markdown_of_a_part(kind, answer, markdown):
    assert to_markdown([(Block(kind, (0, 0, 1, 1)), answer)]) == markdown


def test_texts_that_go_on():
    first, between, second = (
        Block("text", (0, 0, 1, 1)),
        Block("image", (0, 0, 1, 1)),
        Block("text", (0, 0, 1, 1), 0, True),
    )
    assert to_markdown([(first, "one"), (between, ""), (second, "two"), (first, "three")]) == "one two\n\nthree"
    assert to_markdown([(first, "一"), (second, "二")]) == "一二"
    assert to_markdown([(second, "二")]) == "二"  # after nothing


def output(raw: str, reason: str = "eos", token: int = 5) -> Output:
    return Output(raw, raw, [token], reason, [-0.5], 7)


def begun() -> tuple[PagesInSteps, Image.Image]:
    pages, image = PagesInSteps(MINERU), Image.new("RGB", (100, 100), "white")
    fields, settings = pages.begin(3, {"images": [image], "lora": "books"}, 1)
    assert fields["lora"] == "books" and settings["skip_special_tokens"] is False
    fields["images"][0].picture()
    return pages, image


def test_a_page_ends_as_the_worst_of_its_steps():
    pages, _ = begun()
    more, whole = pages.take(3, output(PAGE))
    assert len(more) == 5 and whole == []
    for i, (number, part) in enumerate(more):
        fields, settings = pages.begin(number, part, 1)
        assert fields["lora"] == "books" and fields["messages"].messages[0].text == "You are a helpful assistant."
        assert settings["presence_penalty"] == 1.0
        following, whole = pages.take(number, output(f"w{i}<|im_end|>", ("eos", "loop", "length")[i % 3], token=i))
        assert following == []
    [(number, page)] = whole
    assert number == 3 and page.finish_reason == "loop" and page.token_ids == [5, 0, 1, 2, 3, 4]
    assert page.text == "# w0\n\nw1 w2\n\nw3\n\n$$\nw4\n$$" and len(page.logprobs) == 6
    assert page.raw_text == "\n\n".join([PAGE.removesuffix("<|im_end|>"), "w0", "w1", "w2", "w3", "w4"])


def test_a_part_that_fails_costs_its_page_alone():
    pages, image = begun()
    more, _ = pages.take(3, output(PAGE))
    other, settings = pages.begin(4, image, 1)
    assert other["images"] and settings
    error = InputError("no room.")
    assert pages.take(more[0][0], error) == ([], [(3, error)])
    assert pages.take(more[1][0], output("late")) == ([], [])
    with pytest.raises(InputError, match="another part of the page"):  # and what has not begun does not
        pages.begin(*more[2], 1)
    [(number, empty)] = pages.take(4, output("no layout"))[1]
    assert (number, empty) == (4, replace(output("no layout"), text=""))


def test_a_layout_that_is_too_much_costs_its_page():
    pages, _ = begun()
    layout = "".join(line(f"{x} 0 {x + 500} 1000") for x in range(0, 500, 30))
    more, [(number, error)] = pages.take(3, output(layout))
    assert more == [] and number == 3 and isinstance(error, ImageError) and "cover it" in str(error)


def test_what_is_no_page():
    picture = Image.new("RGB", (9, 9))
    for source in ("a question", {"images": [picture], "prompt": "read"}, {"images": [picture, picture]},
                   {"messages": []}, {"prompt": "read"}):  # fmt: skip
        assert lone_image(source) is None
    for source in (picture, {"images": [picture], "prompt": None}, {"images": picture, "lora": 1}):
        assert lone_image(source) is picture
    pages = PagesInSteps(MINERU)
    assert pages.begin(0, "a question", 3) == ("a question", {})
    assert pages.take(0, output("w")) == ([], [(0, output("w"))])
    with pytest.raises(InputError, match="has one output"):
        pages.begin(1, picture, 2)
