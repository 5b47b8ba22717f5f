"""Batch jobs without a model: sources, file names, writers, and what a job does with what its pipeline says."""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from contextlib import closing
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pypdfium2
import pytest
import torch
from PIL import Image

from tests.kits.ocr_jobs import outputs
from vlm.errors import DocumentError, ImageError, InputError
from vlm.processing.media.documents import document as opening
from vlm.processing.media.documents.pdf import PdfDocument
from vlm.stage_clock import StageClock
from vlm_app.ocr import writers
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Source, name_all
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.documents.pages import InProcess, check_pages, selected
from vlm_app.ocr.documents.render_pool import RenderPool
from vlm_app.ocr.documents.sources import find_documents
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger, Page
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.readers.reader import PipelineReader
from vlm_app.ocr.report import Failure, Summary, complaints
from vlm_app.ocr.reports.job_report import job_report
from vlm_app.ocr.writers import About, Draft


def image(path: Path, shade: int = 255) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (shade,) * 3).save(path)
    return path


def pages(path: Path, count: int) -> Path:
    """A PDF or TIFF of so many pages, each darker than the next."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first, *rest = [Image.new("RGB", (16, 16), (40 * i,) * 3) for i in range(count)]
    first.save(path, save_all=True, append_images=rest)
    return path


# --- what is read, and where it goes ---
def test_folders_are_searched_and_each_document_comes_once(tmp_path):
    root = tmp_path / "in"
    wanted = [image(root / "b.png"), pages(root / "a.pdf", 1), image(root / "sub" / "c.JPG")]
    image(root / ".hidden.png")
    image(root / ".git" / "d.png")
    (root / "notes.txt").write_text("no document")
    found = find_documents([root, root / "b.png", root / "sub"]).sources
    assert [source.path for source in found] == [wanted[1], wanted[0], wanted[2]]
    assert [str(source.below) for source in found] == [".", ".", "sub"]


def test_what_cannot_be_searched(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"nothing\.pdf does not exist"):
        find_documents([tmp_path, tmp_path / "nothing.pdf"])
    with pytest.raises(InputError, match=r"there is no document in .*empty; read are .*\.pdf"):
        find_documents([tmp_path / "empty"])
    with pytest.raises(InputError, match="a path is empty"):  # a shell's variable that is not set
        find_documents([str(tmp_path), ""])


def test_output_names_never_clash():
    given = [
        ("in/report.pdf", ""), ("in/a.png", ""), ("in/a.pdf", ""), ("x/b.png", ""), ("y/b.png", ""),
        ("in/s/a.pdf", "s"), ("in/B.tif", ""),
    ]  # fmt: skip
    documents = name_all(Source(Path(path), Path(below)) for path, below in given)
    best = [document.names[0] for document in documents]
    twins = [name.rpartition(".") for name in best[3:5]]
    assert best[:3] + best[5:] == ["report", "a.png", "a.pdf", "s/a", "B.tif"]
    # the third name is the document's alone, whatever else a run reads
    assert {stem for stem, _, _ in twins} == {"b.png"} and len({mark for _, _, mark in twins}) == 2
    assert best[3] == name_all([Source(Path("x/b.png"))])[0].names[-1]


@pytest.mark.parametrize("given", ["", "x", "0", "4-1", "1,,2", "-3"])
def test_page_ranges_that_suit_no_document(given):
    with pytest.raises(InputError, match=r"--pages is .*; write 1-4,7"):
        check_pages(given)
    check_pages("1-4,7,9-")
    check_pages(None)


def test_selected_pages(tmp_path):
    document = OpenDocument(pages(tmp_path / "a.pdf", 5))
    assert selected(None, document.num_pages) == (0, 1, 2, 3, 4)
    assert selected("4-,1", document.num_pages) == (3, 4, 0)
    assert selected("4-6", document.num_pages) == (3, 4)
    with pytest.raises(DocumentError, match="the document has 5 pages"):
        selected("6-7", document.num_pages)


def test_pages_of_pdfs_are_drawn_one_at_a_time(tmp_path, monkeypatch):
    document = InProcess().open(pages(tmp_path / "a.pdf", 3)).result()
    inside, most = [], []
    render = PdfDocument.render

    def watched(self, page, detail=None):
        inside.append(page)
        most.append(len(inside))
        time.sleep(0.01)
        picture = render(self, page, detail=detail)
        inside.remove(page)
        return picture

    monkeypatch.setattr(PdfDocument, "render", watched)
    pictures = [each.result() for each in [document.read(page) for page in range(3)]]
    assert most == [1, 1, 1]
    assert [picture.getpixel((4, 4))[0] // 40 for picture in pictures] == [0, 1, 2]


def test_what_a_renderer_trips_over_costs_a_page(tmp_path):
    document = OpenDocument(image(tmp_path / "a.png"))
    document._document = SimpleNamespace(render=lambda page, detail: 1 / 0)
    with pytest.raises(DocumentError, match=r"a\.png page 1 cannot be rendered: division by zero"):
        document.render(0)


# --- writers ---
def output(text, reason="eos"):
    return SimpleNamespace(text=text, raw_text=f"raw {text}", finish_reason=reason, token_ids=[1, 2])


def read(page, text, state="done", reason="eos", attempts=1):
    return Page(page, state, text, f"raw {text}", reason, 2, None, None, attempts)


def failed(page, error):
    return Page(page, "failed", None, None, None, 0, "damaged", error, 1)


def draft(results, count=3):
    about = About("d1", count, "2026-01-02T03:04:05+00:00", "2026-11-21", "nougat 12")
    return Draft(Path("in/a.pdf"), tuple(range(count)), {page.page: page for page in results}, about)


def test_markdown():
    given = draft([read(2, "three\n"), read(0, "# one"), failed(1, "no -- page.")])
    assert writers.markdown(given) == "# one\n\n<!-- page 2: no - - page. -->\n\nthree\n"
    assert writers.raw_text(given).startswith("raw # one\n\n<!-- page 2")


def test_looped_pages_are_marked():
    given = draft([read(0, "one", "looped", "loop", 3)], count=1)
    assert writers.markdown(given) == ("one\n\n<!-- page 1: the text repeats itself from here on (read 3 times) -->\n")


def test_json_lines_have_the_fields_of_dolma():
    given = draft([read(0, "ä", "looped", "loop", 2), failed(1, "broken.")])
    first, second = map(json.loads, writers.json_lines(given).splitlines())
    assert list(first) == ["id", "text", "source", "added", "created", "metadata", "attributes"]
    assert first["metadata"] == {
        "document": "in/a.pdf", "page": 1, "num_pages": 3, "model": "nougat 12", "finish_reason": "loop", "tokens": 2,
        "attempts": 2, "raw_text": "raw ä", "error_kind": "", "error": "",
    }  # fmt: skip
    assert (first["text"], first["source"], first["added"]) == ("ä", "vlm-ocr", "2026-11-21")
    assert first["created"] == "2026-01-02T03:04:05+00:00"
    assert first["attributes"] == {"pdf_page_numbers": [[0, 1, 1]]}
    assert second["text"] == "" and second["metadata"]["error"] == "broken." and second["metadata"]["page"] == 2
    assert first["id"] != second["id"]


def test_json_lines_have_the_same_types_whatever_became_of_a_page():
    """Hugging Face's datasets take a column's type from the first file, and refuse another one in a later file."""
    records = map(json.loads, writers.json_lines(draft([read(0, "one"), failed(1, "broken.")])).splitlines())
    types = [{name: type(value) for name, value in record["metadata"].items()} for record in records]
    assert types[0] == types[1] and type(None) not in types[0].values()


def test_a_comment_holds_whatever_an_error_says():
    text = writers.markdown(draft([failed(0, "a--->b ----> c")], count=1))
    assert text.index("-->") == len(text) - len("-->\n")


def test_a_draft_that_is_not_whole_says_so():
    assert writers.markdown(draft([read(0, "one")])) == "one\n\n<!-- interrupted: pages 2, 3 were not read -->\n"


# --- jobs ---
class FakePipeline:
    """Holds at most `window` inputs; answers the newest first; says what it saw of each picture."""

    capabilities, feed, device_seconds = SimpleNamespace(max_batch_size=3), None, MappingProxyType({})
    device, compile_seconds = torch.device("cpu"), 0.0

    def __init__(self, window=3, interrupt_after=None):
        self.clock = StageClock()
        self.window, self.interrupt_after, self.pulled, self.answered, self.most = window, interrupt_after, 0, 0, 0

    def usage(self):
        return None

    def as_completed(self, inputs, *, on_error, **sampling):
        assert on_error == "yield" and sampling.keys() <= {"max_new_tokens", "seed"}
        inputs, held = iter(enumerate(inputs)), []
        while True:
            while len(held) < self.window and (pair := next(inputs, None)):
                held.append(pair)
            self.most = max(self.most, len(held))
            if not held:
                return
            index, given = held.pop()
            wait([given])
            if given.cancelled():
                continue
            if self.answered == self.interrupt_after:
                raise KeyboardInterrupt
            self.answered += 1
            try:
                yield index, output(f"shade {given.result().getpixel((0, 0))[0]}")
            except (DocumentError, ImageError) as error:
                yield index, error


class FailingPipeline(FakePipeline):
    """Fails at the page of one shade."""

    def as_completed(self, inputs, **options):
        for index, result in super().as_completed(inputs, **options):
            yield index, ImageError("page is damaged.") if getattr(result, "text", "") == "shade 40" else result


def run(paths, out, pipeline=None, on_progress=lambda summary: None, **options):
    config = JobConfig(**options)
    documents = name_all(find_documents(paths).sources)
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        placed = Outputs(out, config.format, ledger)
        return Job(PipelineReader(pipeline or FakePipeline()), documents, config, ledger, placed, on_progress).run()


def test_job_writes_a_file_a_document(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    pages(root / "sub" / "b.pdf", 3)
    pipeline = FakePipeline()
    summary = run([root], out, pipeline)
    assert (summary.documents, summary.pages, summary.tokens, summary.failures) == (2, 4, 8, [])
    assert (out / "a.md").read_text() == "shade 7\n"
    assert (out / "sub" / "b.md").read_text().startswith("shade 0\n\nshade ")
    assert (out / "sub" / "b.md").read_text().count("shade") == 3
    assert summary.finish_reasons == {"eos": 4} and pipeline.most == 3


def test_existing_outputs_are_skipped(tmp_path):
    path, out = image(tmp_path / "a.png", 7), tmp_path / "out"
    run([path], out)
    (out / "a.md").write_text("mine")
    assert run([path], out).skipped == 1 and (out / "a.md").read_text() == "mine"
    assert run([path], out, recompute=True).documents == 1 and (out / "a.md").read_text() == "shade 7\n"


def test_a_bad_page_costs_a_page_and_a_bad_document_a_document(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    several = pages(root / "several.tif", 3)
    image(root / "good.png", 5)
    (root / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    (root / "text.png").write_text("no image")

    summary = run([root], out, FailingPipeline())
    assert outputs(out) == {"good.md", "several.md"}
    assert (out / "several.md").read_text() == "shade 0\n\n<!-- page 2: page is damaged. -->\n\nshade 80\n"
    assert Failure(several, 2, "page is damaged.") in summary.failures
    assert {f.document.name for f in summary.failures if f.page is None} == {"broken.pdf", "text.png"}
    assert len(summary.failures) == 3 and (summary.done, summary.documents) == (4, 2)


def test_files_that_are_attached_to_a_document_are_told_of(tmp_path):
    path = tmp_path / "portfolio.pdf"
    with closing(pypdfium2.PdfDocument.new()) as pdf:
        pdf.new_page(200, 200)
        for name in ("letter.pdf", "table.xlsx"):
            pdf.new_attachment(name).set_data(b"content")
        pdf.save(path)
    summary = run([path, image(tmp_path / "a.png")], tmp_path / "out")
    told = f"left out: 2 attachments of {path}; save them as files of their own to read them."
    assert [*complaints(summary)] == [told] and summary.is_complete
    assert job_report(summary, {}, None)["attachments"] == {str(path): 2}
    with closing(RenderPool(1)) as pool:
        assert pool.open(path).result().num_attachments == 2


def test_files_that_are_no_documents_by_their_names_are_told_of(tmp_path):
    root = tmp_path / "in"
    image(root / "a.png", 7)
    for name in ("photo.HEIC", "sub/b.heic", "scans.zip", "letter", ".hidden.zip"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"")
    other_files = find_documents([root, root / "a.png"]).other_files
    assert other_files == {".heic": 2, ".zip": 1, "": 1}
    told = "left out: 4 files whose names are not those of documents (2 .heic, 1 without an ending, 1 .zip)."
    summary = Summary(total=1, documents=1, other_files=other_files)
    assert [*complaints(summary)] == [told] and summary.is_complete
    assert job_report(summary, {}, None)["other_files"] == {".heic": 2, "": 1, ".zip": 1}
    assert not [*complaints(Summary(total=1, documents=1))]


def test_bad_pages_are_told_of_by_every_run_that_finds_them_in_an_output(tmp_path):
    """A command that is repeated until it succeeds would lose them."""
    root, out = tmp_path / "in", tmp_path / "out"
    several = pages(root / "several.tif", 3)
    image(root / "good.png", 5)

    first, again = run([root], out, FailingPipeline()), run([root], out)
    assert again.failures == first.failures == [Failure(several, 2, "page is damaged.")]
    assert (again.skipped, again.failed, again.is_complete) == (2, 0, False)
    assert run([root / "good.png"], out).is_complete
    assert run([root], out, pages="1").is_complete and run([root], out, pages="1").is_complete
    assert not run([root], out).is_complete and not run([root], out).is_complete
    assert run([several], out, recompute=True).is_complete and run([root], out).is_complete


def test_pages_outside_a_document(tmp_path):
    root = tmp_path / "in"
    pages(root / "long.pdf", 4)
    pages(root / "short.pdf", 1)
    summary = run([root], tmp_path / "out", pages="2-3")
    assert summary.pages == 2 and [f.document.name for f in summary.failures] == ["short.pdf"]
    assert "the document has 1 page" in summary.failures[0].reason


def test_interrupt_keeps_what_is_finished(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    image(root / "a.png", 7)
    pages(root / "b.pdf", 6)
    summary = run([root], out, FakePipeline(window=2, interrupt_after=4))
    assert summary.interrupted and summary.documents + len(summary.partial) >= 1
    partial = (out / "b.partial.md").read_text()
    assert partial.count("shade") == summary.pages - summary.documents and "<!-- interrupted: pages" in partial
    assert not (out / "b.md").exists()
    again = run([root], out)
    assert not again.interrupted and (out / "b.md").read_text().count("shade") == 6
    assert outputs(out) == {"a.md", "b.md"}


def test_memory_stays_bounded(tmp_path, monkeypatch):
    """A document is opened when its pages are due: one of them is ahead of the engine."""
    root = tmp_path / "in"
    for i in range(20):
        image(root / f"{i:02}.png", i)
    opened, held, pipeline = [], [], FakePipeline(window=3)

    def noted(self, path):
        opened.append(path)
        held.append(len(opened) - pipeline.answered)
        init(self, path)

    init = OpenDocument.__init__
    monkeypatch.setattr(OpenDocument, "__init__", noted)
    run([root], tmp_path / "out", pipeline, format="jsonl")
    assert len(opened) == 20 and max(held) <= 3 + 1


def test_a_pdf_is_opened_again_before_its_pages_fill_the_memory(tmp_path, monkeypatch):
    path, opened = pages(tmp_path / "a.pdf", 6), []
    whole = OpenDocument(path)
    pictures = [whole.render(page).tobytes() for page in range(6)]
    monkeypatch.setattr("vlm_app.ocr.documents.open_document.MOST_HELD", 2.5 * path.stat().st_size / 6)
    own_open = opening.open_document
    monkeypatch.setattr(opening, "open_document", lambda path: opened.append(path) or own_open(path))
    document = OpenDocument(path)
    assert [document.render(page).tobytes() for page in range(6)] == pictures
    assert len(opened) == 3  # two pages each
