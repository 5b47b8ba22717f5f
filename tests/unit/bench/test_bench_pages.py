"""Documents that `vlm bench ocr` makes: what is in them, that they open, and that a seed gives the same bytes."""

from __future__ import annotations

import hashlib
import sys

import pytest
from PIL import Image

from vlm.errors import InputError
from vlm.processing.media.documents.document import open_document
from vlm_app.bench.pages.documents import WRITERS, write_documents
from vlm_app.bench.pages.kinds import IMAGE_KINDS, KINDS, PDF_KINDS
from vlm_app.bench.pages.layout import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, table_page, text_page
from vlm_app.bench.pages.pdf import check_pypdfium2, pdf_of_pages
from vlm_app.bench.pages.pictures import VARIANTS, Pictures
from vlm_app.bench.pages.words import Prose


def made(folder, *kinds, documents=1, pages=2, seed="7"):
    corpus = write_documents(folder, kinds=kinds, documents=documents, pages=pages, seed=seed)
    return corpus, sorted(path for path in folder.rglob("*") if path.is_file())


def digests(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_every_kind_has_a_writer():
    assert set(WRITERS) == set(KINDS)


def test_same_seed_same_bytes(tmp_path):
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        made(tmp_path / name, "text", "table", "scan", "png", documents=4, pages=1, seed=seed)
    first, again, other = (digests(tmp_path / name) for name in "abc")
    assert first == again and first.keys() == other.keys()
    assert all(first[name] != other[name] for name in first)


@pytest.mark.parametrize("kind", PDF_KINDS)
def test_pdfs_are_letter_pages(kind, tmp_path):
    import pypdfium2

    corpus, [file] = made(tmp_path / "made", kind)
    with pypdfium2.PdfDocument(file) as pdf:
        assert [pdf.get_page_size(page) for page in range(len(pdf))] == [(WIDTH, HEIGHT)] * 2
        sizes = [_image_sizes(pdf[page]) for page in range(2)]
    expected = {"scan": [(1700, 2200)], "photo": [(2550, 3300)]}.get(kind, [])
    assert sizes == [expected] * 2
    assert corpus.pages == 2 and corpus.bytes_per_page == {kind: file.stat().st_size // 2}
    least, most = {"scan": (3e5, 1.5e6), "photo": (1.5e6, 4e6)}.get(kind, (1e3, 1e4))
    assert least < corpus.bytes_per_page[kind] < most, "as such files have"


def _image_sizes(page):
    import pypdfium2.raw as raw

    return [image.get_px_size() for image in page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE])]


@pytest.mark.parametrize(("kind", "least", "rules"), [("text", 400, 0), ("table", 150, 1)])
def test_text_can_be_extracted(kind, least, rules, tmp_path):
    import pypdfium2
    import pypdfium2.raw as raw

    _, [file] = made(tmp_path / "made", kind)
    with pypdfium2.PdfDocument(file) as pdf:
        texts = [pdf[page].get_textpage().get_text_range() for page in range(2)]
        paths = list(pdf[0].get_objects(filter=[raw.FPDF_PAGEOBJ_PATH]))
    for number, text in enumerate(texts, start=1):
        assert text.splitlines()[0] == f"00000-{kind} of 7, page {number}" and len(text.split()) >= least
    assert texts[0].splitlines()[2:] != texts[1].splitlines()[2:] and len(paths) == rules


@pytest.mark.parametrize("kind", IMAGE_KINDS)
def test_a_document_of_images_is_a_file_a_page(kind, tmp_path):
    corpus, files = made(tmp_path / "made", kind, documents=2, pages=3)
    assert corpus.pages == len(files) == 6
    assert [path.stem for path in files] == [f"0000{i}-{kind}-000{page}" for i in range(2) for page in range(3)]
    for path in files:
        with Image.open(path) as image:
            assert (image.format, image.size, image.mode) == (kind.upper(), (1700, 2200), "RGB")


def test_no_two_pages_are_alike(tmp_path):
    """Else a cache of what was encoded could answer. Pictures take turns: more pages than there are."""
    pages = VARIANTS + 1
    _, files = made(tmp_path / "made", "scan", "png", documents=2, pages=pages)
    drawn = [
        document.render(page).tobytes() for document in map(open_document, files) for page in range(document.num_pages)
    ]
    assert len(set(drawn)) == len(drawn) == 2 * pages


def test_what_is_written_stays_within_the_margins():
    for lay_out in (text_page, table_page):
        page = lay_out(Prose("seed"))
        assert max(line.y for line in page.lines) <= BOTTOM and min(line.x for line in page.lines) >= LEFT
        assert all(rule.x1 <= RIGHT and rule.y1 <= BOTTOM + 18 for rule in page.rules)
        assert len({line.size for line in page.lines}) >= 2 and any(line.bold for line in page.lines)


def test_kinds_take_turns_in_the_order_in_which_files_are_read(tmp_path):
    _, files = made(tmp_path / "made", "text", "table", documents=4, pages=1)
    assert [path.stem.partition("-")[2] for path in files] == ["text", "table"] * 2


def test_prose_follows_from_its_seed():
    assert Prose("a").paragraph(3) == Prose("a").paragraph(3) != Prose("b").paragraph(3)


def test_without_pypdfium2_images_are_made_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    _, files = made(tmp_path / "made", "png", "jpeg", documents=2, pages=1)
    assert len(files) == 2
    with pytest.raises(InputError, match="--kinds holds text, scan, PDFs, which need the package pypdfium2"):
        check_pypdfium2(["text", "scan"])


def test_a_pdf_has_no_date_of_its_own():
    content = pdf_of_pages([text_page(Prose("seed"))])
    assert b"/CreationDate(D:20000101000000" in content and content == pdf_of_pages([text_page(Prose("seed"))])


def test_variants_are_made_once():
    pictures = Pictures("seed")
    assert pictures._drawn(1) is pictures._drawn(1) is not pictures._drawn(2)
