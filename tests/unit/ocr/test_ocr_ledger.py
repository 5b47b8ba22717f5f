"""What a job keeps: which pages are read again and which never, what is tried again, what is reported."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kits.ocr_jobs import outputs
from tests.unit.ocr.test_ocr import FakePipeline, image, pages, run
from vlm.errors import DocumentError, ImageError, InputError
from vlm.limits import MAX_PROCESSES
from vlm_app.ocr.config import JobConfig, PlaceConfig
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.ledger.state import ledger_of
from vlm_app.ocr.report import Failure, Summary, complaints, live, totals

SETTINGS = {"model": "nougat 1", "dtype": "float32", "max_new_tokens": None}


class Counting(FakePipeline):
    """Counts what it is asked, and changes the answers to some pictures."""

    def __init__(self, answers=None, **options):
        super().__init__(**options)
        self.asked, self.sampling, self.answers = [], [], answers or {}

    def as_completed(self, inputs, *, on_error, max_new_tokens, **sampling):
        for index, result in super().as_completed(inputs, on_error=on_error, max_new_tokens=max_new_tokens):
            shade = int(result.text.split()[1])
            self.asked.append(shade)
            self.sampling.append(sampling)
            yield index, self.answers.get((shade, len([s for s in self.asked if s == shade])), result)


def loop(text):
    from tests.unit.ocr.test_ocr import output

    return output(text, "loop")


# --- what is read again ---
def test_only_what_is_missing_is_read(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    pages(root / "b.pdf", 4)
    assert run([root], out, FakePipeline(window=1, interrupt_after=3)).interrupted
    again = Counting()
    summary = run([root], out, again)
    assert len(again.asked) == 2 and (summary.pages, summary.ledger_pages, summary.documents) == (2, 2, 1)
    assert (out / "b.md").read_text().count("shade") == 4 and not (out / "b.partial.md").exists()
    assert run([root], out, again).skipped == 2 and len(again.asked) == 2


def test_more_pages_of_a_document(tmp_path):
    path, out, counting = pages(tmp_path / "b.tif", 4), tmp_path / "out", Counting()
    run([path], out, counting, pages="2-3")
    run([path], out, counting, pages="1-3")
    assert counting.asked == [80, 40, 0]
    assert (out / "b.md").read_text() == "shade 0\n\nshade 40\n\nshade 80\n"
    run([path], out, counting, pages="3")
    assert len(counting.asked) == 3 and (out / "b.md").read_text() == "shade 80\n"


def test_a_changed_file_is_read_again_and_a_touched_one_not(tmp_path):
    path, out, counting = image(tmp_path / "a.png", 7), tmp_path / "out", Counting()
    run([path], out, counting)
    os.utime(path, (1, 1))
    assert run([path], out, counting).skipped == 1
    image(path, 9)
    assert run([path], out, counting).documents == 1
    assert counting.asked == [7, 9] and (out / "a.md").read_text() == "shade 9\n"


def test_a_changed_file_that_cannot_be_read_yet_is_read_when_it_can(tmp_path, monkeypatch):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    run([path], out)
    image(path, 9)

    def refused(path):
        raise InputError(f"{path} cannot be reached: Permission denied.")

    with monkeypatch.context() as patch:
        patch.setattr("vlm_app.ocr.plan.digest", refused)
        assert run([path], out).failed == 1
    assert run([path], out).documents == 1 and (out / "a.md").read_text() == "shade 9\n"


def test_another_format_and_a_lost_output_cost_no_reading(tmp_path):
    path, out, counting = pages(tmp_path / "b.tif", 2), tmp_path / "out", Counting()
    run([path], out, counting)
    assert run([path], out, counting, format="jsonl").ledger_pages == 2
    records = [json.loads(line) for line in (out / "b.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == ["shade 0", "shade 40"]
    (out / "b.jsonl").unlink()
    assert run([path], out, counting, format="jsonl").documents == 1
    assert len(counting.asked) == 2 and outputs(out) == {"b.md", "b.jsonl"}


def test_what_failed_as_a_whole_is_tried_again(tmp_path):
    path, out = pages(tmp_path / "b.tif", 2), tmp_path / "out"
    bad = Counting({(0, 1): ImageError("bad."), (40, 1): ImageError("bad.")})
    assert len(run([path], out, bad).failures) == 2 and outputs(out) == set()
    assert run([path], out, bad).pages == 2 and outputs(out) == {"b.md"}


def test_recompute_starts_anew_and_can_be_interrupted(tmp_path):
    path, out, counting = pages(tmp_path / "b.tif", 3), tmp_path / "out", Counting()
    run([path], out, counting)
    assert run([path], out, FakePipeline(window=1, interrupt_after=1), recompute=True).interrupted
    assert run([path], out, counting).ledger_pages == 1 and len(counting.asked) == 5


# --- loops ---
def test_a_looped_page_is_read_again_by_sampling(tmp_path):
    path, out = pages(tmp_path / "b.tif", 2), tmp_path / "out"
    counting = Counting({(40, 1): loop("la la")})
    summary = run([path], out, counting)
    assert counting.asked.count(40) == 2 and counting.asked.count(0) == 1
    assert counting.sampling[:2] == [{"seed": 0}] * 2 and counting.sampling[2]["temperature"] == pytest.approx(0.2)
    assert counting.sampling[2]["seed"] == 1
    assert (summary.pages, summary.tokens, summary.failures) == (2, 6, [])
    assert (out / "b.md").read_text() == "shade 0\n\nshade 40\n"


def test_a_page_that_keeps_looping_is_marked_with_what_was_read(tmp_path):
    path, out = pages(tmp_path / "b.tif", 2), tmp_path / "out"
    counting = Counting({(40, 1): loop("first"), (40, 2): loop("second"), (40, 3): DocumentError("no.")})
    summary = run([path], out, counting, retries=2)
    assert counting.asked.count(40) == 3
    assert [(f.page, f.kind) for f in summary.failures] == [(2, "loop")]
    assert (out / "b.md").read_text() == (
        "shade 0\n\nfirst\n\n<!-- page 2: the text repeats itself from here on (read 3 times) -->\n"
    )


def test_retries_go_on_after_an_interruption(tmp_path):
    path, out = pages(tmp_path / "b.tif", 2), tmp_path / "out"
    first = Counting({(40, 1): loop("la")}, interrupt_after=2)
    assert (run([path], out, first).interrupted and first.asked == [0, 40]) or first.asked == [40, 0]
    second = Counting()
    assert run([path], out, second).documents == 1 and second.asked == [40]
    assert second.sampling == [{"temperature": 0.2, "top_p": 0.95, "seed": 1}]


# --- bad pages ---
def test_documents_with_too_many_bad_pages_are_not_written(tmp_path):
    path, out = pages(tmp_path / "b.tif", 4), tmp_path / "out"
    counting = Counting({(40, 1): ImageError("bad."), (80, 1): ImageError("bad.")})
    summary = run([path], out, counting, max_page_error_rate=0.4)
    assert outputs(out) == set() and summary.failures[-1].kind == "error rate"
    assert "50.0% of its pages are bad, allowed are 40.0%" in summary.failures[-1].reason
    assert run([path], out, counting, max_page_error_rate=0.5).documents == 1 and len(counting.asked) == 4


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"max_page_error_rate": 1.5}])
def test_wrong_settings(wrong):
    with pytest.raises(InputError, match=r"--(retries|max-page-error-rate) is"):
        JobConfig(**wrong)
    for workers in (-1, MAX_PROCESSES + 1):
        with pytest.raises(InputError, match=rf"--workers is {workers}; it must be 0 \(read .*\) to 1,024"):
            PlaceConfig(workers=workers)
    assert PlaceConfig(workers=MAX_PROCESSES).workers == MAX_PROCESSES


# --- the ledger in its folder ---
def test_settings_of_two_models_do_not_mix(tmp_path):
    with ledger_of(tmp_path, SETTINGS, False) as ledger:
        ledger.register("a", _seen())
    other = SETTINGS | {"model": "nougat 2"}
    with pytest.raises(InputError, match=r"was begun with model nougat 1, now asked is model nougat 2; .*--recompute"):
        ledger_of(tmp_path, other, False).__enter__()
    more = SETTINGS | {"exact_pixels": True, "max_new_tokens": 9}
    said = r"with no `max_new_tokens`, no `exact_pixels`, now asked is `max_new_tokens` 9, `exact_pixels`; ask"
    with pytest.raises(InputError, match=said) as error:
        ledger_of(tmp_path, more, False).__enter__()
    assert error.value.settings == ("max_new_tokens", "exact_pixels")
    built_otherwise = SETTINGS | {"model": "nougat 3", "backend": "onnxruntime"}
    said = r"was begun with no `backend`, now asked is `backend` onnxruntime; ask for the same"
    with pytest.raises(InputError, match=said):
        ledger_of(tmp_path, built_otherwise, False).__enter__()
    with ledger_of(tmp_path, other, True) as ledger:
        assert ledger.find("a").pages is None and ledger.get("settings") == other


def test_one_run_at_a_time(tmp_path):
    with (
        ledger_of(tmp_path, SETTINGS, False),
        pytest.raises(InputError, match="another run is writing to"),
        ledger_of(tmp_path, SETTINGS, False),
    ):
        pass
    with ledger_of(tmp_path, SETTINGS, False):
        pass


def test_a_damaged_ledger(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("no database, but long enough to be looked at" * 40)
    with pytest.raises(InputError, match=r"ledger\.sqlite cannot be .*; remove it, and add --recompute"):
        Ledger(tmp_path / "ledger.sqlite")


def test_a_ledger_that_cannot_be_written_is_one_sentence(tmp_path):
    with (
        closing(Ledger(tmp_path / "ledger.sqlite")) as ledger,
        closing(sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)) as other,
    ):
        ledger._database.execute("PRAGMA busy_timeout = 1")
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match=r"ledger\.sqlite cannot be written: database is locked"):
            ledger.forget(1)
        other.execute("COMMIT")
        ledger.forget(1)


def test_all_or_nothing(tmp_path):
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        with pytest.raises(KeyboardInterrupt), ledger.at_once():
            ledger.register("a", _seen())
            raise KeyboardInterrupt
        assert ledger.find("a") is None
        ledger.register("b", _seen())
        ledger.save_as(tmp_path / "copy.sqlite")
    rows = sqlite3.connect(tmp_path / "copy.sqlite").execute("SELECT path FROM documents").fetchall()
    assert rows == [("b",)]


def test_ctrl_c_where_a_transaction_begins_leaves_none_open(tmp_path):
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        execute = ledger._database.execute

        def begin_and_stop(statement, values=()):
            execute(statement, values)
            if statement.startswith("BEGIN"):
                ledger._database.execute = execute
                raise KeyboardInterrupt

        ledger._database.execute = begin_and_stop
        with pytest.raises(KeyboardInterrupt):
            ledger.put({"a": 1})
        ledger.put({"b": 2})
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        assert (ledger.get("a"), ledger.get("b")) == (None, 2)


def _seen():
    from vlm_app.core.storage import FileState

    return FileState("1", "2026-01-01")


# --- the report ---
def test_rates_and_prices():
    summary = Summary(total=9, documents=2, pages=50, tokens=5000, seconds=10.0, engines=2, ledger_pages=3)
    summary.failures = [Failure(Path("a"), 1, "x", "loop"), Failure(Path("b"), None, "y", "encrypted")]
    lines = "\n".join(totals(summary, 3.6))
    assert "5.00 pages/s, 500.0 tokens/s" in lines and "3 pages had been read before" in lines
    assert "failures: 1 loop, 1 encrypted" in lines
    # two devices at 3.60 an hour cost 0.002 a second, and a million pages take 200,000 s
    assert "cost: 400.00 a million pages" in lines
    assert live(summary, 9) == "2 of 9 documents, 50 pages, 5.0 pages/s, 500 tokens/s, 1 failed"
    assert not any("cost" in line for line in totals(replace(summary, pages=0), 3.6))


def test_one_of_a_kind_is_counted_as_one():
    one = Summary(total=1, documents=1, pages=1, tokens=1, seconds=1.0, ledger_pages=1, skipped=1, interrupted=True)
    lines = [*totals(one), *complaints(one)]
    assert (
        lines[0] == "1 document, 1 page, 1 token in 1.0 s"
        and "1 page had been read before and came from the ledger" in lines
    )
    assert "1 document skipped: the output is there (--recompute reads it again)." in lines
    assert "interrupted: 1 document finished." in lines
    assert live(one, 1).startswith("2 of 1 document, 1 page, ")
    many = Summary(documents=0, pages=2, tokens=3, seconds=1.0)
    assert next(totals(many)) == "0 documents, 2 pages, 3 tokens in 1.0 s"
