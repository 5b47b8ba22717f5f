"""Which file is whose: names over several runs, files of the user's, what is left behind, ledgers of old versions."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.kits.ocr_jobs import outputs
from tests.unit.ocr.test_ocr import FakePipeline, image, pages, run
from tests.unit.ocr.test_ocr_ledger import Counting
from vlm_app.core.names import as_text, percent_encoded, printable
from vlm_app.core.storage import digest, file_state, key, object_state
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import LONGEST, Source, name_all
from vlm_app.ocr.documents.sources import Shard, find_documents
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.database import LedgerError
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.readers.reader import PipelineReader


def text(out: Path, name: str) -> str:
    return (out / name).read_text()


def shade(number: int) -> str:
    return f"shade {number}\n"


def problems(summary) -> list[tuple[str, str]]:
    return [(failure.document.name, failure.kind) for failure in summary.failures]


# --- runs one after the other ---
def test_a_document_that_takes_the_place_of_another_is_read(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    run([root], out)
    (root / "a.png").unlink()
    image(root / "a.bmp", 9)
    summary = run([root], out)
    assert (summary.documents, summary.skipped, summary.failures) == (1, 0, [])
    assert {name: text(out, name) for name in outputs(out)} == {"a.md": shade(7), "a.bmp.md": shade(9)}


def test_equal_stems_of_two_runs_do_not_meet(tmp_path):
    out = tmp_path / "out"
    run([image(tmp_path / "x" / "a.png", 7)], out)
    assert run([image(tmp_path / "y" / "a.png", 9)], out).documents == 1
    assert run([image(tmp_path / "z" / "a.png", 11)], out).documents == 1
    assert sorted(text(out, name) for name in outputs(out)) == sorted(map(shade, (7, 9, 11)))
    assert text(out, "a.md") == shade(7) and text(out, "a.png.md") == shade(9)


def test_a_new_document_beside_an_old_one_leaves_no_duplicate(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    run([root], out)
    pages(root / "a.pdf", 2)
    summary = run([root], out)
    assert (summary.total, summary.documents, summary.skipped) == (2, 1, 1)
    assert outputs(out) == {"a.md", "a.pdf.md"} and text(out, "a.md") == shade(7)


def test_a_document_keeps_its_output_however_it_is_given(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "sub" / "a.png", 7)
    run([root], out)
    assert run([root / "sub"], out).skipped == 1 and outputs(out) == {"sub"}
    (root / "link.png").symlink_to(root / "sub" / "a.png")
    assert run([root / "link.png"], out).skipped == 1 and outputs(out) == {"sub"}


def test_a_document_is_called_after_itself_and_not_after_a_link(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "good.png", 7)
    (root / "again.png").symlink_to("good.png")
    (root / "zlink.png").symlink_to("good.png")
    assert run([root], out).total == 1 and outputs(out) == {"good.md"}


def test_the_output_of_an_unfinished_document_is_not_that_of_another(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    image(root / "a.partial.png", 9)
    run([root], out)
    assert {name: text(out, name) for name in outputs(out)} == {"a.md": shade(7), "a.partial.png.md": shade(9)}


def test_another_model_does_not_lose_whose_the_files_are(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    run([root], out)
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        ledger.clear()
    image(root / "a.bmp", 9)
    summary = run([root], out)
    assert summary.documents == 2 and summary.is_complete and outputs(out) == {"a.md", "a.bmp.md"}


NAMES = ("a.png", "a.bmp", "A.png", "a.png.bmp", "a.md/b.png", "a.partial.png", "b.png", "a.png/b.bmp")


FILES = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2), min_size=1)


RUNS = st.lists(st.tuples(FILES, st.sampled_from([None, None, 1])), min_size=1, max_size=4)
MANY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@settings(MANY, max_examples=10)
@given(RUNS)
def test_each_document_has_one_output_whatever_came_before(runs):
    _check_runs(runs)


@pytest.mark.slow
@settings(MANY, max_examples=250)
@given(RUNS)
def test_each_document_has_one_output_in_many_histories(runs):
    _check_runs(runs)


def _check_runs(runs):
    """Files come, go, change and take each other's places between the runs, of which some are interrupted."""
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "in"), Path(folder, "out")
        for number, (files, interrupt_after) in enumerate(runs):
            there = _replaced(root, files, 50 * number)
            if interrupt_after:
                run([root], out, FakePipeline(window=1, interrupt_after=interrupt_after))
            summary = run([root], out)
            assert summary.done == summary.total == len(there)
            refused = {failure.document for failure in summary.failures}
            assert {path.parent.name for path in refused} <= {"a.md"}  # which was a file before
            _check_outputs(out, {path: number for path, number in there.items() if path not in refused})


def _check_outputs(out: Path, there: dict[Path, int]) -> None:
    """Each document has one output of its own with its own text, and nothing else lies there."""
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        names = {path: ledger.find(key(path)).name for path in there}
        known = {f"{name}.md" for name in ledger.names()}
    assert len(set(names.values())) == len(names)
    assert {path: text(out, f"{name}.md") for path, name in names.items()} == {
        path: shade(number) for path, number in there.items()
    }
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(".vlm-ocr/")} <= known


def _replaced(root: Path, files: dict[str, int], first: int) -> dict[Path, int]:
    """A folder with these files alone, each of a shade of its own, unless its number is 0 (as it was)."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    shutil.rmtree(root, ignore_errors=True)
    there = {}
    for name, number in files.items():
        path = root / name
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue
        image(path, first + 10 * number + NAMES.index(name))
        if not number and path in before:
            path.write_bytes(before[path])
        there[path] = _shade_of(path)
    return there


def _shade_of(path: Path) -> int:
    with Image.open(path) as picture:
        return picture.convert("L").getpixel((0, 0))


# --- parts of a job ---
def test_parts_of_a_job_never_give_one_name_to_two_documents(tmp_path):
    """Whichever documents the runs of the other parts saw."""
    sources = [
        Source(tmp_path / folder / name) for folder in "xyz" for name in ("a.png", "a.pdf", "b.png", "a.png.pdf")
    ]
    for some in (sources, sources[::2], sources[3:], sources[::-1]):
        names = Counter(document.names[0] for document in name_all(some))
        assert set(names.values()) == {1}
    last = [document.names[-1] for document in name_all(sources)]
    assert len(set(last)) == len(sources)
    assert last[::2] == [document.names[-1] for document in name_all(sources[::2])]


def test_a_part_does_not_write_over_what_another_part_wrote(tmp_path):
    out = tmp_path / "out"
    for part, path in (("x", image(tmp_path / "x" / "a.png", 7)), ("y", image(tmp_path / "y" / "a.png", 9))):
        summary = _run_part(path, out, part)
    assert problems(summary) == [("a.png", "occupied")] and (summary.refused, summary.done) == (1, 1)
    assert text(out, "a.md") == shade(7) and not summary.is_complete


def _run_part(path, out, part):
    with closing(Ledger(out / ".vlm-ocr" / f"ledger.{part}.sqlite")) as ledger:
        documents, placed = name_all(find_documents([path]).sources), Outputs(out, "md", ledger, part)
        return Job(PipelineReader(FakePipeline()), documents, JobConfig(), ledger, placed).run()


def test_the_parts_are_whole_with_names_that_are_no_utf8():
    documents = name_all(Source(Path(os.fsdecode(b"/in/\xff%d.png" % i))) for i in range(20))
    parts = [Shard(i, 2).select(documents) for i in range(2)]
    assert sum(map(len, parts)) == 20 and all(parts)


# --- files that the ledger does not know ---
def test_a_file_of_the_user_stays_and_is_told_of(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    image(root / "b.png", 9)
    out.mkdir()
    (out / "a.md").write_text("mine")
    summary = run([root], out)
    assert problems(summary) == [("a.png", "occupied")] and not summary.is_complete
    assert (summary.total, summary.documents, summary.refused) == (2, 1, 1)
    assert f"{out / 'a.md'} is there, and not known to this job; move it away" in summary.failures[0].reason
    assert text(out, "a.md") == "mine" and text(out, "b.md") == shade(9)
    assert problems(run([root], out)) == [("a.png", "occupied")]  # each time
    (out / "a.md").unlink()
    assert run([root], out).is_complete and text(out, "a.md") == shade(7)


def test_a_ledger_that_is_gone_costs_no_text(tmp_path):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    run([path], out)
    (out / ".vlm-ocr" / "ledger.sqlite").unlink()
    assert run([path], out).refused == 1 and text(out, "a.md") == shade(7)
    assert run([path], out, recompute=True).is_complete and run([path], out).skipped == 1


def test_a_file_that_appears_while_a_document_is_read_stays(tmp_path):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"

    class Slow(FakePipeline):
        def as_completed(self, inputs, **options):
            (out / "a.md").write_text("mine")
            yield from super().as_completed(inputs, **options)

    assert problems(run([path], out, Slow())) == [("a.png", "occupied")] and text(out, "a.md") == "mine"
    (out / "a.md").unlink()
    counting = Counting()
    assert run([path], out, counting).is_complete and not counting.asked


def test_a_kill_between_the_text_and_its_row_is_not_taken_for_a_file_of_the_user(tmp_path):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    run([path], out)
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        ledger.drop_file("a.md")
    assert run([path], out).is_complete and run([path], out).skipped == 1


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_is_no_file_in_the_place_of_an_output(tmp_path, kind):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    out.mkdir()
    (out / "a.md").mkdir() if kind == "folder" else (out / "a.md").symlink_to(tmp_path / "elsewhere")
    summary = run([path], out)
    if kind == "folder":  # no text that a ledger lost could be that
        assert summary.is_complete and text(out, "a.png.md") == shade(7)
    else:
        assert problems(summary) == [("a.png", "occupied")] and not (tmp_path / "elsewhere").exists()


def test_a_file_where_a_folder_should_be_costs_what_lies_below(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "x.png", 7)
    run([root], out)
    image(root / "x.md" / "y.png", 9)
    image(root / "z.png", 11)
    summary = run([root], out)
    assert problems(summary) == [("y.png", "occupied")] and "x.md is no folder" in summary.failures[0].reason
    assert text(out, "x.md") == shade(7) and text(out, "z.md") == shade(11)


# --- what is left behind ---
def no_room(path, content):
    path.write_bytes(content[:1])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_a_full_disk_ends_the_job_which_then_goes_on(tmp_path, monkeypatch):
    root, out = tmp_path / "in", tmp_path / "out"
    for i in range(3):
        image(root / f"{i}.png", i)
    with monkeypatch.context() as full:
        full.setattr("vlm_app.ocr.placing._write_through", no_room)
        summary = run([root], out, FakePipeline(window=1))
    assert "No space left on device; make room there" in str(summary.stopped) and summary.done == 0
    assert outputs(out) == set() and not list(out.rglob("*.tmp"))
    counting = Counting()
    assert run([root], out, counting).is_complete and outputs(out) == {"0.md", "1.md", "2.md"}
    assert len(counting.asked) == 2


def test_what_a_kill_leaves_goes_with_the_next_run(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "sub" / "a.png", 7)
    image(root / "b.png", 9)
    run([root], out)
    for folder in (out, out / "sub"):
        (folder / ".vlm-ocr.tmp").write_text("half")
    other = out / ".vlm-ocr.1-of-2.tmp"
    other.write_text("of a part that may be at work")
    (root / "sub" / "a.png").unlink()
    assert run([root], out).skipped == 1
    assert list(out.rglob(".vlm-ocr*.tmp")) == [other]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG])
def test_a_file_that_cannot_be_written_costs_itself(tmp_path, monkeypatch, number):
    from vlm_app.ocr import placing

    root, out, written = tmp_path / "in", tmp_path / "out", placing._write_through
    image(root / "bad" / "a.png", 7)
    image(root / "b.png", 9)

    def some(path, content):
        if path.parent.name == "bad":
            raise OSError(number, os.strerror(number))
        written(path, content)

    monkeypatch.setattr(placing, "_write_through", some)
    summary = run([root], out)
    assert problems(summary) == [("a.png", "not written")] and text(out, "b.md") == shade(9)


def test_file_systems_without_links(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", none)
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    assert run([path], out).is_complete and outputs(out) == {"a.md"}


# --- files that change ---
@pytest.mark.parametrize("change", ["written", "touched", "gone"])
def test_a_file_that_changes_while_it_is_read(tmp_path, change):
    path, out = pages(tmp_path / "a.tif", 2), tmp_path / "out"

    class Slow(FakePipeline):
        def as_completed(self, inputs, **options):
            answers = super().as_completed(inputs, **options)
            yield next(answers)
            {"written": lambda: pages(path, 3), "touched": lambda: os.utime(path, (1, 1)), "gone": path.unlink}[
                change
            ]()
            yield from answers

    summary = run([path], out, Slow(window=1))
    if change == "written":
        assert problems(summary)[-1] == ("a.tif", "changed") and outputs(out) == set()
        assert run([path], out).is_complete and text(out, "a.md").count("shade") == 3
    else:  # a page that had not been drawn is gone with its file
        assert summary.is_complete is (change == "touched") and outputs(out) == {"a.md"}


def test_a_file_that_changes_between_two_halves(tmp_path):
    path, out = pages(tmp_path / "a.tif", 3), tmp_path / "out"
    assert run([path], out, FakePipeline(window=1, interrupt_after=1)).interrupted

    class Late(FakePipeline):
        def as_completed(self, inputs, **options):
            pages(path, 4)
            yield from super().as_completed(inputs, **options)

    assert problems(run([path], out, Late())) == [("a.tif", "changed")]
    assert run([path], out).is_complete and text(out, "a.md").count("shade") == 4


# --- names ---
@pytest.mark.parametrize("name", ["x" * 250 + ".png", "ä" * 120 + ".png", "x" * 200 + "\x1b" * 40 + ".png"])
def test_long_names_are_cut(tmp_path, name):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / name, 7)
    twin = name[:100] + "y" + name[101:]
    image(root / twin, 9)
    assert run([root], out, FakePipeline(interrupt_after=0)).interrupted
    assert run([root], out).is_complete and run([root], out).skipped == 2
    assert sorted(text(out, found) for found in outputs(out)) == [shade(7), shade(9)]
    assert all(len(os.fsencode(found)) <= LONGEST for found in outputs(out))


def test_names_that_are_no_utf8(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    for i, name in enumerate([b"caf\xe9.png", b"caf\xe8.png", b"caf%E9.png", b"\xff\n\x1b[2J.png", b"d\xe9/a.png"]):
        image(root / os.fsdecode(name), i)
    (root / os.fsdecode(b"bad\xe9.png")).write_text("no image")
    summary = run([root], out, format="jsonl")
    assert summary.documents == 5 and len(summary.failures) == 1
    found = {path.relative_to(out).as_posix() for path in out.rglob("*.jsonl")}
    assert {name for name in found if "." not in name[:-6]} == {"caf%E8.jsonl", "%FF%0A%1B[2J.jsonl", "d%E9/a.jsonl"}
    assert len(found) == 5
    texts = "".join(path.read_text(encoding="utf-8") for path in out.rglob("*.jsonl"))
    assert "/in/caf%E9.png" in texts and "file://" in texts and texts.count("\n") == 5
    assert run([root], out, format="jsonl").skipped == 5


def test_names_as_text():
    assert printable("a\x1b[31m\n\u202eb\u2028" + os.fsdecode(b"\xe9") + "é 字\u3000") == (
        "a\\x1b[31m\\n\\u202eb\\u2028\\xe9é 字\u3000"
    )
    assert percent_encoded("a\n" + os.fsdecode(b"\xe9") + "é") == "a%0A%E9é"
    assert as_text(Path("/a b")) == "/a b" and as_text(Path(os.fsdecode(b"/a b\xe9"))) == "file:///a%20b%E9"


def test_names_that_file_systems_do_not_tell_apart():
    twins = [Source(Path("/in") / name) for name in ("e\u0301.png", "é.png", "É.png")]
    assert len({document.names[0].casefold() for document in name_all(twins)}) == 3
    assert all(len(document.names) == 1 for document in name_all(twins))


# --- times ---
@pytest.mark.parametrize("time", [300_000_000_000, -70_000_000_000, 1e18, float("nan")])
def test_times_that_no_calendar_has(tmp_path, monkeypatch, time):
    path, stat = image(tmp_path / "a.png", 7), os.stat

    def odd(*arguments, **options):
        found = stat(*arguments, **options)
        return os.stat_result([*found[:8], time, *found[9:]], {"st_mtime": time, "st_mtime_ns": 1})

    monkeypatch.setattr(os, "stat", odd)
    assert file_state(path).modified == ""
    assert object_state({"size": 1, "mtime": time}).modified == ""


def test_the_times_of_stores():
    assert object_state({"created": 86400.0}).modified == "1970-01-02T00:00:00+00:00"
    assert object_state({"LastModified": "yesterday"}).modified == "yesterday"
    assert object_state({}).modified == ""


# --- ledgers ---
EARLIER = """
CREATE TABLE job (name TEXT PRIMARY KEY, value TEXT);
CREATE TABLE documents (
    id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, stamp TEXT NOT NULL, created TEXT, digest TEXT,
    num_pages INTEGER, selection TEXT, pages TEXT, written TEXT, error_kind TEXT, error TEXT);
CREATE TABLE pages (
    document INTEGER NOT NULL REFERENCES documents (id), page INTEGER NOT NULL, state TEXT NOT NULL,
    text TEXT, raw_text TEXT, finish_reason TEXT, tokens INTEGER NOT NULL DEFAULT 0, error_kind TEXT, error TEXT,
    attempts INTEGER NOT NULL DEFAULT 1, PRIMARY KEY (document, page)) WITHOUT ROWID;
"""


@pytest.fixture
def earlier(tmp_path):
    """A folder as the version before left it: a.png written, b.png read and killed, c.tif half read."""
    root, out = tmp_path / "in", tmp_path / "out"
    images = [image(root / "a.png", 7), image(root / "b.png", 9), pages(root / "c.tif", 2)]
    (out / ".vlm-ocr").mkdir(parents=True)
    rows = sqlite3.connect(out / ".vlm-ocr" / "ledger.sqlite")
    rows.executescript(EARLIER)
    for i, path in enumerate(images, start=1):
        written = f"{out.resolve()}/a.md all" if i == 1 else None
        values = (
            i,
            str(path.resolve()),
            file_state(path).stamp,
            "",
            digest(path),
            1 + (i == 3),
            None,
            [[0], [0], [0, 1]][i - 1],
        )
        rows.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL)",
            (*values[:7], str(values[7]), written),
        )
        rows.execute(
            "INSERT INTO pages VALUES (?, 0, 'done', ?, ?, 'eos', 2, NULL, NULL, 1)", (i, f"old {i}", f"raw {i}")
        )
    rows.commit()
    rows.close()
    (out / "a.md").write_text("old 1\n")
    (out / "b.md").write_text("old 2\n")
    (out / "c.partial.md").write_text("old 3\n")
    (out / ".c.md.tmp").write_text("half")
    return root, out


def test_ledgers_of_the_version_before_go_on(earlier):
    root, out = earlier
    counting = Counting()
    summary = run([root], out, counting)
    assert (summary.skipped, summary.documents, summary.failures) == (1, 2, [])
    assert counting.asked == [40] and text(out, "c.md") == "old 3\n\nshade 40\n"
    assert {path.name for path in out.iterdir()} == {".vlm-ocr", "a.md", "b.md", "c.md"}
    image(root / "a.bmp", 3)
    again = run([root], out)
    assert (again.skipped, again.documents) == (3, 1) and text(out, "a.md") == "old 1\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("PRAGMA user_version = 9", r"is of a later version \(9\); update vlm"),
        ("CREATE TABLE documents (title TEXT)", "is no ledger of vlm ocr; remove it, and add --recompute"),
    ],
)
def test_ledgers_that_are_not_ours(tmp_path, change, says):
    rows = sqlite3.connect(tmp_path / "ledger.sqlite")
    rows.execute(change)
    rows.commit()
    rows.close()
    with pytest.raises(LedgerError, match=says):
        Ledger(tmp_path / "ledger.sqlite")


def test_a_ledger_that_breaks_in_the_middle_ends_the_job(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    for i in range(3):
        image(root / f"{i}.png", i)

    def break_it(summary):
        if summary.done == 1:
            with closing(sqlite3.connect(out / ".vlm-ocr" / "ledger.sqlite", isolation_level=None)) as other:
                other.execute("DROP TABLE IF EXISTS pages")

    summary = run([root], out, FakePipeline(window=1), on_progress=break_it)
    assert "ledger.sqlite cannot be" in str(summary.stopped) and "no such table" in str(summary.stopped)
    assert summary.done == 1


# --- ledgers of others ---
def test_another_number_of_parts_does_not_read_again(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    for i in range(3):
        image(root / f"{i}.png", i)
    run([root], out)
    summary = _run_part(root, out, "0-of-2")
    assert (summary.skipped, summary.total) == (3, 3) and summary.is_complete
    (out / "2.md").unlink()
    image(root / "1.png", 9)  # which the other ledger does not know
    summary = _run_part(root, out, "1-of-2")
    assert (summary.skipped, summary.documents) == (1, 1) and problems(summary) == [("1.png", "occupied")]
    assert text(out, "2.md") == shade(2)
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        ledger.put({"settings": {"model": "another"}})
    assert _run_part(root / "0.png", out, "0-of-3").refused == 1


# --- folders ---
@pytest.fixture
def depths():
    """A folder that is removed by a program which can: Python's own functions recurse."""
    folder = tempfile.mkdtemp()
    yield Path(folder)
    subprocess.run(["rm", "-rf", folder], check=True)


def test_folders_in_folders_without_end(depths):
    root = folder = depths / "in"
    image(root / "a.png", 7)
    for _ in range(1200):
        folder = folder / "d"
        folder.mkdir()
    image(folder / "b.png", 9)
    found = find_documents([root])
    assert [source.path.name for source in found.sources] == ["a.png", "b.png"] and not found.unreadable
    assert run([root], depths / "out").is_complete
