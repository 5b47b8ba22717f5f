"""`vlm eval pages`: pages read by the packaged model, or texts that were read, held against checks."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest

from tests.e2e.ocr.test_ocr_docs import QUICK, fences
from tests.kits.cli_kit import call
from tests.kits.ocr_jobs import EXAMPLES

CHECKS = [
    {"pdf": "letters/page.png", "id": "p1", "type": "present", "text": "the ferry Aurora left at 07:45"},
    {"pdf": "letters/page.png", "id": "p2", "type": "order", "before": "Harbour notes", "after": "What changed"},
    {"pdf": "table.png", "id": "t1", "type": "table", "cell": "958", "left": "herring", "top_heading": "Weight"},
    {"pdf": "table.png", "id": "t2", "type": "absent", "text": "Weights"},  # it is there
    {"pdf": "table.png", "id": "t3", "type": "math", "math": "x^2"},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two pages with checks, as olmOCR-bench has them: the documents in pdfs/."""
    (tmp_path / "pdfs" / "letters").mkdir(parents=True)
    shutil.copy(EXAMPLES / "page.png", tmp_path / "pdfs" / "letters")
    shutil.copy(EXAMPLES / "table.png", tmp_path / "pdfs")
    write(tmp_path / "checks.jsonl", CHECKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    return tmp_path


def write(path, checks):
    path.write_text("".join(json.dumps({"page": 1, **check}) + "\n" for check in checks), encoding="utf-8")


def test_pages_are_read_and_checked_with_and_without_a_model(folder):
    on = ("--device", "cpu", "--workers", "0")
    result = call("eval", "pages", "--checks", "checks.jsonl", *on, "--json", "a.json", "--min-pass-rate", 90)
    assert result.exit_code == 1 and "the pass rate 83.33 is below 90." in result.stderr, result.stderr
    assert "vlm: failed: t2 (absent, table.png page 1): 'Weights' is there" in result.stderr
    assert "checks of type math are not judged: formulas" in result.stderr
    read = json.loads((folder / "a.json").read_text())
    assert {result["id"]: result["outcome"] for result in read["results"]} == {
        "p1": "passed", "p2": "passed", "t1": "passed", "t2": "failed", "t3": "not judged",
        "letters/page.png 1 baseline": "passed", "table.png 1 baseline": "passed",
    }  # fmt: skip
    assert (read["passed"], read["failed"], read["not_judged"]) == (5, 1, 1)
    assert read["folders"]["letters"]["passed"] == 3 and read["files"]["baseline"]["passed"] == 2
    assert read["mean_of_files"] == pytest.approx((75 + 100) / 2)
    low, high = read["interval"]
    assert 0 <= low < read["pass_rate"] < high <= 100

    assert call("ocr", "pdfs", "-o", "text", "--format", "jsonl", *on).exit_code == 0
    result = call("eval", "pages", "--checks", "checks.jsonl", "--texts", "text", "--json", "b.json")
    assert result.exit_code == 0 and "kind table" in result.stdout, result.stderr
    judged = json.loads((folder / "b.json").read_text())
    assert {**judged, "source": read["source"]} == read, "the same texts, the same verdicts"


def test_the_commands_of_the_page_run(folder):
    [block] = [text for mark, text in fences("bash") if mark == "checks"]
    (folder / "pdfs").rename(folder / "scans")
    write(folder / "checks.jsonl", [{"pdf": "table.png", "id": "x", "type": "baseline", "max_length": 1000}])
    for line in block.replace('"$MODEL"', "mini-nougat").splitlines():
        words = shlex.split(line, comments=True)[1:]
        quick = () if "--texts" in words else QUICK
        more = ("--documents", "scans") if words[0] == "eval" and "--texts" not in words else ()
        assert call(*words, *quick, *more).exit_code == 0, line
