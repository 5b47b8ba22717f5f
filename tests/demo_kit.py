"""A demo of packaged models on a free port, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.server_kit import is_empty, load, until
from vlm.api.pipeline import Pipeline

pytest.importorskip("gradio", reason="the demo needs gradio: pip install 'vlm-runtime[demo]'")

EXAMPLES = Path(__file__).parents[1] / "examples"
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
