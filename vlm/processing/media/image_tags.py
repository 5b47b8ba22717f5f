"""The tags of TIFF, EXIF and MPO data, measured before Pillow keeps them.

Many tags may point at the same bytes: read as Pillow does, a file of a megabyte becomes 65 gigabytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

from PIL import ExifTags, Image, TiffTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from vlm.limits import MAX_FRAMES

_BYTE_TYPES = {1, 2, 6, 7}  # kept as they are; each value of the others becomes an object
_MOST_NUMBERS = 2**20  # bytes of a tag: the offsets of 262,144 strips
_SUBFILE_TYPE, _COPY_OR_MASK = 254, 0b101
_SPARE = 2**16  # bytes
_EXIF, _MPF = b"Exif\0\0", b"MPF\0"
_TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


# in `Image.info`, where Pillow looks for one
_TELL_A_TURN = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")


def upright(image: Image.Image) -> Image.Image:
    """Turns an image as its EXIF data says; without such data it is returned itself. Raises ValueError for a bomb."""
    image.load()  # turns a TIFF by itself
    if data := _exif_of(image):
        check_tags(io.BytesIO(data))
    turn = _TURNED.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else without_turn(image.transpose(turn))


def without_turn(image: Image.Image) -> Image.Image:
    """Returns an image that stands as it is to, and forgets what says otherwise: whoever gets it would turn it."""
    for name in _TELL_A_TURN:
        image.info.pop(name, None)
    return image


def check_header(file: BinaryIO) -> None:
    """Checks what Pillow reads when it opens a TIFF or JPEG; leaves the file at its start. Raises ValueError."""
    start = file.read(4)
    file.seek(0)
    if start[:2] in (b"II", b"MM"):
        check_tags(file, nested=True)
    elif start[:2] == b"\xff\xd8":
        parts = [data for marker, data in segments(file) if marker in b"\xe1\xe2"]  # APP1, APP2
        check_tags(io.BytesIO(_bare(b"".join(part[len(_EXIF) :] for part in parts if part.startswith(_EXIF)))))
        check_tags(io.BytesIO(next((part[len(_MPF) :] for part in parts[::-1] if part.startswith(_MPF)), b"")))
    file.seek(0)


def check_tags(file: BinaryIO, *, nested: bool = False) -> dict[int, bool]:
    """Walks the directories of TIFF data as Pillow does and returns where those of its chain are, in bytes from the
    start, and whether each has a page: a smaller copy of another picture, or its mask, is none. `MAX_FRAMES` + 1 at
    most.

    Raises ValueError where their values add up to more than the data has, and where one holds too many numbers.
    `nested`: with the directories inside of the first one, which Pillow reads for a single image.
    """
    file.seek(0)
    head = file.read(16)
    head = head if head[2:3] == b"\x2b" else head[:8]  # BigTIFF's is longer
    meter = cast(BinaryIO, _Metered(file, 2 * file.seek(0, io.SEEK_END) + _SPARE))
    try:
        directory = ImageFileDirectory_v2(head)
    except (SyntaxError, IndexError, struct.error):
        return {}  # Pillow does not read it either
    offsets: dict[int, bool] = {}
    offset = directory.next
    while offset and offset not in offsets and len(offsets) <= MAX_FRAMES:
        _load(directory, meter, offset)
        if nested and not offsets:
            _check_nested(directory, meter, head)
        kind = directory.get(_SUBFILE_TYPE)
        offsets[offset] = not (isinstance(kind, int) and kind & _COPY_OR_MASK)
        offset = directory.next
    return offsets


def first_directory(file: BinaryIO) -> ImageFileDirectory_v2:
    """Reads the tags of a TIFF's first picture, which were checked. Raises as Pillow does for what is none."""
    file.seek(0)
    head = file.read(16)
    directory = ImageFileDirectory_v2(head if head[2:3] == b"\x2b" else head[:8])
    _load(directory, file, directory.next)
    return directory


def seek_frame(image: Image.Image, frame: int, offsets: Sequence[int]) -> None:
    """Goes to a frame (from 0) of a TIFF that is open, whose directories are at `offsets`: by itself Pillow would read
    those of all frames before it, as versions from 13 on do."""
    positions = getattr(image, "_frame_pos", None)  # Pillow's own list
    # from version 13 on what it still allows tags to hold stands beside it, and is known when all have been read
    if offsets and positions is not None and not hasattr(image, "_tag_data_limits"):
        positions[:] = offsets
    image.seek(frame)


def _load(directory: ImageFileDirectory_v2, file: BinaryIO, offset: int) -> None:
    file.seek(offset)
    directory.load(file)
    for tag, data in directory._tagdata.items():
        if directory.tagtype[tag] not in _BYTE_TYPES and len(data) > _MOST_NUMBERS:
            raise ValueError(f"its tag {tag} holds {len(data):,} bytes of numbers")


def _check_nested(directory: ImageFileDirectory_v2, file: BinaryIO, head: bytes, depth: int = 2) -> None:
    for group in TiffTags.TAGS_V2_GROUPS:
        if isinstance(offset := directory.get(group), int) and depth:
            nested = ImageFileDirectory_v2(head, group=group)
            _load(nested, file, offset)
            _check_nested(nested, file, head, depth - 1)


class _Metered(io.RawIOBase):
    """A file that gives no more than so many bytes."""

    def __init__(self, file: BinaryIO, budget: int):
        self._file, self._budget = file, budget

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._budget -= len(data)
        if self._budget < 0:
            raise ValueError("its tags hold more data than the file")
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()


def segments(file: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """Yields the marker and the content of a JPEG's segments, found as Pillow finds them: it skips what is between,
    byte by byte, without end."""
    byte, between = file.read(1), 0
    while byte:
        if byte != b"\xff":
            byte, between = file.read(1), between + 1
            if between > _SPARE:
                raise ValueError("it has no image data where they should begin")
            continue
        marker = file.read(1)
        if marker == b"\xda" or not marker:  # start of scan
            return
        if marker in b"\0\xff":
            byte = file.read(1) if marker == b"\0" else marker
            continue
        if not _stands_alone(marker[0]):
            size = int.from_bytes(file.read(2), "big") - 2
            yield marker, file.read(max(0, size))
        byte = file.read(1)


def _stands_alone(marker: int) -> bool:
    return marker == 0xC8 or 0xD0 <= marker <= 0xD9 or 0xF0 <= marker <= 0xFD


def _exif_of(image: Image.Image) -> bytes:
    """Returns what Pillow would read as an image's EXIF data; that of a TIFF was checked with its file."""
    data = image.info.get("exif")
    if data is None and (text := image.info.get("Raw profile type exif")):
        data = bytes.fromhex("".join(text.split("\n")[3:]))
    return _bare(data or b"")


def _bare(exif: bytes) -> bytes:
    while exif.startswith(_EXIF):
        exif = exif[len(_EXIF) :]
    return exif
