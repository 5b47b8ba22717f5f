"""Worker processes that render: what they give, and what a page costs that crashes or hangs one."""

from __future__ import annotations

import multiprocessing
import os
import signal
from contextlib import closing

import pytest

from tests.kits.servers.server_kit import until
from tests.unit.ocr.test_ocr import image, pages
from vlm.errors import DocumentError, ImageError
from vlm_app.ocr.documents.pages import InProcess
from vlm_app.ocr.documents.render_pool import RenderPool


def test_workers_draw_what_this_process_draws(tmp_path):
    path = pages(tmp_path / "a.pdf", 5)
    alone = InProcess().open(path).result()
    with closing(RenderPool(2)) as pool:
        document = pool.open(path).result()
        assert (document.num_pages, document.digest) == (5, alone.digest)
        drawn = [document.read(page) for page in range(5)]
        assert [page.result().tobytes() for page in drawn] == [alone.read(i).result().tobytes() for i in range(5)]


def test_errors_cross_processes_with_their_kind(tmp_path):
    (tmp_path / "empty.png").touch()
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    with closing(RenderPool(1)) as pool:
        with pytest.raises(ImageError, match=r"empty\.png is empty") as empty:
            pool.open(tmp_path / "empty.png").result()
        with pytest.raises(DocumentError, match=r"broken\.pdf is no readable PDF") as broken:
            pool.open(tmp_path / "broken.pdf").result()
    assert (empty.value.kind, broken.value.kind) == ("empty", "damaged")


def test_a_worker_that_dies_costs_one_page(tmp_path):
    document = pages(tmp_path / "a.pdf", 2)
    with closing(RenderPool(1)) as pool:
        opened = pool.open(document).result()
        [process] = multiprocessing.active_children()
        os.kill(process.pid, signal.SIGSTOP)  # so that it is at work on the page for sure
        first = opened.read(0)
        until(lambda: pool.state().busy)
        process.kill()
        with pytest.raises(DocumentError, match=r"a\.pdf page 1 crashed its renderer") as error:
            first.result()
        assert error.value.kind == "crash" and opened.read(1).result().size[0] > 0


def test_a_page_that_takes_too_long_is_given_up(tmp_path):
    with closing(RenderPool(1, seconds=1e-9)) as pool, pytest.raises(DocumentError, match="took longer") as error:
        pool.open(image(tmp_path / "a.png")).result()
    assert error.value.kind == "timeout"


def test_workers_go_with_the_pool(tmp_path):
    with closing(RenderPool(2)) as pool:
        pool.open(image(tmp_path / "a.png")).result()
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()
