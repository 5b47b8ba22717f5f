"""Documents for OCR jobs, jobs in processes of their own that can be killed, and what they leave."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw

from tests.checkout import ROOT
from vlm_app.bench.pages.documents import write_documents
from vlm_app.bench.pages.kinds import KINDS

EXAMPLES = ROOT / "examples"
PRELOADED = [
    "tests.kits.ocr_jobs", "vlm_app.cli.inference.ocr", "vlm_app.ocr.readers.engines", "vlm.api.load",
    "visual_engines.models.swin", "llm_engines.models.bart", "transformers.models.nougat.image_processing_nougat",
    "visual_engines.families.nougat", "torch._dynamo",
]  # fmt: skip
SHORT = ("--device", "cpu", "--batch-size", "4", "--max-new-tokens", "12")


def mixture(folder: Path) -> int:
    """Writes PDFs of text, tables, scans and photographs, PNGs, JPEGs and a TIFF of pages; returns their number of
    pages."""
    corpus = write_documents(folder, kinds=KINDS, documents=2 * len(KINDS), pages=3, seed="mixture")
    book(folder / "pages.tiff", 6)
    return corpus.pages + 6


def book(path: Path, count: int, seed: int = 0) -> Path:
    """A PDF (or TIFF) of so many pages, each with a number of its own."""
    draw = random.Random(seed)
    leaves = [_leaf(f"{i + 1} {draw.randrange(10**6)}") for i in range(count)]
    leaves[0].save(path, save_all=True, append_images=leaves[1:], resolution=72)
    return path


def _leaf(text: str) -> Image.Image:
    leaf = Image.new("L", (360, 480), 255)
    ImageDraw.Draw(leaf).text((30, 40), text, fill=0, font_size=40)
    return leaf


def left(out: Path) -> dict[str, bytes]:
    """Names and contents of what a user sees in a folder."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    shown = ((path.relative_to(out), path) for path in files)
    return {str(name): path.read_bytes() for name, path in shown if name.parts[0] != ".vlm-ocr"}


def commits(out: Path) -> dict[tuple[int, int], int]:
    """How often each page's result was written into the ledger."""
    ledger = out / ".vlm-ocr" / "ledger.sqlite"
    if not ledger.exists():
        return {}
    rows = sqlite3.connect(ledger)
    try:
        return {(row[0], row[1]): row[2] for row in rows.execute("SELECT document, page, attempts FROM pages")}
    except sqlite3.OperationalError:  # killed before its first table
        return {}
    finally:
        rows.close()


class Jobs:
    """Starts `vlm ocr` in processes that share what they import: a start takes no seconds. Each leads a group of its
    own, for `kill_group`."""

    def __init__(self, cache: Path, kill: Callable[[int, int], None] = os.kill):
        self._kill = kill
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._cache = cache

    def start(self, *arguments: object) -> multiprocessing.process.BaseProcess:
        given = ["ocr", *map(str, arguments)]
        process = self._context.Process(target=_main, args=(given, str(self._cache)))
        process.start()
        return process

    def finish(self, *arguments: object) -> int:
        process = self.start(*arguments)
        process.join()
        return process.exitcode

    def kill_after_pages(self, out: Path, more: int, delay: float, *arguments: object) -> bool:
        """SIGKILL `delay` seconds after the ledger has so many more pages; False for a job that ended before."""
        wanted, process = len(commits(out)) + more, self.start(*arguments)
        while process.is_alive() and len(commits(out)) < wanted:
            time.sleep(0.01)
        process.join(delay)
        alive = process.is_alive()
        if alive:
            self._kill(process.pid, signal.SIGKILL)
        process.join()
        return alive


def kill_group(pid: int, number: int) -> None:
    """Sends a signal to a job and to its workers."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has not begun yet
        os.kill(pid, number)


def _main(arguments: list[str], cache: str) -> None:
    from vlm_app.cli.main import main

    os.setpgid(0, 0)
    os.environ["VLM_CACHE"] = cache
    main(arguments)


def outputs(out: Path) -> set[str]:
    """Returns the names of what a user sees there."""
    return {path.name for path in out.iterdir() if not path.name.startswith(".")}
