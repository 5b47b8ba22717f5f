"""A demo of packaged models on a free port, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.checkout import ROOT
from tests.kits.servers.server_kit import is_empty, load, until
from vlm.api.pipeline import Pipeline

pytest.importorskip("gradio", reason="the demo needs gradio: pip install 'vlm-runtime[demo]'")

EXAMPLES = ROOT / "examples"
ALL = ("mini-llava", "mini-blip2", "mini-nougat", "mini-t5")


@dataclass(frozen=True)
class Shown:
    """Where the page is, and what is behind it."""

    url: str
    pipelines: dict[str, Pipeline]


@contextlib.contextmanager
def showing(*names: str) -> Iterator[Shown]:
    """Every pool is full again in the end."""
    from vlm_app.demo.config import DemoConfig
    from vlm_app.demo.run import serve_page

    pipelines = load(*names)
    with serve_page(pipelines, DemoConfig(port=0).on_free_port()) as url:
        yield Shown(url, pipelines)
    until(lambda: all(is_empty(pipeline) for pipeline in pipelines.values()))
