"""Checks of pages: the verdicts of olmOCR-bench on the same texts, kind by kind."""

from __future__ import annotations

import json

import pytest

from vlm.errors import InputError
from vlm_app.ocr.checks.check_file import read_checks, with_baselines
from vlm_app.ocr.checks.judging import failure
from vlm_app.ocr.checks.kinds.baseline import final_repeats
from vlm_app.ocr.checks.normalizing import normalized
from vlm_app.ocr.checks.tables.grid import MAX_COLUMNS, Draft, Table

MARKDOWN = """| Fish | Weight | Price |
| --- | ---: | ---: |
| cod | 1,204 | 3.10 |
| herring | 958 | 1.45 |
"""
# two rows of headings, of which the first spans columns, and a heading at the left that spans rows
SPANS = """<table><thead><tr><th rowspan="2">Sea</th><th colspan="2">Landed</th></tr>
<tr><th>1863</th><th>1864</th></tr></thead>
<tr><th rowspan="2">North</th><td>12</td><td>14</td></tr><tr><td>9</td><td>8<br>t</td></tr></table>"""
PUBLISHED = """
{"pdf": "multi_column_miss.pdf", "page": 1, "id": "m2", "type": "present", "text": "a \\"concept\\" is vague", "max_diffs": 2}
{"pdf": "headers_footers/ff0f.pdf", "page": 1, "id": "ff_02c", "type": "absent", "text": "1", "last_n": 20}
{"pdf": "buildingnotes.pdf", "page": 1, "id": "b0", "type": "present", "checked": "verified", "text": "Master Bath", "case_sensitive": false}
{"pdf": "openstax.pdf", "page": 1, "id": "o4", "type": "order", "before": "150.", "after": "157."}
{"pdf": "olmo2-pg4.pdf", "page": 1, "id": "t1", "type": "table", "cell": "3.32T", "left": "3.71T"}
{"pdf": "mathfuncs.pdf", "page": 1, "id": "mathfuncs_03", "type": "math", "math": "e^{i \\\\pi}+1=0"}
{"pdf": "blank_book_pg1.pdf", "page": 1, "id": "test1_blank", "type": "baseline", "checked": "verified", "max_length": 10}
"""  # noqa: E501


def check(folder, **fields):
    """Returns a check, by way of a file."""
    file = folder / "checks.jsonl"
    file.write_text(json.dumps({"pdf": "a.pdf", "page": 1, "id": "x", **fields}) + "\n", encoding="utf-8")
    [entry] = read_checks(file)
    return entry.check


@pytest.fixture
def passes(tmp_path):
    return lambda page, /, **fields: failure(check(tmp_path, **fields), page) is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("two  spaces\tand\nlines", "two spaces and lines"),
        ("**bold** and __bold__, *it* and _it_, <b>b</b><i>i</i>", "bold and bold, it and it, bi"),
        ("**over\nlines**", "over lines"),
        ("‘a’ “b” „c‚ – — ‑ ‒ − ＿ µ", "'a' \"b\" \"c' - - - - - _ μ"),
        ("cafe\u0301<br>au<br/>lait", "café au lait"),
        ("_italic__ is *bold*", "italic_ is bold"),
    ],
)
def test_normalized(text, plain):
    assert normalized(text) == plain


def test_presence(passes):
    page = "The ferry *Aurora* left at 07:45 with 312 guests."
    assert passes(page, type="present", text="Aurora left")
    assert not passes(page, type="present", text="aurora left")
    assert passes(page, type="present", text="aurora left", case_sensitive=False)
    assert not passes(page, type="absent", text="Aurora left")
    assert passes(page, type="absent", text="Boreas")


def test_max_diffs(passes):
    page = "This is some targettt text in a document"
    assert not passes(page, type="present", text="target text", max_diffs=1)
    assert passes(page, type="present", text="target text", max_diffs=2)
    assert not passes(page, type="absent", text="target text", max_diffs=2)
    assert passes("This is some targetttt text in a document", type="absent", text="target text", max_diffs=2)


def test_the_ends_of_a_page(passes):
    page = "beginning of text, middle part, but not the end"
    for text, ends in (("beginning", {"first_n": 20}), ("end", {"last_n": 5}), ("end", {"first_n": 5, "last_n": 5})):
        assert passes(page, type="present", text=text, **ends)
    for text, ends in (("end", {"first_n": 20}), ("middle", {"first_n": 15, "last_n": 10}), ("part", {"last_n": 8})):
        assert not passes(page, type="present", text=text, **ends)
    assert passes(page, type="present", text="middle", first_n=0, last_n=None), "0 and null are the whole page"


@pytest.mark.parametrize("page", ["", "\n", " a "])
def test_a_page_that_is_too_short_holds_no_text(passes, page):
    assert not passes(page, type="present", text="a long phrase")
    assert passes(page, type="absent", text="a long phrase")


def test_order(passes):
    page = "first and second, and first again"
    assert passes(page, type="order", before="first", after="second")
    assert passes(page, type="order", before="second", after="first"), "one of its places is enough"
    assert not passes(page, type="order", before="again", after="second")
    assert not passes(page, type="order", before="third", after="second")
    assert not passes(page, type="order", before="secand", after="again")
    assert passes(page, type="order", before="secand", after="again", max_diffs=1)
    assert not passes(page, type="order", before="first and", after="first and"), "nothing is before itself"


@pytest.mark.parametrize(
    ("fields", "is_met"),
    [
        ({}, True), ({"up": "1,204"}, True), ({"up": "Weight"}, False), ({"down": "cod"}, False),
        ({"left": "herring", "right": "1.45"}, True), ({"left": "cod"}, False), ({"top_heading": "Weight"}, True),
        ({"top_heading": "Price"}, False), ({"left_heading": "herring"}, True), ({"left": "hering"}, False),
        ({"left": "hering", "max_diffs": 1}, True), ({"ignore_markdown_tables": True}, False),
    ],
)  # fmt: skip
def test_markdown_tables(passes, fields, is_met):
    assert passes(f"Prices:\n\n{MARKDOWN}\nend", type="table", cell="958", **fields) == is_met


def test_a_table_needs_no_rule_and_no_outer_bars(passes):
    assert passes("Fish | Weight\ncod | 12", type="table", cell="12", top_heading="Weight", left="cod")
    assert not passes("only | a line", type="table", cell="only")
    assert not passes("no table: 12", type="table", cell="12")


@pytest.mark.parametrize(
    ("cell", "fields", "is_met"),
    [
        ("9", {"left": "North"}, True), ("9", {"up": "12", "right": "8 t"}, True), ("9", {"left": "Sea"}, False),
        ("North", {"right": "9"}, True), ("North", {"right": "12"}, True), ("North", {"right": "14"}, False),
        ("14", {"top_heading": "1864"}, True), ("14", {"top_heading": "Landed"}, True),
        ("14", {"top_heading": "1863"}, False), ("14", {"left_heading": "North"}, True),
        ("Landed", {"down": "1863", "left": "Sea"}, True), ("Landed", {"down": "1864"}, True),
        ("1863", {"left": "Sea"}, True),
    ],
)  # fmt: skip
def test_html_tables_with_spans(passes, cell, fields, is_met):
    assert passes(f"text\n{SPANS}\ntext", type="table", cell=cell, **fields) == is_met


def test_spans_beyond_the_table():
    table = Table.from_rows([[Draft("a", rowspan=3), Draft("b"), Draft("c", rowspan=2, colspan=10**9)]])
    a, b, c = table.cells
    assert table.right_of(a) == {b, c}, "below b, c is next"
    assert len(c.columns) == MAX_COLUMNS
    assert Table.from_rows([]) is None and Table.from_rows([[]]) is None


def test_baseline(passes):
    assert passes("A page.", type="baseline")
    assert not passes(" – \n", type="baseline")
    assert not passes("A page" + " ab" * 31, type="baseline")
    assert passes("A page" + " ab" * 30, type="baseline")
    assert not passes("汉字", type="baseline") and passes("汉字", type="baseline", check_disallowed_characters=False)
    assert passes("– 12 –", type="baseline", max_length=2) and not passes("page 12", type="baseline", max_length=2)
    assert passes("![a scan](a.png)", type="baseline", max_length=0, max_length_skips_image_alt_tags=True)
    assert final_repeats("xababab") == [1, 3, 1, 1, 1] and final_repeats("aa") == [2, 1, 0, 0, 0]


def test_formats(passes):
    page = "# A title\n\nwith **bold words** and *slanted* ones, <h2>More</h2> <em>too</em>"
    for text, name in (("A title", "heading"), ("More", "heading"), ("bold", "bold"), ("too", "italic")):
        assert passes(page, type="format", text=text, format=name)
        assert not passes(page, type="format", text=text, format="italic" if name != "italic" else "bold")
    assert passes(page, type="format", text="a TITLE", format="heading", case_sensitive=False)


def test_footnotes(passes):
    page = "As Smith says[^1] and Jones², <sup>3</sup> stand.\n\n[^1]: Smith 1863."
    assert passes(page, type="footnote", marker="1", appears_before_marker="Smith says")
    assert not passes(page, type="footnote", marker="1", appears_after_marker="Smith 1863"), "that is the note itself"
    assert passes(page, type="footnote", marker="2", appears_before_marker="Jones")
    assert passes(page, type="footnote", marker="3", appears_after_marker="stand")
    assert not passes(page, type="footnote", marker="4")


def test_published_lines_are_read_unchanged(tmp_path):
    file = tmp_path / "dataset.jsonl"
    file.write_text(PUBLISHED, encoding="utf-8")
    entries = read_checks(file)
    assert [entry.check.type for entry in entries] == "present absent present order table math baseline".split()
    assert [entry.line for entry in entries] == list(range(2, 9))
    assert "formulas" in entries[5].check.unjudged and not any(e.check.unjudged for e in entries if e != entries[5])
    added = with_baselines(entries)[len(entries) :]
    assert {entry.check.pdf for entry in added} == {e.check.pdf for e in entries} - {"blank_book_pg1.pdf"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "no JSON (Expecting property name enclosed in double quotes at column 2); write an object"),
        ("[1]", "is no JSON object"), ("[" * 100_000, "is no JSON"),
        ('{"type": "poem"}', "has the type 'poem'; allowed are present,"), ("{}", "has the type None"),
        ('{"type": "order", "pdf": "a", "page": 1, "id": "x", "before": "b"}', "has no after"),
        ('{"type": "present", "pdf": "a", "page": 1, "id": "x", "text": "b", "max_diff": 1}', "has 'max_diff'"),
        ('{"type": "present", "pdf": "a", "page": "1", "id": "x", "text": "b"}', "it must be a whole number"),
        ('{"type": "present", "pdf": "a", "page": 0, "id": "x", "text": "b"}', "the first page is 1"),
        ('{"type": "present", "pdf": "a", "page": 1, "id": "x", "text": " "}', "has an empty text"),
        ('{"type": "present", "pdf": "../a", "page": 1, "id": "x", "text": "b"}', "must be a path below"),
        ('{"type": "order", "pdf": "a", "page": 1, "id": "x", "before": "abcd", "after": "b", "max_diffs": 1}', "half"),
        ('{"type": "format", "pdf": "a", "page": 1, "id": "x", "text": "b", "format": "red"}', "allowed are heading"),
        ('{"type": "math", "pdf": "a", "page": 1, "id": "x", "math": "' + "x" * 2**20 + '"}', "is longer than"),
        ('{"type": "baseline", "pdf": "a", "page": 1, "id": "0"}', "has the id '0' of line 1"),
    ],
)  # fmt: skip
def test_a_line_that_is_no_check_is_one_sentence(tmp_path, line, says):
    file = tmp_path / "checks.jsonl"
    file.write_text('{"type": "baseline", "pdf": "a", "page": 1, "id": "0"}\n' + line + "\n")
    with pytest.raises(InputError) as error:
        read_checks(file)
    message = str(error.value)
    assert message.startswith(f"{file} line 2 ") and says in message and "\n" not in message and len(message) < 500


def test_a_file_without_checks_is_one_sentence(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, says in (("empty.jsonl", "holds no check"), ("none.jsonl", "cannot be read"), (".", "cannot be read")):
        with pytest.raises(InputError, match=says):
            read_checks(tmp_path / name)
