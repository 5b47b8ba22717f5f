"""Files made to stop a reader, and a child process that tells what reading one cost."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib

from PIL import Image

MB = 2**20
_MEASURED = """
import json, sys
from vlm.errors import VlmError
{setup}
open("/proc/self/clear_refs", "w").write("5")
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) / 1024
before = peak()
try:
    result = {call}
except VlmError as error:
    result = f"{{type(error).__name__}}: {{error}}"
print(json.dumps([str(result), peak() - before]))
"""


def measured(setup: str, call: str) -> tuple[str, float]:
    """Runs Python in a process of its own -> (what the call returned, or its error's one sentence; MB it took)."""
    code = _MEASURED.format(setup=setup, call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said, megabytes = json.loads(done.stdout.splitlines()[-1])
    assert "\n" not in said
    return said, megabytes


def png(width: int, height: int, *, depth: int = 8, colours: int = 2, rows: bytes = b"\0" * 64) -> bytes:
    """A PNG that promises a size; `rows`: what it has of it."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def blank_png(width: int, height: int, channels: int = 3, depth: int = 8) -> bytes:
    """A whole PNG of one colour, a thousandth of its pixels in size."""
    colours = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    row = b"\0" * (1 + width * channels * depth // 8)
    packer = zlib.compressobj(9)
    data = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def tag_bomb(tags: int, size: int) -> bytes:
    """TIFF data whose tags all have the same bytes, nearly all of the file."""
    entries = b"".join(struct.pack("<HHII", 1000 + i, 7, size - 8, 8) for i in range(tags))
    directory = struct.pack("<H", tags) + entries + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + directory + bytes(max(0, size - 8 - len(directory)))


def tiff_chain(count: int, loop: bool = False) -> bytes:
    """A TIFF of so many directories, each a picture of one pixel; `loop`: the last one leads back to the first."""
    values = {256: 1, 257: 1, 258: 8, 259: 1, 262: 1, 273: 0, 279: 1}  # size, bits, compression, colours, one strip
    tags = [(tag, 4, 1, value) for tag, value in values.items()]
    size = 2 + 12 * len(tags) + 4
    parts = [b"II*\0" + struct.pack("<I", 8)]
    for i in range(count):
        following = 8 + (i + 1) * size if i + 1 < count else 8 if loop else 0
        entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
        parts.append(struct.pack("<H", len(tags)) + entries + struct.pack("<I", following))
    return b"".join(parts)


def jpeg(segments: list[tuple[int, bytes]]) -> bytes:
    """A JPEG of 8×8 pixels with segments of a marker and a content each, and without the resolution."""
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "JPEG")
    head = b"".join(bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data for marker, data in segments)
    return b"\xff\xd8" + head + file.getvalue()[20:]


def pdf(box: str = "[0 0 612 792]", count: int = 1, content: str = "") -> bytes:
    """A PDF of one page that claims to be `count`."""
    return f"""%PDF-1.4
1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj
2 0 obj<</Type/Pages/Kids[3 0 R]/Count {count}>>endobj
3 0 obj<</Type/Page/Parent 2 0 R/MediaBox{box}/Contents 4 0 R>>endobj
4 0 obj<</Length {len(content)}>>stream
{content}
endstream endobj
trailer<</Root 1 0 R/Size 5>>
""".encode()
