"""Where the texts of checked pages come from, what is wrong with them, and what judging may cost."""

from __future__ import annotations

import json

import pytest

from tests.kits.cli_kit import call
from vlm.errors import InputError
from vlm.processing.workers.process import Budget
from vlm_app.ocr.checks.check_file import read_checks
from vlm_app.ocr.checks.judging import Judge, failure
from vlm_app.ocr.checks.rates import Rate, interval, mean_percent
from vlm_app.ocr.checks.readings import Documents, Reading
from vlm_app.ocr.checks.score import judged
from vlm_app.ocr.checks.text_folder import read_texts
from vlm_app.ocr.events import Opened, PageFailed, PageRead, Unreadable


def entries(folder, *checks):
    """Returns checks that a file in the folder holds; each is (document, page) or has fields, too."""
    file = folder / "checks.jsonl"
    default = {"type": "present", "text": "cod"}
    rows = [{"pdf": pdf, "page": page, "id": str(i), **dict(*fields or (default,))}
            for i, (pdf, page, *fields) in enumerate(checks)]  # fmt: skip
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_checks(file)


def texts(folder, *checks):
    found = read_texts(entries(folder, *checks), folder)
    return {(pdf, page): reading.texts for (_, pdf, page), reading in found.items()}


def record(page, text):
    return json.dumps({"text": text, "metadata": {"page": page}})


def test_texts_of_a_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("the text\n\n<!-- page 1: the text repeats itself -->\n")
    (tmp_path / "b.png.md").write_text("of the image\n")
    (tmp_path / "c.jsonl").write_text(f"{record(1, 'one')}\n{record(2, 'two')}\n")
    for number, text in (("1", "first"), ("2", "second"), ("10", "third")):
        (tmp_path / f"d_pg1_repeat{number}.md").write_text(text)
    (tmp_path / "d_pg11_repeat1.md").write_text("another page")
    assert texts(tmp_path, ("sub/a.pdf", 1), ("b.png", 1), ("c.pdf", 2), ("d.pdf", 1), ("e.pdf", 1)) == {
        ("sub/a.pdf", 1): ("the text",), ("b.png", 1): ("of the image",), ("c.pdf", 2): ("two",),
        ("d.pdf", 1): ("first", "third", "second"), ("e.pdf", 1): (),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        ([("gone.pdf", 1)], "line 1 is about gone.pdf, of which, as of all others, there is no text"),
        ([("c.pdf", 1), ("c.pdf", 3)], "line 2 is about page 3, which is not in"),
        ([("a.pdf", 1), ("a.pdf", 2)], "line 2 is about page 2, and"), ([("bad.pdf", 1)], "line 1 is no page"),
        ([("d.pdf", 1), ("d.pdf", 2)], "line 2 is about page 2, of which there is no text"),
    ],
)  # fmt: skip
def test_texts_that_are_not_there_are_one_sentence(tmp_path, checks, says):
    (tmp_path / "a.md").write_text("text")
    (tmp_path / "c.jsonl").write_text(record(1, "one") + "\n")
    (tmp_path / "bad.jsonl").write_text("[]\n")
    (tmp_path / "d_pg1_repeat1.md").write_text("text")
    with pytest.raises(InputError) as error:
        texts(tmp_path, *checks)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_documents_that_are_not_there_are_one_sentence(tmp_path):
    from tests.kits.ocr_jobs import book

    book(tmp_path / "two.pdf", 2)
    with pytest.raises(InputError, match=r"checks.jsonl line 2 is about page 3 of .*two.pdf, which has 2\."):
        Documents.found(entries(tmp_path, ("two.pdf", 1), ("two.pdf", 3)), None)
    with pytest.raises(InputError, match=r"line 2 is about one.pdf, which is not in .*give --documents\."):
        Documents.found(entries(tmp_path, ("two.pdf", 1), ("one.pdf", 1)), None)
    [work] = Documents.found(entries(tmp_path, ("two.pdf", 2), ("two.pdf", 1), ("two.pdf", 2)), None).works
    assert (work.path, work.pages) == (tmp_path / "two.pdf", "1,2")


class FakeReader:
    engines = 1

    def __init__(self, *events):
        self.events = events

    def read(self, works, sampling):
        yield from self.events

    def close(self):
        pass


def test_a_page_that_was_not_read_fails(tmp_path):
    for name in "abc":
        (tmp_path / f"{name}.png").touch()
    checks = entries(tmp_path, ("a.png", 1), ("b.png", 1, {"type": "absent", "text": "x"}), ("c.png", 1))
    reader = FakeReader(
        Opened(0, 1, (0,), ""), PageRead(0, 0, "a cod", raw_text="", finish_reason="eos", tokens=1),
        Unreadable(1, "damaged", "b.png is damaged."), Opened(2, 1, (0,), ""), PageFailed(2, 0, "crash", "it died."),
    )  # fmt: skip
    seen = []
    readings = Documents.found(checks, None).read(reader, {}, lambda *counts: seen.append(counts))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    verdicts = [result.verdict for result in judged(checks, readings)]
    assert [verdict.outcome for verdict in verdicts] == ["passed", "failed", "failed"]
    assert verdicts[1].reason == "the page was not read: b.png is damaged"
    assert (
        Documents.found(checks, None).read(FakeReader(), {}, print)[(tmp_path, "a.png", 1)].error == "it was not read"
    )


def test_more_than_half_of_several_readings_must_pass(tmp_path):
    checks = entries(tmp_path, ("a.pdf", 1))
    for page_texts, outcome in ((("cod", "x"), "failed"), (("cod", "x", "cod"), "passed"), (("x",), "failed")):
        [result] = judged(checks, {(tmp_path, "a.pdf", 1): Reading(page_texts)})
        assert result.verdict.outcome == outcome


def test_judging_has_a_budget(tmp_path):
    """The first has a search that would go on for hours, the second a table of 65,534 rows of 100,000 columns."""
    half = {"type": "order", "before": "ab" * 100, "after": "ba" * 100, "max_diffs": 100}
    wide = {"type": "table", "cell": "x"}
    slow, large, quick = entries(tmp_path, ("a.pdf", 1, half), ("a.pdf", 1, wide), ("a.pdf", 1))
    table = '<table><tr><td rowspan="65534">x</td>' + '<td colspan="1000">y</td>' * 1000 + "</tr></table>"
    judge = Judge(Budget(seconds=1.0, memory_mb=256))
    try:
        assert "takes longer" in judge.verdict(slow.check, ["abc " * 20_000]).reason
        assert "takes" in judge.verdict(large.check, [table]).reason
        assert judge.verdict(quick.check, ["a cod"]).outcome == "passed", "a new process goes on"
    finally:
        judge.close()


def test_a_text_that_a_parser_refuses_fails_a_check(tmp_path):
    [entry] = entries(tmp_path, ("a.pdf", 1, {"type": "table", "cell": "x"}))
    assert failure(entry.check, "<table><![foo bar[<tr><td>x</td></tr></table>") is not None


def test_rates_and_intervals():
    rate = Rate.from_outcomes(["passed"] * 30 + ["failed"] * 10 + ["not judged"] * 5)
    assert (rate.judged, rate.percent, rate.not_judged) == (40, 75.0, 5)
    low, high = interval([rate])
    assert 58 < low < 65 and 85 < high < 92 and interval([rate]) == (low, high), "about ±1.96 √(0.75·0.25/40)"
    halves = [Rate(10, 0), Rate(0, 1000), Rate(0, 0, 9)]
    assert mean_percent(halves) == 50.0, "files count alike, whatever their sizes; one without verdicts not at all"
    assert interval(halves) == (50.0, 50.0) and interval([]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--checks", "none.jsonl"), "none.jsonl cannot be read"),
        (("--min-pass-rate", "101"), "--min-pass-rate is 101"),
        (("--texts", "text", "--model", "x"), "--model reads pages"),
        (("--texts", "text"), "--texts text is no folder"),
        (("--texts", "text", "--documents", "x"), "--documents is for a model"),
        (("--json", "."), "--json . cannot"),
        ((), "line 1 is about a.pdf, which is not in"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    entries(tmp_path, ("a.pdf", 1))
    result = call("eval", "pages", "--checks", "checks.jsonl", *arguments)
    assert result.exit_code == 2 and says in result.stderr and result.stderr.count("\n") == 1, result.stderr


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rapidfuzz.fuzz", None)
    monkeypatch.chdir(tmp_path)
    entries(tmp_path, ("a.pdf", 1))
    result = call("eval", "pages", "--checks", "checks.jsonl")
    assert result.exit_code == 2 and "pip install 'vlm-runtime[eval]'" in result.stderr, result.stderr
