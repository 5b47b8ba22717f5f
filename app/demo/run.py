"""Runs the page until it is told to end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported, too

from vlm.async_pipeline import AsyncPipeline
from vlm.pipeline import Pipeline
from vlm.processing.workers import ImageWorkers, MediaLimits
from vlm_app.demo import examples
from vlm_app.demo.config import DemoConfig
from vlm_app.demo.page import CSS, build_page, theme

MAX_FILE = "64mb"


@contextlib.contextmanager
def running(pipelines: Mapping[str, Pipeline], config: DemoConfig) -> Iterator[str]:
    """Serves loaded models under these names, which it owns from now on, at a port that is free; gives the address."""
    workers = ImageWorkers(config.preprocess_workers, MediaLimits(budget=config.media))
    models = {name: AsyncPipeline(pipeline, workers) for name, pipeline in pipelines.items()}

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        for model in models.values():
            model.start()
        if any(model.pipeline.frontend.vision for model in models.values()):
            workers.start()
        yield
        workers.close()
        for model in models.values():
            await model.close()

    page = build_page(models)
    _, local, public = page.launch(
        server_name=config.host,
        server_port=config.port,
        share=config.share,
        prevent_thread_lock=True,
        quiet=True,
        theme=theme(),
        css=CSS,
        footer_links=["api"],
        allowed_paths=[str(examples.FOLDER)],
        max_file_size=MAX_FILE,
        ssr_mode=False,
        app_kwargs={"lifespan": lifespan},
    )
    try:
        yield public or local
    finally:
        page.close(verbose=False)
