"""PDFs of letter pages, written by pypdfium2: text with its font, rules, or a picture that fills the page."""

from __future__ import annotations

import ctypes
import hashlib
import io
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError
from vlm.processing.media.documents.pdf import PDFIUM
from vlm_app.bench.pages.layout import HEIGHT, WIDTH, Line, Page, Rule

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

FONTS = {False: b"Helvetica", True: b"Helvetica-Bold"}  # of every PDF reader; by bold
RULE_WIDTH = 0.5  # points
# what pdfium takes from the clock and from its addresses
CREATED = re.compile(rb"(?<=/CreationDate\(D:)\d{14}")
FILE_ID = re.compile(rb"(?<=<)[0-9A-F]{32}(?=>)")


def check_pypdfium2(kinds: Iterable[str]) -> None:
    """Raises InputError where PDFs are to be written and the package is missing."""
    try:
        import pypdfium2  # noqa: F401
    except ImportError:
        raise InputError(
            f"--kinds holds {', '.join(kinds)}, PDFs, which need the package pypdfium2: pip install pypdfium2, or give"
            " --kinds png,jpeg."
        ) from None


def pdf_of_pages(pages: Iterable[Page]) -> bytes:
    """Returns a PDF with text that can be extracted, and rules; the same pages give the same bytes."""
    with PDFIUM:
        pdf = _new()
        for page in pages:
            sheet = pdf.new_page(WIDTH, HEIGHT)
            objects = [_text(pdf, line) for line in page.lines] + ([_path(page.rules)] if page.rules else [])
            for each in objects:
                _raw().FPDFPage_InsertObject(sheet, each)
            sheet.gen_content()
            sheet.close()
        return _saved(pdf)


def pdf_of_jpegs(jpegs: Iterable[bytes]) -> bytes:
    """Returns a PDF whose pages are a picture each; the same pictures give the same bytes."""
    import pypdfium2

    jpegs = list(jpegs)  # made outside of the lock
    with PDFIUM:
        pdf = _new()
        for jpeg in jpegs:
            sheet, picture = pdf.new_page(WIDTH, HEIGHT), pypdfium2.PdfImage.new(pdf)
            picture.load_jpeg(io.BytesIO(jpeg), inline=True)
            picture.set_matrix(pypdfium2.PdfMatrix().scale(WIDTH, HEIGHT))
            sheet.insert_obj(picture)
            sheet.gen_content()
            sheet.close()
        return _saved(pdf)


def _new() -> PdfDocument:
    import pypdfium2

    return pypdfium2.PdfDocument.new()


def _raw() -> Any:
    import pypdfium2.raw

    return pypdfium2.raw


def _text(pdf: PdfDocument, line: Line) -> Any:
    raw, letters = _raw(), ctypes.create_string_buffer(f"{line.text}\0".encode("utf-16-le"))
    text = raw.FPDFPageObj_NewTextObj(pdf, FONTS[line.bold], line.size)
    raw.FPDFText_SetText(text, ctypes.cast(letters, raw.FPDF_WIDESTRING))
    raw.FPDFPageObj_Transform(text, 1, 0, 0, 1, line.x, HEIGHT - line.y)
    return text


def _path(rules: list[Rule]) -> Any:
    raw = _raw()
    path = raw.FPDFPageObj_CreateNewPath(rules[0].x0, HEIGHT - rules[0].y0)
    for rule in rules:
        raw.FPDFPath_MoveTo(path, rule.x0, HEIGHT - rule.y0)
        raw.FPDFPath_LineTo(path, rule.x1, HEIGHT - rule.y1)
    raw.FPDFPageObj_SetStrokeWidth(path, RULE_WIDTH)
    raw.FPDFPath_SetDrawMode(path, raw.FPDF_FILLMODE_NONE, True)
    return path


def _saved(pdf: PdfDocument) -> bytes:
    """Closes the document, and returns it with a date and a file id that follow from its content."""
    content = io.BytesIO()
    pdf.save(content)
    pdf.close()
    body, trailer, tail = content.getvalue().rpartition(b"trailer")
    body = CREATED.sub(b"20000101000000", body, count=1)
    mark = hashlib.md5(body, usedforsecurity=False).hexdigest().upper().encode()
    return body + trailer + FILE_ID.sub(mark, tail)
