"""PDFs and images as documents of pages."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from tests.kits import media_kit as kit
from vlm.errors import DocumentError, ImageError
from vlm.processing.media.documents.document import (
    DocumentPage,
    content_document,
    document_pages,
    has_pages,
    is_document,
    open_document,
)
from vlm.processing.media.documents.page_range import parse_pages
from vlm_app.ocr.documents.open_document import OpenDocument

pypdfium2 = pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: no PDF can be read")

COLOURS = ["red", "lime", "blue"]


@pytest.fixture
def pdf(tmp_path):
    pages = [Image.new("RGB", (120, 180), colour) for colour in COLOURS]
    pages[0].save(tmp_path / "x.pdf", save_all=True, append_images=pages[1:], resolution=72)
    return tmp_path / "x.pdf"


def test_pages_of_a_pdf(pdf):
    document = open_document(pdf)
    assert document.num_pages == 3
    shades = [document.render(i, dpi=72).getpixel((60, 90)) for i in range(3)]
    assert [max(range(3), key=shade.__getitem__) for shade in shades] == [0, 1, 2]
    assert document.render(0, dpi=144).size == (240, 360)


@pytest.mark.parametrize("value", ["drawn by its program", "typed"])
@pytest.mark.parametrize("xfa", [b"", b"/XFA[(template)6 0 R]"], ids=["plain", "XFA"])
def test_what_stands_in_form_fields_is_drawn(value, xfa, caplog):
    typed = b"/V(MMMMMM)/DA(/Helv 40 Tf 0 g)" if value == "typed" else b"/AP<</N 6 0 R>>"
    field = b"<</Type/Annot/Subtype/Widget/FT/Tx/T(a)/F 4/Rect[10 10 190 60]%s>>" % typed
    form = b"<</Fields[5 0 R]/DR<</Font<</Helv<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>%s>>" % xfa
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Contents 4 0 R/Annots[5 0 R]>>"
    content = kit.pdf(
        [
            b"<</Type/Catalog/Pages 2 0 R/AcroForm%s>>" % form,
            b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
            page,
            kit.stream(b""),
            field,
            kit.stream(b"0 0 90 50 re f", b"/Type/XObject/Subtype/Form/BBox[0 0 180 50]"),
        ]
    )
    levels = np.asarray(content_document(content, "form.pdf").render(0, dpi=72).convert("L"))
    assert levels[140:190, 10:190].min() < 64, "in the field"
    assert levels[:130].min() == 255, "outside of it"
    assert not caplog.records


def test_an_image_is_a_document_of_one_page_and_a_tiff_of_its_frames(tmp_path):
    frames = [Image.new("RGB", (9, 9), colour) for colour in COLOURS]
    frames[0].save(tmp_path / "x.png")
    frames[0].save(tmp_path / "x.tif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert open_document(tmp_path / "x.png").num_pages == 1
    assert open_document(tmp_path / "x.gif").num_pages == 1
    tiff = open_document(tmp_path / "x.tif")
    assert [tiff.render(i).getpixel((4, 4)) for i in range(3)] == [(255, 0, 0), (0, 255, 0), (0, 0, 255)]


@pytest.mark.parametrize("compression", [None, "tiff_lzw"])
def test_a_frame_is_found_without_those_before_it(tmp_path, monkeypatch, compression):
    """Whichever is read: a document of n frames costs n times one of them, and no frame but that is held."""
    frames = [Image.new("RGB", (4 + n % 3, 4), (n, 255 - n, 7)) for n in range(200)]
    frames[0].save(tmp_path / "x.tif", save_all=True, append_images=frames[1:], compression=compression)
    document, seen, load = open_document(tmp_path / "x.tif"), [], ImageFileDirectory_v2.load
    monkeypatch.setattr(ImageFileDirectory_v2, "load", lambda self, file: seen.append(file.tell()) or load(self, file))
    for n in (*range(200), 120, 3):
        assert document.render(n).tobytes() == frames[n].tobytes()
        assert 0 < len(seen) <= 4, f"directories that were read for frame {n}"
        seen.clear()


def test_broken_documents_are_refused_in_one_sentence(tmp_path, pdf):
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing of the kind")
    (tmp_path / "text.pdf").write_bytes(b"hello")
    (tmp_path / "text.png").write_bytes(b"hello")
    cut = tmp_path / "cut.pdf"
    cut.write_bytes(pdf.read_bytes()[:200])
    encrypted = tmp_path / "encrypted.pdf"
    encrypted.write_bytes(ENCRYPTED)
    (tmp_path / "broken.tif").write_bytes(b"II*\0" + b"\xff" * 40)
    for name, reason in {
        "missing.pdf": "does not exist", "broken.pdf": "no readable PDF", "text.pdf": "no readable PDF",
        "cut.pdf": "no readable PDF", "encrypted.pdf": "encrypted", "text.png": "no image",
        "broken.tif": r"no image|damaged",
    }.items():  # fmt: skip
        with pytest.raises((DocumentError, ImageError), match=reason) as error:
            open_document(tmp_path / name)
        assert name in str(error.value) and "\n" not in str(error.value)


def test_a_document_without_pages(tmp_path):
    empty = pypdfium2.PdfDocument.new()
    empty.save(tmp_path / "empty.pdf")
    with pytest.raises(DocumentError, match=r"empty\.pdf is a PDF without pages") as error:
        open_document(tmp_path / "empty.pdf")
    assert error.value.kind == "empty"


def test_a_document_that_is_open_when_the_process_ends_is_closed_without_a_word(pdf):
    script = (  # the folder's finalizer comes first, and with it those of all that is opened later come last
        "import sys, tempfile; folder = tempfile.TemporaryDirectory()\n"
        "from vlm.processing.media.documents.document import open_document; document = open_document(sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", script, pdf], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_what_is_said_of_a_document_does_not_come_from_the_one_before(tmp_path):
    (tmp_path / "encrypted.pdf").write_bytes(ENCRYPTED)
    pypdfium2.PdfDocument.new().save(tmp_path / "no-pages.pdf")
    with pytest.raises(DocumentError, match="encrypted") as error:
        open_document(tmp_path / "encrypted.pdf")
    assert error.value.kind == "encrypted"
    with pytest.raises(DocumentError, match="without pages"):
        open_document(tmp_path / "no-pages.pdf")


def test_a_refused_document_is_closed(pdf, monkeypatch):
    closed, close = [], pypdfium2.PdfDocument.close
    monkeypatch.setattr(pypdfium2.PdfDocument, "close", lambda own: closed.append(own) or close(own))
    monkeypatch.setattr("vlm.processing.media.documents.pdf.MAX_PAGES", 2)
    with pytest.raises(DocumentError, match="claims 3 pages, the limit is 2") as error:
        open_document(pdf)
    assert len(closed) == 1 and error.value.kind == "too large"


def test_pages_of_documents_are_drawn_one_at_a_time(pdf, monkeypatch):
    """PDFium is not for several threads at once, whatever document they draw: as those of a pool without processes."""
    at_once, most, draw = [], [], pypdfium2.PdfPage.render

    def watched(page, **options):
        at_once.append(page)
        most.append(len(at_once))
        time.sleep(0.05)
        try:
            return draw(page, **options)
        finally:
            at_once.remove(page)

    monkeypatch.setattr(pypdfium2.PdfPage, "render", watched)
    documents = [content_document(pdf.read_bytes(), "x.pdf"), open_document(pdf), OpenDocument(pdf)]
    with ThreadPoolExecutor(4) as threads:
        pages = [threads.submit(document.render, page) for document in documents for page in range(2)]
        pages.append(threads.submit(DocumentPage(str(pdf), 2).picture))
    assert len([page.result() for page in pages]) == len(most) == 7 and max(most) == 1


def test_huge_pages_are_drawn_smaller(tmp_path):
    huge = pypdfium2.PdfDocument.new()
    huge.new_page(14000, 14000)
    huge.save(tmp_path / "huge.pdf")
    page = open_document(tmp_path / "huge.pdf").render(0, max_pixels=1_000_000)
    assert 900_000 < page.width * page.height <= 1_000_000


@pytest.mark.parametrize(
    ("pages", "want"),
    [
        ("1", [0]),
        ("1-3", [0, 1, 2]),
        ("2,1", [1, 0]),
        ("1-2,2-3", [0, 1, 2]),
        ("2-", [1, 2, 3, 4]),
        (" 1 , 5 ", [0, 4]),
    ],
)
def test_page_ranges(pages, want):
    assert parse_pages(pages, 5) == want


@pytest.mark.parametrize(
    "pages", ["0", "6", "3-2", "6-9", "x", "", "1;2", "-3", "1-2-3", "1" * 5000, f"1-{'9' * 5000}"]
)
def test_page_ranges_that_are_none(pages):
    with pytest.raises(DocumentError, match="page") as error:
        parse_pages(pages, 5)
    assert len(str(error.value)) < 200


def test_page_ranges_of_documents_of_any_length():
    assert [parse_pages("1-4", count) for count in (1, 3, 9)] == [[0], [0, 1, 2], [0, 1, 2, 3]]
    assert parse_pages("7,2-", 3) == [1, 2]
    for pages in ("4", "4-9", "5,7-", "0-2"):
        with pytest.raises(DocumentError, match="the document has 3 pages"):
            parse_pages(pages, 3)


@pytest.mark.parametrize(
    "kinds, pages",
    [((0, 1, 1), [0]), ((1, 0, 4), [1]), ((2, 2, 5), [0, 1]), ((1, 1, 1), [0, 1, 2])],
    ids=["a pyramid", "its thumbnail first", "two pages and a mask", "copies of nothing"],
)
def test_smaller_copies_and_masks_in_a_tiff_are_no_pages(tmp_path, kinds, pages):
    """By the tag NewSubfileType; digital libraries keep scans as pyramids."""
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    first, *others = (Image.new("RGB", (9, 9), colour) for colour in colours)
    first.save(path := tmp_path / "a.tif", save_all=True, append_images=others, tiffinfo={254: 77})
    content = path.read_bytes()
    for kind in kinds:
        content = content.replace(struct.pack("<HHII", 254, 4, 1, 77), struct.pack("<HHII", 254, 4, 1, kind), 1)
    path.write_bytes(content)
    document = open_document(path)
    assert [document.render(page).getpixel((4, 4)) for page in range(document.num_pages)] == [colours[n] for n in pages]


def test_a_tiff_of_several_frames_has_pages(tmp_path):
    frames = [Image.new("RGB", (9, 7), color) for color in ("red", "blue")]
    several, one, other = tmp_path / "several.tif", tmp_path / "one.tif", tmp_path / "one.png"
    frames[0].save(several, save_all=True, append_images=frames[1:])
    frames[0].save(one), frames[0].save(other)
    for path, want in ((several, True), (one, False), (other, False)):
        assert has_pages(str(path)) == has_pages(path.read_bytes()) == want
    assert not has_pages(str(tmp_path / "none.tif"))
    pages = document_pages(several.read_bytes())
    assert [page.picture().getpixel((0, 0)) for page in pages] == [(255, 0, 0), (0, 0, 255)]


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF"])
def test_an_image_that_is_named_as_a_pdf_is_one(tmp_path, format):
    Image.new("RGB", (9, 7), "red").save(tmp_path / "scan.pdf", format=format)
    assert open_document(tmp_path / "scan.pdf").render(0).size == (9, 7)
    assert document_pages(str(tmp_path / "scan.pdf"))[0].picture().size == (9, 7)


def test_is_document_goes_by_the_suffix():
    assert (
        is_document("a.PDF")
        and is_document("b.jpeg")
        and is_document("c.jfif")
        and not is_document("c.txt")
        and not is_document("d")
    )


# RC4-40, user password "x": a catalogue, a page tree and one page, no content
ENCRYPTED = b"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj
4 0 obj<</Filter/Standard/V 1/R 2/P -4
/O<0000000000000000000000000000000000000000000000000000000000000000>
/U<0000000000000000000000000000000000000000000000000000000000000000>>>endobj
trailer<</Root 1 0 R/Size 5/Encrypt 4 0 R/ID[<00000000000000000000000000000000><00000000000000000000000000000000>]>>
"""
