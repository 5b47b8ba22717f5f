"""Hostile PDFs and images, built in a few lines each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


def pdf(objects: list[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1; the first is its catalog."""
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    tail = b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return body + tail % (size, table, size, len(body))


def stream(content: bytes, entries: bytes = b"") -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (entries, len(content), content)


def one_page(
    content: bytes,
    resources: bytes = b"",
    box: bytes = b"0 0 200 200",
    more: tuple[bytes, ...] = (),
    count: int = 1,
    *,
    is_inherited: bool = False,
) -> bytes:
    """A PDF of one page, so many times; `more` are its objects from 5 on. `is_inherited`: the box is that of all
    pages."""
    boxes = [b"/MediaBox[%s]" % box, b""]
    of_page, of_all = reversed(boxes) if is_inherited else boxes
    page = b"<</Type/Page/Parent 2 0 R%s/Contents 4 0 R/Resources<<%s>>>>" % (of_page, resources)
    pages = b"<</Type/Pages%s/Kids[%s]/Count %d>>" % (of_all, b"3 0 R " * count, count)
    return pdf([b"<</Type/Catalog/Pages 2 0 R>>", pages, page, stream(content), *more])


def nested_forms(levels: int = 9, calls: int = 12, count: int = 1) -> bytes:
    """So many pages, each of which draws a form, which draws the next one so many times, and so on: calls ** levels
    drawings."""
    forms = []
    for level in range(levels):
        last = level == levels - 1
        content = b"0 0 1 1 re f " if last else b"/F Do " * calls
        inner = b"" if last else b"/Resources<</XObject<</F %d 0 R>>>>" % (6 + level)
        forms.append(stream(content, b"/Type/XObject/Subtype/Form/BBox[0 0 200 200]" + inner))
    return one_page(b"/F Do " * calls, b"/XObject<</F 5 0 R>>", more=tuple(forms), count=count)


def slow_page(draws: int = 1000) -> bytes:
    """A page whose shadings take seconds each, and hardly any memory: it is at work for an hour."""
    function = stream(
        b"{ " + b"sin exch cos exch " * 200 + b"0 }", b"/FunctionType 4/Domain[0 1 0 1]/Range[0 1 0 1 0 1]"
    )
    shading = b"<</ShadingType 1/ColorSpace/DeviceRGB/Matrix[200 0 0 200 0 0]/Function 5 0 R>>"
    return one_page(b"/S sh " * draws, b"/Shading<</S %s>>" % shading, more=(function,))


@dataclass(frozen=True)
class Child:
    """A process by what /proc says of it."""

    pid: int
    started: str  # a pid may be another process's later

    def is_alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and stat[19] == self.started and stat[0] != "Z"

    @property
    def peak_mb(self) -> float:
        """The most memory that it has had (VmHWM); 0 once it is gone."""
        try:
            found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{self.pid}/status").read_text())
        except OSError:
            return 0.0
        return int(found[1]) / 1024 if found else 0.0


def children(pid: int) -> list[Child]:
    """Its children, and theirs."""
    stats = {int(path.name): _stat(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    own = [child for child, stat in stats.items() if stat is not None and int(stat[1]) == pid]
    return [each for child in own for each in (Child(child, stats[child][19]), *children(child))]


def _stat(pid: int) -> list[str] | None:
    """Returns what follows the name in /proc/PID/stat: state, parent, …"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
