"""Images and documents that were made to stop a reader: one sentence, in bounded memory, whatever the bytes."""

from __future__ import annotations

import dataclasses
import importlib
import io
import math
import os
import socket
import struct

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from transformers import CLIPImageProcessor

from tests.kits import hostile_kit as kit
from visual_engines.images.image_processors import CLIP
from vlm.errors import DocumentError, ImageError
from vlm.limits import MAX_FRAMES, MAX_PADDED_PIXELS, MAX_PAGE_PIXELS, MAX_PAGES
from vlm.processing.media.documents.document import is_pdf, open_document
from vlm.processing.media.documents.pdf import PdfDocument
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.media.images import FORMATS, load_image
from vlm.registry.images.transforms import Transform

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
BOMB = kit.tag_bomb(5000, 2**20)  # 5 GB
SMALL_BOMB = kit.tag_bomb(4000, 60_000)
EXIF = b"Exif\0\0"


def with_exif(format: str, data: bytes) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format, exif=EXIF + data)
    return file.getvalue()


def encoded(format: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, format)
    return file.getvalue()


def same(image: Image.Image, other: Image.Image) -> bool:
    return np.array_equal(np.asarray(image), np.asarray(other))


@pytest.mark.parametrize("format", FORMATS)
def test_what_we_name_is_read(format):
    assert load_image(encoded(format)).size == (8, 8)


@pytest.mark.parametrize("format", ["PCX", "ICO", "TGA", "SGI", "ICNS", "DDS", "IM", "MSP", "XBM"])
def test_other_readers_of_pillow_are_not_started(format):
    file = io.BytesIO()
    Image.new("1" if format in ("MSP", "XBM") else "RGB", (32, 32)).save(file, format)
    with pytest.raises(ImageError, match="no image that can be read; give PNG, JPEG, TIFF, WebP, GIF, BMP"):
        load_image(file.getvalue())


def test_postscript_starts_no_program(monkeypatch):
    """Wherever it comes from: a file, bytes, or an image that Pillow opened for the caller and has not decoded."""
    monkeypatch.setattr("subprocess.check_call", lambda *a, **k: pytest.fail("Ghostscript was started"))
    for source in (EPS, io.BytesIO(EPS)):
        with pytest.raises(ImageError, match="no image that can be read"):
            load_image(source)
    with pytest.raises(ImageError, match=r'of the format EPS; give PNG, .*, or image\.convert\("RGB"\)'):
        load_image(Image.open(io.BytesIO(EPS)))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket.png"))
        cases = {
            tmp_path / "pipe.png": "is a pipe", tmp_path / "socket.png": "is a socket", "/dev/zero": "is a device",
            tmp_path / "loop.png": "symbolic links", "a\0b.png": "null byte", "x" * 300: "name too long",
        }  # fmt: skip
        for path, reason in cases.items():
            for read in (load_image, open_document):
                with pytest.raises((ImageError, DocumentError), match=reason):
                    read(path)
            assert not is_pdf(str(path))


@pytest.mark.parametrize(("name", "data"), [
    ("tiff", BOMB),
    ("png", with_exif("PNG", BOMB)),
    ("webp", with_exif("WEBP", BOMB)),
    ("jpeg", kit.jpeg([(0xE1, EXIF + SMALL_BOMB)])),
    ("jpeg of parts", kit.jpeg([(0xE1, EXIF + BOMB[i : i + 60_000]) for i in range(0, len(BOMB), 60_000)])),
    ("jpeg after junk", kit.jpeg([(0xE1, b"x\xff\0\xff\xff"), (0xE1, EXIF + EXIF + SMALL_BOMB)])),
    ("mpo", kit.jpeg([(0xE2, b"MPF\0" + SMALL_BOMB)])),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_tags_that_share_their_bytes(name, data, tmp_path):
    """Pillow keeps a copy of each: gigabytes of a file of one megabyte."""
    with pytest.raises(ImageError, match="its tags hold more data than the file"):
        load_image(data)
    (tmp_path / "x").write_bytes(data)
    setup = "from vlm.processing.media.images import load_image"
    said, megabytes = kit.measured(setup, f"load_image({str(tmp_path / 'x')!r})")
    assert "its tags hold more data than the file" in said and megabytes < 100


def test_a_tag_of_numbers_is_bounded():
    """A number of two bytes becomes an object of 32."""
    directory = struct.pack("<HHHII", 1, 258, 3, 2**20, 8) + bytes(4)
    with pytest.raises(ImageError, match="its tag 258 holds 2,097,152 bytes of numbers"):
        load_image(b"II*\0" + struct.pack("<I", 8) + directory + bytes(2**21))


def test_frames_without_end(tmp_path):
    (tmp_path / "loop.tif").write_bytes(kit.tiff_chain(3, loop=True))
    assert open_document(tmp_path / "loop.tif").num_pages == 3
    (tmp_path / "many.tif").write_bytes(kit.tiff_chain(MAX_FRAMES + 5))
    with pytest.raises(ImageError, match=r"many\.tif has more than 10,000 frames; split it"):
        open_document(tmp_path / "many.tif")


def test_exif_still_turns():
    """Each of the eight ways, as Pillow does it."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8))
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for format in ("PNG", "TIFF"):
            file = io.BytesIO()
            picture.save(file, format, exif=exif)
            assert same(load_image(file.getvalue()), ImageOps.exif_transpose(Image.open(file)))


@pytest.mark.parametrize(("channels", "depth"), [(3, 8), (4, 8), (1, 16), (2, 8), (4, 16)])
def test_memory_of_a_large_image_is_a_small_multiple_of_its_pixels(channels, depth, tmp_path):
    side = 4000
    (tmp_path / "x.png").write_bytes(kit.blank_png(side, side, channels, depth))
    setup = "from vlm.processing.media.images import load_image"
    said, megabytes = kit.measured(setup, f"load_image({str(tmp_path / 'x.png')!r}).size")
    assert said == f"({side}, {side})" and megabytes * kit.MB < 13 * side * side, megabytes


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "JPEG2000"])
def test_memory_of_what_decoders_hold(format, tmp_path):
    side = 3000
    picture = Image.linear_gradient("L").resize((side, side)).convert("RGB")
    picture.save(tmp_path / "x", format, **({"progressive": True} if format == "JPEG" else {}))
    setup = "from vlm.processing.media.images import load_image"
    said, megabytes = kit.measured(setup, f"load_image({str(tmp_path / 'x')!r}).size")
    assert said == f"({side}, {side})" and megabytes * kit.MB < 24 * side * side, megabytes


def test_strips_change_no_pixel():
    """The picture is larger than a strip, in both directions."""
    values = np.random.default_rng(0).integers(0, 255, (1100, 1300, 4), np.uint8)
    image = Image.fromarray(values)
    want = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    assert same(load_image(image), want)
    wide = Image.fromarray(values.reshape(1, -1)[:, : 2**21 + 7].astype(np.uint16) * 257)
    assert np.array_equal(np.asarray(load_image(wide))[:, :, 0], values.reshape(1, -1)[:, : 2**21 + 7])


SLIVERS = {
    "nougat_images:NOUGAT_IMAGES": {"size": {"height": 96, "width": 64}},
    "image_processors:CLIP": {"size": {"shortest_edge": 32}, "crop_size": 32},
    "image_processors:LLAVA": {"size": 32, "crop_size": 32, "do_pad": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SLIVERS)
def test_slivers_are_not_padded_beyond_their_budget(kind):
    """A PNG of 563 bytes with 1×250,000 pixels became 11 GB."""
    setup = (
        "from tests.kits.hostile_kit import blank_png\nfrom vlm.processing.media.images import load_image\n"
        "from vlm.processing.media.image_processor import ImageProcessor\n"
        f"from visual_engines.images.{kind.replace(':', ' import ')} as SPEC\n"
        f"processor = ImageProcessor(SPEC, {SLIVERS[kind]})\nprocessor([load_image(blank_png(9, 9))])"
    )
    call = "[tuple(processor([load_image(blank_png(*size))]).shape[1:]) for size in ((1, 250_000), (250_000, 1))]"
    said, megabytes = kit.measured(setup, call)
    assert said.count("(3, ") == 2 and megabytes < 700, megabytes


def processor_that_only_pads(kind: str, config: dict, seen: list[tuple[int, int]]) -> ImageProcessor:
    module, _, name = kind.partition(":")
    spec = getattr(importlib.import_module(f"visual_engines.images.{module}"), name)
    transform = Transform(lambda images: seen.append(images[0].size) or torch.zeros(1, 3, 1, 1))
    return ImageProcessor(dataclasses.replace(spec, load=lambda name, settings: transform), config)


@pytest.mark.parametrize("kind", SLIVERS)
def test_slivers_are_scaled_down_before_they_are_padded(kind):
    seen: list[tuple[int, int]] = []
    processor = processor_that_only_pads(kind, SLIVERS[kind], seen)
    for size in ((1, 250_000), (250_000, 1), (100_000_000, 1)):
        processor([Image.new("RGB", size)])
    assert all(max(size) <= 64 * min(size) and math.prod(size) <= 2**22 for size in seen), seen


def test_a_square_is_not_made_beyond_its_budget():
    config = {"size": {"shortest_edge": 32}, "crop_size": 32, "pad_to_square": True}
    seen: list[tuple[int, int]] = []
    processor = processor_that_only_pads("image_processors:CLIP", config, seen)
    for size in ((30, 40), (12_000, 300), (1, 250_000), (250_000, 1)):
        processor([Image.new("RGB", size)])
    assert seen[0] == (40, 40) and all(width == height for width, height in seen)
    assert all(width * height <= MAX_PADDED_PIXELS for width, height in seen)


@pytest.mark.parametrize("size", [(300, 200), (200, 9000), (64, 4096)])
def test_sane_images_are_padded_as_ever(size):
    """Equal to Hugging Face's, long screenshots and the slimmest that is no sliver included."""
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), np.uint8))
    config = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}
    want = CLIPImageProcessor(**config)([picture], return_tensors="pt")["pixel_values"]
    assert torch.equal(ImageProcessor(CLIP, config)([picture]), want)


pdfium = pytest.importorskip("pypdfium2", reason="pypdfium2 is not installed: no PDF can be read")


@pytest.mark.parametrize("box", [
    "[0 0 100000000 100000000]", "[0 0 100000000 1]", "[0 0 1 100000000]", "[0 0 nan nan]", "[0 0 1e39 1e39]", "[]",
    "[0 0 0 0]", "[0 0 -5 -5]", "[-1000000000 -1000000000 1000000000 1000000000]", "[0 0 99999999999999999999 9]",
])  # fmt: skip
def test_pages_of_any_size_are_drawn_within_the_limit(box):
    page = PdfDocument(kit.pdf(box), "x.pdf").render(0)
    assert 0 < page.width * page.height <= MAX_PAGE_PIXELS and max(page.size) <= 2**15


@pytest.mark.parametrize(("size", "points"), [("A4", (595, 842)), ("A3", (842, 1191)), ("A2", (1191, 1684))])
def test_ordinary_pages_are_drawn_at_200_dpi(size, points):
    page = PdfDocument(kit.pdf(f"[0 0 {points[0]} {points[1]}]"), "x.pdf").render(0)
    assert abs(page.width - points[0] * 200 / 72) <= 1 and abs(page.height - points[1] * 200 / 72) <= 1


def test_pages_smaller_than_a_point():
    with pytest.raises(DocumentError, match=r"x\.pdf page 1 is 0\.5×0\.5 points; a page has at least one"):
        PdfDocument(kit.pdf("[0 0 0.5 0.5]"), "x.pdf").render(0)


def test_pages_that_are_claimed():
    with pytest.raises(DocumentError, match="claims 1,000,000 pages, the limit is 100,000; split it"):
        PdfDocument(kit.pdf(count=1_000_000), "x.pdf")
    claimed = PdfDocument(kit.pdf(count=MAX_PAGES), "x.pdf")
    with pytest.raises(DocumentError, match="page 50001 cannot be rendered: Failed to load page"):
        claimed.render(50_000)


def test_huge_files_are_not_read_to_tell_that_they_are_none(tmp_path):
    """They are sparse: no disk is used."""
    for name, start in {"x.webp": b"RIFF\0\0\0\x40WEBPVP8 ", "x.png": kit.png(9, 9)[:33]}.items():
        with (tmp_path / name).open("wb") as file:
            file.write(start)
            file.truncate(2**33)
        with pytest.raises(ImageError, match=r"8,589,934,592 bytes, an image other than a TIFF may have 1,073,741,824"):
            load_image(tmp_path / name)
    with (tmp_path / "x.jpg").open("wb") as file:
        file.write(b"\xff\xd8\xff\xfe\0\2")
        file.truncate(2**33)
    with pytest.raises(ImageError, match="it has no image data where they should begin"):
        load_image(tmp_path / "x.jpg")
    with (tmp_path / "x.pdf").open("wb") as file:
        file.write(b"%PDF-1.4\n")
        file.truncate(2**33)
    with pytest.raises(DocumentError, match="8,589,934,592 bytes, the limit is 2,147,483,648; split it"):
        open_document(tmp_path / "x.pdf")
