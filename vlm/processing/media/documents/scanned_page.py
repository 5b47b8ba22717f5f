"""Pages of PDFs that are one JPEG: its decoder can scale, which is several times as fast as to draw it whole."""

from __future__ import annotations

import ctypes
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from vlm.errors import ImageError
from vlm.processing.media.documents.pdf_streams import AlteredImages
from vlm.processing.media.image_tags import without_turn
from vlm.processing.media.images import check_size, damage, open_image
from vlm.processing.media.rgb import as_rgb

MOST_OBJECTS = 20_000  # of a page that are looked at: words of a text layer, which nobody sees
SEEN = 2.0  # of 255, on average: a difference of colours that is drawn
SLACK = 0.01  # of a side, by which the image may miss the page's box
LAYER = "OC\0".encode("utf-16-le")  # the mark of what belongs to one
TURNS = {90: Image.Transpose.ROTATE_270, 180: Image.Transpose.ROTATE_180, 270: Image.Transpose.ROTATE_90}


@dataclass(frozen=True)
class ScannedPage:
    """The JPEG that fills a page, as it is in the file."""

    content: bytes
    rotation: int  # degrees, clockwise

    @classmethod
    def of(cls, page: Any, altered: AlteredImages) -> ScannedPage | None:
        """Returns what a page of pypdfium2 shows where that is one upright JPEG; None where it is anything more.
        `altered`: the document's images that are drawn in another way than they are stored."""
        from pypdfium2 import raw

        if raw.FPDFPage_GetAnnotCount(page) or not 0 < raw.FPDFPage_CountObjects(page) <= MOST_OBJECTS:
            return None
        visible = [item for item in page.get_objects(max_depth=1) if not _is_invisible(item)]
        if len(visible) != 1 or not _is_plain_jpeg(visible[0], page) or not _fills(visible[0], page):
            return None
        content = bytes(visible[0].get_data())
        return None if altered.may_hold(content) else cls(content, page.get_rotation())

    def picture(self, width: float, height: float) -> Image.Image | None:
        """Returns it in RGB: whole, or a half, a quarter or an eighth that is no smaller than so many pixels. None
        where only drawing the page tells what it shows."""
        across, down = (width, height) if self.rotation % 180 == 0 else (height, width)
        try:
            with open_image(self.content, "the page") as image:
                check_size(image, "the page")
                is_distorted = not math.isclose(image.width / image.height, across / down, rel_tol=SLACK)
                if image.format != "JPEG" or image.mode not in ("RGB", "L") or is_distorted:
                    return None
                image.draft(None, (math.ceil(across), math.ceil(down)))
                with damage("the page"):
                    picture = without_turn(as_rgb(image).copy())  # the PDF alone turns its pages; a file keeps its tags
        except ImageError:
            return None
        return picture.transpose(TURNS[self.rotation]) if self.rotation else picture


def _is_invisible(item: Any) -> bool:
    from pypdfium2 import raw

    is_text = item.type == raw.FPDF_PAGEOBJ_TEXT
    return is_text and raw.FPDFTextObj_GetTextRenderMode(item) == raw.FPDF_TEXTRENDERMODE_INVISIBLE


def _is_plain_jpeg(item: Any, page: Any) -> bool:
    """Says whether an object of a page is a JPEG without a clip, a layer or colours of its own kind."""
    from pypdfium2 import raw

    if item.type != raw.FPDF_PAGEOBJ_IMAGE or list(item.get_filters()) != ["DCTDecode"]:
        return False
    plain = {
        raw.FPDF_COLORSPACE_DEVICEGRAY, raw.FPDF_COLORSPACE_DEVICERGB, raw.FPDF_COLORSPACE_CALGRAY,
        raw.FPDF_COLORSPACE_CALRGB, raw.FPDF_COLORSPACE_ICCBASED,
    }  # fmt: skip
    is_clipped = raw.FPDFClipPath_CountPaths(raw.FPDFPageObj_GetClipPath(item)) > 0
    if is_clipped or _is_in_layer(item) or raw.FPDFPageObj_HasTransparency(item):
        return False
    colorspace = item.get_metadata().colorspace
    return colorspace in plain and (colorspace != raw.FPDF_COLORSPACE_ICCBASED or _is_like_srgb(_profile(item, page)))


def _profile(item: Any, page: Any) -> bytes | None:
    """Returns the ICC profile of an image's colours, of a damaged one no bytes; None where PDFium does not tell it."""
    from pypdfium2 import raw

    if (read := getattr(raw, "FPDFImageObj_GetIccProfileDataDecoded", None)) is None:  # of pypdfium2 4
        return None
    size = ctypes.c_size_t()
    read(item, page, None, 0, size)
    data = (ctypes.c_uint8 * size.value)()
    read(item, page, data, size, size)
    return bytes(data)


@lru_cache(maxsize=16)
def _is_like_srgb(profile: bytes | None) -> bool:
    """Says whether nobody sees that colours are of this ICC profile, in place of sRGB. One that cannot be read is not
    used by PDFium either."""
    if profile is None:
        return False
    from PIL import ImageCms

    levels = np.arange(0, 256, 51, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    try:
        own, srgb = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
        stored = Image.fromarray(colours).convert("L" if profile[16:20] == b"GRAY" else "RGB")
        drawn = ImageCms.profileToProfile(stored, own, srgb, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError):
        return True
    difference = np.asarray(drawn, dtype=int) - np.asarray(stored.convert("RGB"))
    return float(np.abs(difference).mean()) < SEEN


def _is_in_layer(item: Any) -> bool:
    """Says whether an object is optional content, which may be hidden."""
    from pypdfium2 import raw

    name, size = (ctypes.c_ushort * 3)(), ctypes.c_ulong()
    for number in range(raw.FPDFPageObj_CountMarks(item)):
        mark = raw.FPDFPageObj_GetMark(item, number)
        raw.FPDFPageObjMark_GetName(mark, name, ctypes.sizeof(name), size)  # UTF-16; a longer one is not written
        if size.value == ctypes.sizeof(name) and bytes(name) == LAYER:
            return True
    return False


def _fills(item: Any, page: Any) -> bool:
    """Says whether an image lies upright over the whole box of the page."""
    across, slant, lean, up, left, bottom = item.get_matrix().get()
    box = page.get_bbox()  # with what a page has from those above it
    slack = SLACK * max(box[2] - box[0], box[3] - box[1])
    sides = zip((left, bottom, left + across, bottom + up), box, strict=True)
    return abs(slant) < slack and abs(lean) < slack and all(abs(own - edge) <= slack for own, edge in sides)
