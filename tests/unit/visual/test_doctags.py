"""DocTags -> markdown: pages as Granite-Docling writes them, and what a model may leave unfinished."""

from __future__ import annotations

import pytest

from visual_engines.answers.doctags import is_tag
from visual_engines.answers.doctags_markdown import to_markdown
from visual_engines.families.idefics3 import image_text

PLACE = "<loc_12><loc_34><loc_56><loc_78>"
ELEMENTS = {
    "title": ("<title>A paper</title>", "# A paper"),
    "headings": ("<section_header_level_1>1 One</section_header_level_1><section_header_level_6>Six"
                 "</section_header_level_6>", "## 1 One\n\n###### Six"),
    "texts": ("<text>a < b and\n c > d</text><paragraph>next</paragraph>", "a < b and c > d\n\nnext"),
    "a formula": ("<formula>x_1 = \\frac{1}{2}</formula>", "$$x_1 = \\frac{1}{2}$$"),
    "a formula in a text": ("<text>(<formula>x</formula>) and <formula>y</formula> hold</text>",
                            "($x$) and $y$ hold"),
    "parts of a line": ("<inline><text>see</text><formula>x</formula><text>there</text></inline>", "see $x$ there"),
    "lists": ("<unordered_list><list_item>• one</list_item><list_item>two</list_item></unordered_list>"
              "<ordered_list><list_item>first</list_item><list_item>second</list_item></ordered_list>",
              "- one\n- two\n\n1. first\n2. second"),
    "numbers that the page has": ("<ordered_list><list_item>3. third</list_item><list_item>4) fourth</list_item>"
                                  "</ordered_list>", "3. third\n4) fourth"),
    "a list in a list": ("<ordered_list><list_item>a<unordered_list><list_item>b</list_item><list_item>c</list_item>"
                         "</unordered_list></list_item><list_item>d</list_item></ordered_list>",
                         "1. a\n   - b\n   - c\n2. d"),
    "an item of no list": ("<list_item>- alone</list_item>", "- alone"),
    "code": ("<code><_Python_>def f(x):\n    return \"<title>\" + x\n</code>",
             '```python\ndef f(x):\n    return "<title>" + x\n```'),
    "code of an unknown language": ("<code><_unknown_>a\n```\nb</code>", "````\na\n```\nb\n````"),
    "boxes": ("<checkbox_selected>yes</checkbox_selected><checkbox_unselected>no</checkbox_unselected>",
              "- [x] yes\n\n- [ ] no"),
    "a picture": ("<picture><line_chart><caption>Figure 1: it grows</caption></picture>", "Figure 1: it grows"),
    "a picture without words": ("<picture><logo></picture><text>a</text>", "a"),
    "headers and footers": ("<page_header>IBM</page_header><text>a</text><page_footer>3</page_footer>", "a"),
    "a footnote": ("<footnote>1 see there</footnote>", "1 see there"),
    "a table": ("<otsl><caption>Table 1</caption><ched>a<ched>b|c<nl><fcel>1<ecel><nl></otsl>",
                "Table 1\n\n| a | b\\|c |\n| --- | --- |\n| 1 |  |"),
    "a table of spans": (
        "<otsl><ched>a & b<lcel><ched>c<nl><fcel>1<fcel>2<fcel>3<nl><ucel><fcel>4<lcel><nl></otsl>",
        '<table>\n<tr><th colspan="2">a &amp; b</th><th>c</th></tr>\n'
        '<tr><td rowspan="2">1</td><td>2</td><td>3</td></tr>\n<tr><td colspan="2">4</td></tr>\n</table>'),
    "cells in a square": ("<otsl><fcel>a<lcel><nl><ucel><xcel><nl></otsl>",
                          '<table>\n<tr><td colspan="2" rowspan="2">a</td></tr>\n<tr></tr>\n</table>'),
    "cells that go on from none": ("<otsl><lcel><fcel>a<nl><fcel>b<fcel>c<nl></otsl>",
                                   "<table>\n<tr><td></td><td>a</td></tr>\n<tr><td>b</td><td>c</td></tr>\n</table>"),
    "a table of formulas": ("<otsl><ched>a<nl><fcel><formula>x</formula><nl></otsl>", "| a |\n| --- |\n| $x$ |"),
    "a chart": ("<chart><bar_chart><caption>sales</caption><fcel>2023<fcel>1<nl><fcel>2024<fcel>2<nl></chart>",
                "sales\n\n| 2023 | 1 |\n| --- | --- |\n| 2024 | 2 |"),
    "fields of a form": ("<key_value_region><key_1>Name<link_2></key_1> <value_2>Ada</value_2></key_value_region>",
                         "Name Ada"),
    "a group": ("<group><text>a</text><text>b</text></group>", "a\n\nb"),
}  # fmt: skip
UNFINISHED = {
    "within a text": ("<text>a</text><text>bc d", "a\n\nbc d"),
    "within a tag": ("<text>a</text><sec", "a\n\n<sec"),
    "texts without ends": ("<text>a<text>b<title>c", "a\n\nb\n\n# c"),
    "items without ends": ("<unordered_list><list_item>a<list_item>b", "- a\n- b"),
    "within a row": ("<otsl><ched>a<ched>b<nl><fcel>1", "| a | b |\n| --- | --- |\n| 1 |  |"),
    "before any cell": ("<otsl>", ""),
    "within a formula": ("<text>a <formula>x", "a $x$"),
    "within code": ("<code><_C_>int x;", "```c\nint x;\n```"),
    "ends of what never began": ("</otsl></list_item><text>a</text></text></text>", "a"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("page", "markdown"), [*ELEMENTS.values(), *UNFINISHED.values()],
                         ids=[*ELEMENTS, *UNFINISHED])  # fmt: skip
def test_elements(page, markdown):
    """Alone in a page, and with places as they are written."""
    assert to_markdown(f"<doctag>{page}") == markdown
    placed = page.replace("<text>", f"<text>{PLACE}").replace("<otsl>", f"<otsl>{PLACE}")
    assert (
        to_markdown(f"<doctag>{placed}</doctag>\n" if page in dict(ELEMENTS.values()) else f"<doctag>{placed}")
        == markdown
    )


@pytest.mark.parametrize(
    "text", ["a dog <text> and a cat", "<title>of HTML</title>", "", "1 < 2", "<html><code>x</code>"]
)
def test_other_texts_stay_as_they_are(text):
    assert to_markdown(text) == text


@pytest.mark.parametrize(("text", "markdown"), [
    ("<formula>x</formula>", "$$x$$"),
    ("<otsl><fcel>a<nl></otsl>", "| a |\n| --- |"),
    (f"<text>{PLACE}a</text>", "a"),
])  # fmt: skip
def test_elements_without_a_page(text, markdown):
    """As the models answer what is asked of a part of one."""
    assert to_markdown(text) == markdown


@pytest.mark.parametrize("name", ["group", "unordered_list", "list_item", "otsl", "inline", "picture", "text"])
def test_elements_without_end_in_each_other(name):
    assert to_markdown("<doctag>" + f"<{name}>" * 8000 + "word").endswith("word")


@pytest.mark.parametrize("cell", ["<fcel>", "<ucel>"])
def test_tables_that_no_page_has(cell):
    """Rows are not filled up where that makes millions of cells."""
    found = to_markdown("<otsl>" + "<ched>a" * 4000 + "<nl>" + f"{cell}<nl>" * 4000)
    assert len(found) < 200_000 and found.count("\n") >= 4000


def test_tags_of_a_tokenizer():
    tags = ("<doctag>", "</doctag>", "<fcel>", "<nl>", "<section_header_level_3>", "<loc_500>", "<_python_>", "<key_",
            "</value_", "<link_7>")  # fmt: skip
    others = ("<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<|end_of_text|>",
              "<end_of_utterance>", "<unk>", "<repo_name>", "text")  # fmt: skip
    assert all(map(is_tag, tags)) and not any(map(is_tag, others))


def test_what_is_said_of_tiles():
    around, whole = "<fake_token_around_image>", "<global-img><image><fake_token_around_image>"
    assert image_text((0, 0)) == image_text(None) == f"{around}{whole}"
    assert image_text((2, 1)) == f"{around}<row_1_col_1><image>\n{around}<row_2_col_1><image>\n\n{around}{whole}"
