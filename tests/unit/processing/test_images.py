"""Any picture comes out as the RGB that a person sees; what is none is refused by name."""

from __future__ import annotations

import io
import json
import pickle
import struct
import warnings

import numpy as np
import pytest
import torch
import transformers
from PIL import ExifTags, Image
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    PHOTOMETRIC_INTERPRETATION,
    PLANAR_CONFIGURATION,
    SAMPLEFORMAT,
)
from transformers import AutoImageProcessor, NougatImageProcessor

from tests.kits.hostile_kit import png
from visual_engines.families.t5gemma2 import IMAGES as GEMMA
from visual_engines.images.image_processors import BLIP, CLIP, SIGLIP, VIT, preferring
from visual_engines.images.nougat_images import NOUGAT_IMAGES
from vlm.errors import EngineError, ImageError
from vlm.processing.media.image_processor import ImageProcessor, ProcessorSource
from vlm.processing.media.images import load_image
from vlm.processing.media.unread import WEBP
from vlm.registry.catalogs import families
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.transforms import LAST_BITS, Transform
from vlm_app.demo.documents import UploadedPage
from vlm_app.reference.huggingface import in_patches, in_tiles


class FiltersSeen(io.BytesIO):
    """A file that notes which filters of warnings the process has while it is read."""

    def __init__(self, content):
        super().__init__(content)
        self.filters = []

    def read(self, *size):
        self.filters.append(warnings.filters)
        return super().read(*size)


RAMP = np.tile(np.linspace(0, 255, 40).astype(np.uint8), (20, 1))


def colour(width: int = 40, height: int = 20) -> Image.Image:
    image = Image.new("RGB", (width, height), (200, 30, 90))
    image.putpixel((0, 0), (0, 0, 255))
    return image


def saved(tmp_path, image: Image.Image, name: str, **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def close(found: Image.Image, want: np.ndarray, tolerance: int) -> bool:
    return np.abs(np.asarray(found).astype(int) - want.astype(int)).max() <= tolerance


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA", "CMYK"])
def test_modes(tmp_path, mode):
    suffix = "tif" if mode in ("CMYK", "LA") else "png"
    image = colour().quantize(4) if mode == "P" else colour().convert(mode)
    found = load_image(saved(tmp_path, image, f"x.{suffix}"))
    assert found.mode == "RGB" and found.size == (40, 20)
    if mode not in ("1", "L", "LA"):
        assert close(found.crop((5, 5, 30, 15)), np.full((10, 25, 3), (200, 30, 90)), 3)


@pytest.mark.parametrize("bits", [np.uint8, np.uint16])
def test_a_tiff_whose_lowest_value_is_white(tmp_path, bits):
    """What scanners of film write, with the tag that says so."""
    levels = Image.fromarray(np.array([[0, np.iinfo(bits).max]], dtype=bits))
    path = saved(tmp_path, levels, "x.tif")
    tag = struct.pack("<HHI", PHOTOMETRIC_INTERPRETATION, 3, 1)  # a number of 16 bits, in four bytes
    path.write_bytes(path.read_bytes().replace(tag + b"\1", tag + b"\0"))
    assert [load_image(path).getpixel((x, 0)) for x in range(2)] == [(255,) * 3, (0,) * 3]


@pytest.mark.parametrize("bits", [np.uint16, np.int32])
def test_16_bits_keep_their_range(tmp_path, bits):
    wide = Image.fromarray((RAMP.astype(bits) * 257).astype(bits))
    found = load_image(saved(tmp_path, wide, "x.png" if bits == np.uint16 else "x.tif"))
    assert close(found, np.repeat(RAMP[:, :, None], 3, 2), 1)


def with_tag(path, tag: int, old: int, new: int):
    """Changes a short number in a TIFF's tag."""
    entry = struct.pack("<HHI", tag, 3, 1)
    content = path.read_bytes()
    assert content.count(entry + struct.pack("<H", old)) == 1
    path.write_bytes(content.replace(entry + struct.pack("<H", old), entry + struct.pack("<H", new)))
    return path


@pytest.mark.parametrize(
    "values, kind, factor",
    [(np.uint32, 1, 0x1010101), (np.int32, 2, 0x808080), (np.int16, 2, 0x80)],
    ids=["32 bits", "31 and a sign", "15 and a sign"],
)
def test_a_tiff_keeps_the_range_of_its_samples(tmp_path, values, kind, factor):
    """Pillow takes 32 bits for signed numbers, and what had more than 16 was white, or black."""
    wide = (RAMP.astype(np.uint32) * factor).astype(values)
    picture = Image.fromarray(wide.view(np.int32 if wide.itemsize == 4 else np.uint16))
    path = saved(tmp_path, picture, "x.tif", tiffinfo={SAMPLEFORMAT: kind})
    if values == np.uint32:  # which Pillow does not save
        with_tag(path, SAMPLEFORMAT, 2, kind)
    assert close(load_image(path), np.repeat(RAMP[:, :, None], 3, 2), 1)


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.tif"])
def test_a_picture_that_was_turned_is_not_turned_again(tmp_path, name):
    """A page that the demo draws, and one that is read part by part, are loaded again as pictures."""
    data = Image.Exif()
    data[ExifTags.Base.Orientation] = 6
    path = saved(tmp_path, colour(), name, exif=data)
    once = load_image(path)
    assert once.size == (20, 40) and load_image(once).tobytes() == once.tobytes()
    assert load_image(UploadedPage(str(path), 1)).tobytes() == once.tobytes()
    assert Image.open(path).getexif()[ExifTags.Base.Orientation] == 6


def test_a_damaged_tiff_is_told_of_by_its_error_alone(tmp_path, capfd):
    """The library that decodes it wrote lines of its own to stderr, of a fax hundreds."""
    picture = Image.effect_noise((400, 400), 90)
    content = bytearray(saved(tmp_path, picture, "x.tif", compression="tiff_lzw").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 200] = bytes(200)
    with pytest.raises(ImageError, match="damaged"):
        load_image(bytes(content))
    assert capfd.readouterr().err == ""


def test_a_tiff_of_12_bits_keeps_its_range(tmp_path):
    wide = Image.fromarray(np.full((2, 2), 0xFFFF, np.uint16))
    path = with_tag(saved(tmp_path, wide, "x.tif"), BITSPERSAMPLE, 16, 12)
    assert close(load_image(path), np.full((2, 2, 3), 255), 0)


def test_a_tiff_of_wide_planes_is_read_compressed_alone(tmp_path):
    """Pillow takes the bytes of samples for samples."""
    path = saved(tmp_path, colour(), "x.tif")
    with Image.open(path) as image:
        image.tag_v2[BITSPERSAMPLE], image.tag_v2[PLANAR_CONFIGURATION] = (16, 16, 16), 2
        with pytest.raises(ImageError, match=r"16 bits in planes that is only read compressed; save it with LZW or"):
            load_image(image)


@pytest.mark.parametrize(
    "tag, value, words",
    [
        (COMPRESSION, 34712, r"a compression that is not read \(JPEG 2000\); save it with LZW or deflate"),
        (COMPRESSION, 34887, r"a compression that is not read \(LERC\); save it with LZW or deflate"),
        (COMPRESSION, WEBP, r"a compression that is not read \(WebP\); save it with LZW or deflate"),
        (COMPRESSION, 40000, r"a compression that is not read \(number 40000\); save it with LZW or deflate"),
        (BITSPERSAMPLE, 64, r"samples that are not read \(64 bits, floating point\); save it with 8 or 16 bits"),
    ],
    ids=["JPEG 2000", "LERC", "WebP", "unknown", "64 bits"],
)
def test_a_sound_tiff_that_is_not_read_says_what_it_holds(tmp_path, tag, value, words):
    from vlm.processing.media.documents.document import open_document

    grey = saved(tmp_path, Image.new("F", (9, 9)), "x.tif")
    with_tag(grey, tag, {COMPRESSION: 1, BITSPERSAMPLE: 32}[tag], value)
    with pytest.raises(ImageError, match=rf"x\.tif is a TIFF (in|with) {words}\.$") as error:
        load_image(grey)
    assert error.value.kind == "unsupported"
    first, pages = colour(), tmp_path / "pages.tif"
    first.save(pages, save_all=True, append_images=[Image.new("F", (9, 9))])
    entry = struct.pack("<HHI", tag, 3, 1) + struct.pack("<H", {COMPRESSION: 1, BITSPERSAMPLE: 32}[tag])
    head, own, tail = pages.read_bytes().rpartition(entry)
    pages.write_bytes(head + own[:-2] + struct.pack("<H", value) + tail)
    document = open_document(pages)
    assert document.num_pages == 2 and close(document.render(0), np.asarray(first), 0)
    with pytest.raises(ImageError, match=rf"pages\.tif page 2 is a TIFF (in|with) {words}\.$"):
        document.render(1)


def test_a_jpeg_of_12_bits_says_so(tmp_path):
    path = saved(tmp_path, colour(), "x.jpg")
    path.write_bytes(path.read_bytes().replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"))
    with pytest.raises(
        ImageError, match=r"x\.jpg is a JPEG of 12 bits a sample, which is not read; save it with 8 bits"
    ):
        load_image(path)


@pytest.mark.parametrize("mode, is_read", [("L", True), ("LA", False), ("RGB", False)])
@pytest.mark.parametrize("suffix", ["jp2", "j2k"])
def test_a_jpeg_2000_of_16_bits_in_colour_is_not_read_wrongly(tmp_path, mode, is_read, suffix):
    """Pillow rounds its highest values up to 256, which is 0: white was black."""
    path = saved(tmp_path, colour().convert(mode), f"x.{suffix}")
    assert load_image(path).size == (40, 20)
    head, mark, tail = path.read_bytes().partition(b"\xff\x4f\xff\x51")
    count = len(mode)
    path.write_bytes(head + mark + tail[:38] + b"\x0f\1\1" * count + tail[38 + 3 * count :])
    if is_read:
        assert load_image(path).size == (40, 20)
        return
    with pytest.raises(ImageError, match=r"is a JPEG 2000 of 16 bits a sample in colour, .* with 8 bits") as error:
        load_image(path)
    assert error.value.kind == "unsupported"


def test_transparency_lies_on_white(tmp_path):
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert close(load_image(saved(tmp_path, clear, "x.png")), np.full((4, 4, 3), 255), 0)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([10, 10, 10, 20, 20, 20])
    assert close(load_image(saved(tmp_path, palette, "p.gif", transparency=1)), np.full((4, 4, 3), 255), 0)


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), c) for c in ("red", "blue")]
    path = saved(tmp_path, frames[0], "x.gif", save_all=True, append_images=frames[1:])
    assert load_image(path).getpixel((3, 3)) == (255, 0, 0)


def test_exif_rotation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    found = load_image(saved(tmp_path, colour(), "x.png", exif=exif))
    assert found.size == (20, 40) and found.getpixel((19, 0)) == (0, 0, 255)


def test_sources(tmp_path):
    path = saved(tmp_path, colour(), "x.png")
    want = np.asarray(colour())
    with path.open("rb") as file:
        for source in (str(path), path, path.read_bytes(), file, colour(), want):
            assert np.array_equal(np.asarray(load_image(source)), want)


@pytest.mark.parametrize("scheme", ["file://", "s3:/", "https:/"])
def test_an_address_is_said_to_be_one(tmp_path, scheme):
    """It was called missing, though the file of a file: URL is there."""
    path = saved(tmp_path, colour(), "x.png")
    with pytest.raises(ImageError, match=r"x\.png is an address, which is not fetched; give the path of an"):
        load_image(f"{scheme}{path}")


def test_what_is_no_image_is_refused_in_one_sentence(tmp_path):
    whole = io.BytesIO()
    colour(300, 300).save(whole, "JPEG")
    colour(300, 300).save(tiff := io.BytesIO(), "TIFF", compression="tiff_lzw")  # whose directory comes last
    cases = {
        "missing.png": (None, "does not exist"),
        "text.png": (b"hello", "no image"),
        "empty.png": (b"", "empty"),
        "short.jpg": (whole.getvalue()[:600], "damaged or truncated"),
        "bomb.png": (png(60000, 60000), "limit"),
        "zero.png": (png(0, 10), "zero.png is a damaged or truncated image"),
        "half.tif": (tiff.getvalue()[: len(tiff.getvalue()) // 2], "half.tif is a damaged or truncated image"),
        "hollow.png": (png(900, 900), "damaged or truncated"),
    }
    for name, (data, reason) in cases.items():
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ImageError, match=reason) as error:
            load_image(path)
        assert name in str(error.value) and "\n" not in str(error.value), name
    with pytest.raises(ImageError, match="damaged or truncated"):
        load_image(Image.open(io.BytesIO(png(900, 900))))
    with pytest.raises(ImageError, match="at least one"):
        load_image(Image.new("RGB", (0, 9)))
    with pytest.raises(ImageError, match="of type int"):
        load_image(3)
    (closed := io.BytesIO(png(9, 9))).close()
    with pytest.raises(ImageError, match="cannot be read: I/O operation on closed file"):
        load_image(closed)
    with pytest.raises(ImageError, match="folder"):
        load_image(tmp_path)
    with pytest.raises(ImageError, match=r"^i{500}… cannot be read: .*$"):
        load_image("i" * 5000)
    with (tmp_path / "text.png").open() as file, pytest.raises(ImageError, match="open as text; open it with the mode"):
        load_image(file)
    with pytest.raises(ImageError, match="the image cannot be read: I/O operation on closed file; give a file that is"):
        load_image(file)
    with pytest.raises(ImageError, match="limit is 100"):
        load_image(saved(tmp_path, colour(), "x.png"), max_pixels=100)
    for array in (np.zeros((2, 2)), np.zeros((0, 4), np.uint8), np.zeros((2, 2, 7), np.uint8)):
        with pytest.raises(ImageError, match="the array"):
            load_image(array)


@pytest.mark.parametrize("crop", [True, False])
@pytest.mark.parametrize("size", [(300, 500), (640, 480), (50, 40), (1000, 1000)])
def test_pixel_values_equal_hugging_faces(size, crop):
    config = {"size": {"height": 96, "width": 64}, "do_crop_margin": crop}
    image = Image.new("RGB", size, "white")
    image.paste((20, 40, 60), (size[0] // 5, size[1] // 6, size[0] // 2, size[1] // 2))
    want = NougatImageProcessor(**config)([image], return_tensors="pt")["pixel_values"]
    assert torch.equal(ImageProcessor(NOUGAT_IMAGES, config)([image]), want)
    assert want.shape == (1, 3, 96, 64)


def test_margins_are_those_of_hugging_face():
    generator = np.random.default_rng(0)
    ours, theirs = (
        ImageProcessor.default(NOUGAT_IMAGES, (96, 64)),
        NougatImageProcessor(size={"height": 96, "width": 64}),
    )
    for _ in range(20):
        low, high = sorted(generator.integers(0, 256, 2))
        array = np.full((200, 150, 3), generator.integers(0, 256), np.uint8)
        top, left = generator.integers(0, 80, 2)
        array[top : top + 90, left : left + 60] = generator.integers(low, high + 1, (90, 60, 3))
        image = Image.fromarray(array)
        assert torch.equal(ours([image]), theirs([image], return_tensors="pt")["pixel_values"])


@pytest.mark.parametrize("text", ["[1]", "{", '{"image_processor_type": "ViTImageProcessor"}'])
def test_settings_that_are_none_of_ours(tmp_path, text):
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(EngineError, match=r"preprocessor_config\.json"):
        ImageProcessor.from_dir(tmp_path, [NOUGAT_IMAGES])


@pytest.mark.parametrize("size", [(1, 1), (1, 4000), (4000, 1), (2, 2)])
@pytest.mark.parametrize("shade", ["white", "black"])
def test_tiny_thin_and_blank_pages_go_through(size, shade):
    found = ImageProcessor.default(NOUGAT_IMAGES, (96, 64))([Image.new("RGB", size, shade)])
    assert found.shape == (1, 3, 96, 64) and found.isfinite().all()


@pytest.mark.parametrize("size", [(1, 900), (900, 1)])
@pytest.mark.parametrize("spec", [VIT, BLIP, CLIP, SIGLIP], ids=lambda spec: spec.name)
def test_slivers_are_padded_where_one_side_follows_the_other(spec, size):
    """Where each side has a length of its own they are what transformers makes of them."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8))
    exact = {"height": 24, "width": 20}
    more = {"do_resize": False} if spec is CLIP else {"size": 24} if spec is VIT else {"size": exact}
    settings = {"size": exact, "crop_size": exact} | more
    want = getattr(transformers, spec.name)(**settings)([image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ImageProcessor(spec, settings)([image]), want, rtol=0, atol=LAST_BITS)


def test_warnings_of_other_threads_stay_as_they_are(monkeypatch):
    """Pillow warns of images of more than its own limit, which are read without a word."""
    file = io.BytesIO()
    Image.new("1", (40, 30)).save(file, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    seen = FiltersSeen(file.getvalue())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert load_image(seen).size == (40, 30)
        assert all(filters is warnings.filters for filters in seen.filters) and not caught
    assert seen.filters


@pytest.mark.parametrize("size", [(200, 3), (3, 200), (200, 1), (4, 4)])
@pytest.mark.parametrize("spec", [VIT, BLIP, CLIP, SIGLIP], ids=lambda spec: spec.name)
def test_of_pictures_a_few_pixels_wide_nobody_guesses_where_their_colours_are(spec, size, monkeypatch):
    """Their planes are told to be such: else transformers warns that a side may be the colours."""
    said = []
    monkeypatch.setattr(transformers.image_utils.logger, "warning", lambda *args, **_: said.append(args))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8))
    exact = {"height": 24, "width": 20}
    settings = {"size": exact, "crop_size": exact}
    found = ImageProcessor(spec, settings)([image])
    assert not said
    want = getattr(transformers, spec.name)(**settings)([image], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(found, want, rtol=0, atol=LAST_BITS)


@pytest.mark.parametrize(
    "settings", [{"do_normalize": False, "size": {"longest_edge": 48}}, {"do_normalize": False, "resample": 5}], ids=str
)
def test_settings_that_do_not_fit_are_told_of_when_they_are_loaded(tmp_path, settings):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(EngineError, match=r"preprocessor_config\.json does not fit BlipImageProcessor: "):
        ImageProcessor.from_dir(tmp_path, [BLIP])


def test_an_image_that_settings_scale_to_nothing_is_refused_in_one_sentence():
    processor = ImageProcessor(GEMMA, {"size": {"shortest_edge": 33, "longest_edge": 28}})
    assert processor([colour()]).isfinite().all()
    with pytest.raises(ImageError, match=r"cannot read an image of 2000×1 pixels \(height × width: .*pad or crop it\."):
        processor([Image.new("RGB", (1, 2000))])


def test_what_the_processor_nests_comes_first_as_in_hugging_face(tmp_path):
    """And `do_pad`, old names and sizes of one number are honoured."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 50, 3), np.uint8))
    nested = {"image_processor_type": "LlavaImageProcessorFast", "do_pad": True, "size": 24, "crop_size": 24}
    (tmp_path / "processor_config.json").write_text(json.dumps({"patch_size": 14, "image_processor": nested}))
    old = {"feature_extractor_type": "CLIPFeatureExtractor", "size": 16, "crop_size": 16, "processor_class": "X"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(old))
    for shape in ((1, 3, 24, 24), (1, 3, 16, 16)):
        want = AutoImageProcessor.from_pretrained(tmp_path)([picture], return_tensors="pt")["pixel_values"]
        found = ImageProcessor.from_dir(tmp_path, preferring(BLIP))([picture])
        assert found.shape == shape and torch.equal(found, want)
        (tmp_path / "processor_config.json").write_text('{"patch_size": 14}')


def test_a_processor_of_another_model_is_named(tmp_path):
    settings = {"image_processor_type": "CLIPImageProcessor", "size": 336, "crop_size": 336}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    processor = ProcessorSource(tmp_path, (CLIP,), (224, 224)).load()
    assert not processor.fits()
    with pytest.raises(ImageError, match=r"makes 336×336 pixels of this image, .* takes 224×224 .*; convert the model"):
        processor([colour()])
    # that does not crop, and so fits squares alone
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | {"do_center_crop": False}))
    processor = ProcessorSource(tmp_path, (CLIP,), (336, 336)).load()
    assert processor.fits() and processor([colour(40, 40)]).shape == (1, 3, 336, 336)
    with pytest.raises(ImageError, match=r"makes 336×672 pixels of this image, .* takes 336×336 .*; crop the image"):
        processor([colour(40, 20)])
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | {"size": {"side": 3}}))
    with pytest.raises(EngineError, match=r"preprocessor_config\.json does not fit CLIPImageProcessor: size must"):
        ProcessorSource(tmp_path, (CLIP,), (336, 336)).load()


def _halved(name, settings):
    """A family's own processor, without transformers: shades from 0 to `top` in a frame of `side` pixels."""

    def transform(images):
        frames = [np.asarray(image.resize((settings["side"],) * 2), np.float32) for image in images]
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2) / 255 * settings.get("top", 1.0)

    return Transform(transform)


def _side(image_size):
    return {"side": image_size[0]}


def _flipped(image, settings):
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


OWN = ImageProcessorSpec("HalvedImageProcessor", _halved, _side, _flipped)


def test_a_family_brings_a_processor_of_its_own(tmp_path):
    source = ProcessorSource(tmp_path, (OWN,), (8, 8))
    pixels = source.load()([colour()])
    assert pixels.shape == (1, 3, 8, 8) and pixels[0, 2, 0, 7] > pixels[0, 2, 0, 0], "flipped: the blue dot is right"
    settings = {"image_processor_type": "HalvedImageProcessor", "side": 8, "top": 0.5}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert torch.equal(source.load()([colour()]), pixels / 2)
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "CLIPImageProcessor"}')
    with pytest.raises(EngineError, match="asks for CLIPImageProcessor; supported are HalvedImageProcessor"):
        source.load()


def test_processes_are_told_of_every_familys_processors():
    """And know the same one again, whose processor they keep."""
    for specs in [(OWN,), *(family.image_processors for family in families().values())]:
        source = ProcessorSource(None, specs, (8, 8))
        again = pickle.loads(pickle.dumps(source))
        assert again == source and hash(again) == hash(source)


def test_pixels_are_held_as_levels_and_normalized_later():
    """By every processor that people publish, but for Pix2Struct's, which scales what it has normalized; values are
    transformers' own, to the last bits."""
    specs = {spec.name: spec for family in families().values() for spec in family.image_processors}
    del specs["Pix2StructImageProcessor"]
    for spec in specs.values():
        settings, picture = spec.default_settings((32, 24)), colour(90, 70)
        image = ImageProcessor.default(spec, (32, 24)).read(picture)
        assert image.pixels.dtype == np.uint8 and image.normalization is not None
        own = getattr(transformers, spec.name)(**{name: settings[name] for name in settings if name != "pad_to_square"})
        values = own(spec.prepare(picture, settings), return_tensors="pt")["pixel_values"].float()
        normalized = image.normalization(torch.from_numpy(image.pixels))[None]
        if hasattr(own, "merge_size"):
            normalized = in_patches(normalized, side=14, merge=2, frames=2)["pixel_values"]
        if hasattr(own, "max_image_size"):
            normalized = in_tiles(normalized, own.max_image_size["longest_edge"])
        torch.testing.assert_close(normalized, values, rtol=0, atol=LAST_BITS)


def test_a_processor_without_a_normalization_gives_values():
    settings = CLIP.default_settings((24, 24))
    for without in ({"do_normalize": False}, {"do_rescale": False}):
        image = ImageProcessor(CLIP, settings | without).read(colour(90, 70))
        assert image.pixels.dtype == np.float32 and image.normalization is None
    own = ImageProcessor(OWN, {"side": 8}).read(colour())
    assert own.pixels.dtype == np.float32 and own.normalization is None


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_crop_margin": False},
        {"do_thumbnail": False},
        {"do_resize": False},
        {"do_pad": False},
        {"do_align_long_axis": True},
        {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 128},
        {"size": {"height": 30, "width": 50}},
        # what is not published is left to transformers' class
        {"resample": 3},
        {"do_normalize": False},
        {"do_rescale": False},
    ],
    ids=str,
)
def test_a_page_becomes_the_bits_that_transformers_class_makes_of_it(settings):
    settings = {"size": {"height": 90, "width": 60}} | settings
    theirs, ours = NougatImageProcessor(**settings), ImageProcessor(NOUGAT_IMAGES, settings)
    drawn = np.random.default_rng(0)
    for height, width in ((240, 180), (180, 260), (70, 55), (200, 200)):
        for noise in (0, 25):
            page = np.full((height, width, 3), 255.0)
            page[height // 5 : -height // 4, width // 7 : -width // 6] = drawn.integers(0, 256, 3)
            page += drawn.normal(0, noise, page.shape) if noise else 0
            picture = Image.fromarray(page.clip(0, 255).astype(np.uint8))
            if settings.get("do_align_long_axis") and height <= width:  # their class turns channels in place of axes
                assert ours([picture]).shape == (1, 3, 90, 60)
                continue
            assert torch.equal(ours([picture]), theirs(picture, return_tensors="pt")["pixel_values"])


@pytest.mark.parametrize("settings", [{}, {"resample": 3}, {"do_normalize": False}], ids=str)
def test_a_page_that_lies_across_its_frame_is_turned(settings):
    settings = {"size": {"height": 90, "width": 60}, "do_align_long_axis": True} | settings
    noise = np.random.default_rng(0).integers(0, 256, (180, 260, 3), np.uint8)
    found = ImageProcessor(NOUGAT_IMAGES, settings)([Image.fromarray(noise)])
    upright = Image.fromarray(np.rot90(noise, 3).copy())
    assert torch.equal(found, NougatImageProcessor(**settings)(upright, return_tensors="pt")["pixel_values"])


def test_a_picture_of_the_caller_is_copied():
    own = Image.new("RGB", (4, 3), "white")
    assert load_image(own, copy=False) is own
    load_image(own).putpixel((0, 0), (0, 0, 0))
    assert own.getpixel((0, 0)) == (255, 255, 255)
