"""Post-processing: ordinary pages stay as they are, known failures are mended."""

from __future__ import annotations

import time

import pytest

from visual_engines.answers.nougat_markdown import MISSING, to_markdown

ORDINARY = [
    "# Title\n\nA paragraph, with **bold words** and \\(x^{2}+\\alpha\\) inside.",
    "## 2.1 Results\n\n- one thing\n- another\n\nThe end: 3.14, $5 & 50%.",
    "Text.\n\n\\[\\frac{a}{b}=c_{1}\\]\n\nMore text",
    "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |",
    "1. first\n2. second\n3. third",
    "\\begin{table}\n\\begin{tabular}{l l} a & b \\\\ \\end{tabular}\n\\end{table}\nTable 1: numbers.",
    "a_b and c-d, e*f (g) [h] {i} <j>",
    "**Result** x - y, and what stands before the dash stays",
    "- the sum \\(a - b\\) and\n* one sign - in the other's list",
    "an open ``` fence",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_is_left_alone_and_twice_is_as_once(text):
    assert to_markdown(text) == text
    assert to_markdown(f"\n{text}\n\n") == text


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", ""),
        ("Body.\n\n## Made up", "Body."),
        ("# Only a title", "# Only a title"),
        ("# 3.\nText", "Text"),
        ("A.\n\n\n\n\nB.", "A.\n\nB."),
        ("(1.2) \\[x=y\\]", "\\[x=y \\tag{1.2}\\]"),
        ("\\[x=y\\] (4a)", "\\[x=y \\tag{4a}\\]"),
        ("see https://example.org/a?b=1 now", "see [https://example.org/a?b=1](https://example.org/a?b=1) now"),
        ("let _x_ be", "let \\(x\\) be"),
        ("- one - two - three", "- one\n- two\n- three"),
        ("- I. One - I.1 Two - I.1.1 Three - II. Four", "- I. One\n\t- I.1 Two\n\t\t- I.1.1 Three\n- II. Four"),
        ("* 3. Three * 4. Four", "* 3. Three\n* 4. Four"),
        ("``` a = b ``` and ```", "```\na = b\n``` and ```"),
        ("7\n\nText.", "Text."),
        ("* 1 one * 1.1 two", "* 1 one\n\t* 1.1 two"),
        ("\\bm{v}", "\\mathbf{v}"),
        ("A \\begin{table} \\begin{tabular}{l} a \\end{tabular} \\end{table} Table 1",
         "A \n\\begin{table}\n\\begin{tabular}{l} a \\end{tabular}\n\\end{table}\nTable 1"),
        ("x\n" + "& " * 401 + "\ny", "x\n\ny"),
        ("Text.\n.\nMore.", "Text.\n\nMore."),
    ],
)  # fmt: skip
def test_known_failures_are_mended(text, want):
    assert to_markdown(text) == want


@pytest.mark.parametrize(
    "start", ["\\begin{tabular}{l l}", "```", "# ", "* [1]", "[FOOTNOTE:", "https://a.", "\nFootnote 1:"]
)
@pytest.mark.parametrize("filler", [" ", "\n", "& ", " A.", "a."])
def test_endless_output_takes_no_endless_time(start, filler):
    begin = time.process_time()  # of this process: a busy machine does not add to it
    to_markdown(start + filler * 4000 + "x")
    assert time.process_time() - begin < 20


def test_a_repeating_tail_keeps_its_first_turn():
    turn = " The experiment was carried out in the usual way."
    assert to_markdown("Start." + turn * 6) == "Start." + turn
    assert to_markdown("Start." + turn) == "Start." + turn


def test_references_that_never_end_become_a_mark():
    lines = "\n".join(f"* [{i}] Smith, J. et al. A paper about things, {1990 + i}." for i in range(40))
    found = to_markdown(f"Text before.\n\n## References\n\n{lines}")
    assert MISSING in found and found.count("Smith") == 0 and found.startswith("Text before.")
    few = "\n".join(f"* [{i}] Smith, J. et al. A paper about things, {1990 + i}." for i in range(5))
    assert few in to_markdown(f"Text before.\n\n{few}")
