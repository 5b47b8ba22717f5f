"""Pages that are drawn no larger than what a model keeps of them."""

from __future__ import annotations

import ctypes
import io
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageDraw

from tests.kits import media_kit as kit
from visual_engines.images.image_processors import BLIP, CLIP, LLAVA
from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.errors import ImageError
from vlm.processing.media.documents import pdf, pdf_streams
from vlm.processing.media.documents.document import DocumentPage, open_document
from vlm.processing.media.documents.pdf import PdfDocument
from vlm.processing.media.documents.pdf_streams import COMPARED, PIECE, AlteredImages, texts
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.media.images import load_image
from vlm.processing.media.pool import MediaConfig
from vlm.processing.media.reading import read_pixels
from vlm.processing.media.sized_images import OVERSAMPLING
from vlm_app.demo.documents import UploadedPage

FRAME = {"size": {"height": 96, "width": 64}}
LINES = b"".join(b"%d %d 400 6 re f " % (100 + 3 * i, 80 + 60 * i) for i in range(11))  # in a page of 612 × 792 points


def page(content: bytes = LINES) -> PdfDocument:
    return PdfDocument(kit.one_page(content, box=b"0 0 612 792"), "x.pdf")


def nougat(**settings) -> ImageProcessor:
    return ImageProcessor(NOUGAT_IMAGES, FRAME | settings)


def values(processor: ImageProcessor, picture: Image.Image) -> torch.Tensor:
    return processor([picture])[0]


def test_a_page_is_drawn_somewhat_larger_than_its_frame():
    assert page().render(0).size == (1700, 2200)
    for settings in ({}, {"do_crop_margin": False}):
        processor = ImageProcessor(NOUGAT_IMAGES, {"size": {"height": 896, "width": 672}} | settings)
        picture = page().render(0, detail=processor)
        assert picture.width == pytest.approx(672 * OVERSAMPLING, abs=1)
        exact, own = (values(processor, each) for each in (page().render(0), picture))
        assert float((exact - own).abs().mean()) < 0.1 * float(exact.std()), settings


def test_small_content_is_drawn_as_large_as_the_frame_needs_it():
    """Without its margin a drop of text is enlarged: a page that was drawn at the frame's size would blur it."""
    drop = b"300 400 40 50 re f"
    picture = page(drop).render(0, detail=nougat())
    assert nougat().content_size(picture)[1] >= 64 and picture.width < 1700
    assert page(drop).render(0, detail=nougat(do_crop_margin=False)).width < picture.width
    dot = page(b"300 400 4 5 re f").render(0, detail=nougat())
    assert dot.size == (1700, 2200), "never larger than the page at 200 dpi"


def test_what_is_kept_of_a_picture():
    """The factor by which each processor scales, as it shows in what it makes of a picture."""
    square = {"pad_to_square": True, "size": {"shortest_edge": 24}, "crop_size": {"height": 24, "width": 24}}
    for spec, settings, size, factor in (
        (CLIP, {"size": {"shortest_edge": 24}}, (240, 120), 24 / 120),
        (CLIP, square, (240, 120), 24 / 240),
        (BLIP, {"size": {"height": 24, "width": 48}}, (240, 120), 48 / 120),
        (LLAVA, {"size": {"shortest_edge": 24}, "do_pad": True}, (240, 120), 24 / 240),
        (NOUGAT_IMAGES, FRAME, (240, 120), 64 / 120),
        (CLIP, {"size": {"longest_edge": 24}}, (240, 120), None),
        (CLIP, {"do_resize": False, "size": {"shortest_edge": 24}}, (240, 120), None),
        (NOUGAT_IMAGES, {"do_resize": False} | FRAME, (240, 120), None),
    ):
        assert spec.scale(size, settings) == (factor and pytest.approx(factor)), (spec.name, settings)


def test_a_jpeg_is_decoded_at_a_part_of_its_size(tmp_path: Path):
    picture = Image.new("RGB", (1600, 2000), "white")
    ImageDraw.Draw(picture).rectangle((100, 100, 1500, 1900), fill="grey", outline="black", width=40)
    for name, size in (("a.jpg", (200, 250)), ("a.png", (1600, 2000))):
        picture.save(tmp_path / name)
        assert open_document(tmp_path / name).render(0, detail=nougat()).size == size
        assert open_document(tmp_path / name).render(0).size == (1600, 2000)
    turned = picture.getexif()
    turned[0x0112] = 6  # a camera held upright
    picture.save(tmp_path / "b.jpg", exif=turned)
    assert open_document(tmp_path / "b.jpg").render(0, detail=nougat()).size == (250, 200)


def test_content_is_looked_for_where_more_could_be_drawn(tmp_path, monkeypatch):
    seen, own = [], ImageProcessor.content_size
    monkeypatch.setattr(ImageProcessor, "content_size", lambda self, image: seen.append(image.size) or own(self, image))
    Image.new("RGB", (800, 1000), "white").save(tmp_path / "a.jpg")
    for height, width, looked in ((420, 300, []), (200, 160, [(400, 500)])):  # at 1.5: more than a half; less
        open_document(tmp_path / "a.jpg").render(0, detail=nougat(size={"height": height, "width": width}))
        assert seen == looked


def test_a_sample_tells_how_large_the_content_is():
    """To within a pixel of the sample; of what lies between its pixels, all of them tell."""
    picture = Image.new("RGB", (1600, 2000), "white")
    ImageDraw.Draw(picture).rectangle((300, 500, 1000, 700), fill="black")
    height, width = nougat().content_size(picture)
    assert height == pytest.approx(201, abs=6) and width == pytest.approx(701, abs=6)
    dot = Image.new("RGB", (1600, 2000), "white")
    dot.putpixel((300, 501), (0, 0, 0))
    assert nougat().content_size(dot) == (1, 1)


@pytest.mark.parametrize("kind", ["content", "page of a file", "upload"])
def test_servers_and_demos_draw_pages_so_unless_they_are_told_not_to(monkeypatch, tmp_path, kind):
    from tests.unit.processing.test_images import ProcessorSource

    source, seen = ProcessorSource(None, (NOUGAT_IMAGES,), (96, 64)), []
    read = ImageProcessor.read
    monkeypatch.setattr(ImageProcessor, "read", lambda self, image: seen.append(image.size) or read(self, image))
    content, path = kit.one_page(LINES, box=b"0 0 612 792"), tmp_path / "a.pdf"
    path.write_bytes(content)
    files = {"content": content, "page of a file": DocumentPage(str(path), 0), "upload": UploadedPage(str(path), 1)}
    for exact in (False, True):
        [[image]] = read_pixels([files[kind]], source, MediaConfig(exact_pixels=exact))
        assert image.pixels.shape == (3, 96, 64) and image.pixels.dtype == np.uint8
    assert seen[0][0] < 110 and seen[1] == (1700, 2200)


@pytest.mark.parametrize("exact", [False, True])
def test_an_uploaded_jpeg_is_decoded_as_one_of_a_job(monkeypatch, tmp_path, exact):
    from tests.unit.processing.test_images import ProcessorSource

    source, seen, read = ProcessorSource(None, (NOUGAT_IMAGES,), (96, 64)), [], ImageProcessor.read
    monkeypatch.setattr(ImageProcessor, "read", lambda self, image: seen.append(image.size) or read(self, image))
    page().render(0).save(path := tmp_path / "a.jpg")
    own = source.load()
    want = own.read(open_document(path).render(0, detail=None if exact else own))
    [[image]] = read_pixels([path.read_bytes()], source, MediaConfig(exact_pixels=exact))
    assert np.array_equal(image.pixels, want.pixels)
    assert seen == [(1700, 2200) if exact else (213, 275)] * 2
    with pytest.raises(ImageError, match=r"1700×2200 pixels, the limit is 1,000,000"):
        read_pixels([path.read_bytes()], source, MediaConfig(exact_pixels=exact, max_pixels=1_000_000))


# --- pages that are one JPEG ---
def scan(folder: Path, size: tuple[int, int] = (1700, 2200), **options) -> Path:
    """Writes a PDF of a page with one image, as Pillow makes it: a JPEG at 200 dpi."""
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    for i in range(12):
        draw.rectangle((200 + 30 * i, 150 + 150 * i, 1400, 190 + 150 * i), fill=(20 * i, 40, 90))
    picture.save(folder / "scan.pdf", resolution=200, **options)
    return folder / "scan.pdf"


def counted(monkeypatch) -> list[float]:
    """Returns the scales at which pages are drawn from now on."""
    scales, drawn = [], pdf._drawn
    monkeypatch.setattr(pdf, "_drawn", lambda page, scale: scales.append(scale) or drawn(page, scale))
    return scales


def rewritten(path: Path, change) -> Path:
    """Changes the first page of a PDF with pypdfium2, in the file."""
    import pypdfium2

    document = pypdfium2.PdfDocument(path)
    change(document, document[0])
    document.save(path.with_name("changed.pdf"))
    return path.with_name("changed.pdf")


def add_text(mode: int):
    def change(document, page):
        from pypdfium2 import raw

        text = raw.FPDFPageObj_NewTextObj(document, b"Helvetica", 40.0)
        raw.FPDFText_SetText(text, (ctypes.c_ushort * 4)(*b"abc", 0))
        raw.FPDFTextObj_SetTextRenderMode(text, mode)
        raw.FPDFPageObj_Transform(text, 1, 0, 0, 1, 100, 700)
        raw.FPDFPage_InsertObject(page, text)
        page.gen_content()

    return change


def test_a_scanned_page_is_decoded_in_place_of_drawn(tmp_path, monkeypatch):
    processor, scales = ImageProcessor(NOUGAT_IMAGES, {"size": {"height": 448, "width": 336}}), counted(monkeypatch)
    for turn in (0, 90, 180, 270):
        path = rewritten(scan(tmp_path), lambda document, page, turn=turn: page.set_rotation(turn))
        own = open_document(path).render(0, detail=processor)
        assert scales == [] and max(own.size) == 1100, "a half of it"
        drawn = open_document(path).render(0)
        assert len(scales) == 1 and drawn.width > drawn.height if turn % 180 else drawn.width < drawn.height
        exact, fast = values(processor, drawn), values(processor, own)
        assert float((exact - fast).abs().mean()) < 0.05 * float(exact.std())
        scales.clear()
    text_layer = rewritten(scan(tmp_path), add_text(mode=3))  # as OCR programs add it
    open_document(text_layer).render(0, detail=processor)
    assert scales == []


def test_a_scanned_page_is_not_turned_as_its_photograph_says(tmp_path, monkeypatch):
    processor, scales = ImageProcessor(NOUGAT_IMAGES, {"size": {"height": 448, "width": 336}}), counted(monkeypatch)
    data = Image.Exif()
    data[0x0112] = 6
    path = scan(tmp_path, exif=data.tobytes())
    assert data.tobytes() in path.read_bytes()
    picture = load_image(DocumentPage(str(path), 0), detail=processor)
    assert scales == [] and picture.size == (850, 1100)


@pytest.mark.parametrize("kind", ["more text", "smaller", "cmyk"])
def test_what_is_more_than_a_scan_is_drawn(tmp_path, monkeypatch, kind):
    processor, scales = ImageProcessor(NOUGAT_IMAGES, {"size": {"height": 448, "width": 336}}), counted(monkeypatch)
    path = scan(tmp_path)
    if kind == "more text":
        path = rewritten(path, add_text(mode=0))
    elif kind == "smaller":
        path = rewritten(path, lambda document, page: page.set_mediabox(-100, 0, 612, 792))
    else:
        Image.new("CMYK", (1700, 2200), (0, 0, 0, 20)).save(path, resolution=200)
    picture = open_document(path).render(0, detail=processor)
    assert scales and picture.width < 1100


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
TURNED_ROUND = b"<</FunctionType 2/Domain[0 1]/C0[1]/C1[0]/N 1>>"


def jpeg_page(entries: bytes, mark: bytes, size: bytes = b"200 0 0 200", **page) -> bytes:
    """Returns a PDF of a page that a JPEG with these entries and this mark, or state, fills. Object 6 is a mask, 7 a
    layer, 8 has settings of the JPEG's decoder, 9 its levels, 10 and 11 profiles of colours: of sRGB, and another."""
    data = io.BytesIO()
    Image.linear_gradient("L").resize((400, 400)).convert("RGB").save(data, "JPEG")
    kind = b"/Type/XObject/Subtype/Image/BitsPerComponent 8"
    colours = b"" if b"/ColorSpace" in entries else b"/ColorSpace/DeviceRGB"
    image = kind + b"/Width 400/Height 400/Filter/DCTDecode" + colours + entries
    more = (
        kit.stream(data.getvalue(), image),
        kit.stream(b"\0\xff", kind + b"/Width 2/Height 1/ColorSpace/DeviceGray"),
        b"<</Type/OCG/Name(a)>>",
        b"<</ColorTransform 0>>",
        b"[1 0 1 0 1 0]",
        kit.stream(SRGB, b"/N 3"),
        kit.stream(SRGB.replace(b"\0\2ff", b"\0\1\0\0"), b"/N 3"),  # its exponent
    )
    resources = b"/XObject<</I 5 0 R>>/Properties<</L 7 0 R>>/ExtGState<</S<<%s>>>>"
    is_state = mark.startswith(b"/TR")
    content = b"q /S gs %s 0 0 cm /I Do Q" % size
    content = content if is_state else mark + b"BDC " + content + b" EMC"
    return kit.one_page(content, resources % (mark if is_state else b""), more=more, **page)


@pytest.mark.parametrize(
    "entries, mark, is_drawn",
    [
        (b"", b"/Artifact<<>>", False),
        (b"/Decode [ 0 1 0 1 0 1 ]/ImageMask false", b"/OCR<<>>", False),
        (b"/DecodeParms[<</ColorTransform 1>>]", b"/P<<>>", False),
        (b"", b"/TR/Identity/TR2/Default", False),
        (b"/ColorSpace[/ICCBased 10 0 R]", b"/P<<>>", False),
        (b"/ColorSpace[/ICCBased 11 0 R]", b"/P<<>>", True),
        (b"/Decode[1 0 1 0 1 0]", b"/P<<>>", True),
        (b"/Decode 9 0 R", b"/P<<>>", True),
        (b"/SMask 6 0 R", b"/P<<>>", True),
        (b"/Mask[0 90 0 90 0 90]", b"/P<<>>", True),
        (b"/OC 7 0 R", b"/P<<>>", True),
        (b"", b"/OC/L ", True),
        (b"/DecodeParms<</ColorTransform 0>>", b"/P<<>>", True),
        (b"/DecodeParms[8 0 R]", b"/P<<>>", True),
        (b"", b"/TR" + TURNED_ROUND, True),
        (b"", b"/TR2 [" + 4 * TURNED_ROUND + b"]", True),
    ],
    ids=[
        *(
            "as it is",
            "its own levels",
            "its own colours",
            "no function",
            "sRGB",
            "other colours",
            "levels",
            "levels elsewhere",
            "mask",
        ),
        *("colours of a mask", "layer of it", "layer around it", "decoder", "decoder elsewhere", "function of levels"),
        "four of them",
    ],
)
def test_a_jpeg_with_a_mask_other_levels_or_a_layer_is_drawn(monkeypatch, entries, mark, is_drawn):
    processor, scales = ImageProcessor(CLIP, {"size": {"height": 48, "width": 48}}), counted(monkeypatch)
    document = PdfDocument(jpeg_page(entries, mark), "x.pdf")
    picture = document.render(0, detail=processor)
    assert bool(scales) == is_drawn
    whole = document.render(0).resize(picture.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(whole, dtype=int) - np.asarray(picture)).mean() < 4


@pytest.mark.parametrize("size, is_drawn", [(b"200 0 0 200", False), (b"612 0 0 792", True)], ids=["page", "letter"])
def test_a_jpeg_is_compared_with_the_box_that_a_page_inherits(monkeypatch, size, is_drawn):
    processor, scales = ImageProcessor(CLIP, {"size": {"height": 48, "width": 48}}), counted(monkeypatch)
    document = PdfDocument(jpeg_page(b"", b"/P<<>>", size, is_inherited=True), "x.pdf")
    picture = document.render(0, detail=processor)
    assert bool(scales) == is_drawn
    whole = document.render(0).resize(picture.size, Image.Resampling.BOX)
    assert np.abs(np.asarray(whole, dtype=int) - np.asarray(picture)).mean() < 4


def test_an_altered_image_is_known_by_how_it_begins():
    altered, plain = bytes([1]) * COMPARED, bytes([2]) * COMPARED
    content = kit.pdf([kit.stream(altered + b"..", b"/Filter/DCTDecode/SMask 2 0 R"), kit.stream(plain)])
    for is_encrypted in (False, True):
        images = AlteredImages(content, is_encrypted=is_encrypted)
        assert images.may_hold(altered + b"..") and images.may_hold(b"short")
        assert images.may_hold(plain) == is_encrypted
        none = AlteredImages(kit.pdf([kit.stream(plain, b"/Filter/DCTDecode")]), is_encrypted=is_encrypted)
        assert not none.may_hold(plain) and not none.may_hold(b"short")


@pytest.mark.parametrize("state, may_hold", [(b"/TR 9 0 R", True), (b"/S/TR/P 9 0 R", False)], ids=["levels", "row"])
def test_levels_that_are_changed_in_an_object_stream(state, may_hold):
    objects = kit.stream(zlib.compress(b"7 0 <<%s>>" % state), b"/Type/ObjStm/N 1/First 4/Filter/FlateDecode")
    broken = objects.replace(b"\n", b"\n.", 1)  # as encryption makes of it
    for content, answer in ((objects, may_hold), (broken, True)):
        images = AlteredImages(kit.pdf([content, kit.stream(b"", b"/Filter/DCTDecode")]), is_encrypted=False)
        assert images.may_hold(bytes(COMPARED)) == answer


def test_a_file_of_too_much_that_is_to_be_looked_through(monkeypatch):
    """Any of its images may be altered: their pages are drawn."""
    monkeypatch.setattr(pdf_streams, "MOST_PIECES", 20)
    monkeypatch.setattr(pdf_streams, "MOST_INFLATED", 1000)
    for content, answer in (
        (b"stream\n" * 19, False),
        (b"stream\n" * 21, True),
        (bytes(PIECE * 21), True),
        (b"<</Type/ObjStm>>stream\n" + zlib.compress(bytes(1000)), False),
        (b"<</Type/ObjStm>>stream\n" + zlib.compress(bytes(1001)), True),
    ):
        assert AlteredImages(content, is_encrypted=False).may_hold(bytes(COMPARED)) == answer


@pytest.mark.parametrize(
    "length", [b"%d", b"9 0 R", b"7", b"99999", b""], ids=["its own", "elsewhere", "short", "long", "none"]
)
@pytest.mark.parametrize("size", [10, 3 * PIECE])
@pytest.mark.parametrize("end", [b"\r\n", b"\n", b"\r", b" \r\n"], ids=["two", "one", "another", "a blank"])
def test_the_streams_of_a_file(length, size, end):
    """Whatever their contents look like, where these are passed over."""
    inside = b"<</A 1>>stream\n"
    content = inside + b"x" * size
    first = length % len(content) if b"%" in length else length
    objects = [
        b"<</A 2/Length %s>>stream%s%s\nendstream" % (first, end, content),
        b"<</B 1>>",
        kit.stream(b"", b"/C 3"),
    ]
    data = kit.pdf(objects)
    pieces = list(texts(io.BytesIO(data)))
    found = [(text.rpartition(b"endobj")[2], data[at : at + 4]) for text, at in pieces if at is not None]
    assert b"/A 2" in found[0][0] and found[0][1] == content[:4]
    assert b"/C 3" in found[-1][0] and b"/B" not in found[-1][0] and found[-1][1] == b"\nend"
    assert any(b"<</B 1>>" in text for text, _ in pieces) and any(b"trailer" in text for text, _ in pieces)
    assert len(found) == (2 if length == b"%d" else 3)
