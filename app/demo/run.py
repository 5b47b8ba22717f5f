"""Runs the page until it is told to end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import copy_context
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported, too

import gradio as gr
from fastapi import FastAPI
from gradio import networking

from vlm.api.async_pipeline import AsyncPipeline
from vlm.api.pipeline import Pipeline
from vlm.errors import EngineError, InputError
from vlm.processing.media.pool import MediaPool
from vlm_app.core.listening import address, listener, reserve_files
from vlm_app.demo import examples
from vlm_app.demo.config import DemoConfig
from vlm_app.demo.page import CSS, build_page, theme
from vlm_app.server.core.config import ConnectionLimits
from vlm_app.server.http.checks import ANY, add_door
from vlm_app.server.http.http_server import Server
from vlm_app.server.http.limits import BodyLimit

MAX_FILE_MB = 64
MAX_FORM = (MAX_FILE_MB + 1) * 2**20  # bytes of a file and what is sent around it
DRAIN_SECONDS = 1  # a page keeps a connection open for as long as it is looked at


@contextlib.contextmanager
def serve_page(pipelines: Mapping[str, Pipeline], config: DemoConfig) -> Iterator[str]:
    """Serves loaded models under these names, which it owns from now on; gives the address. Raises InputError where
    there is none to be had."""
    media = MediaPool(config.media)
    models = {name: AsyncPipeline(pipeline, media) for name, pipeline in pipelines.items()}

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        for model in models.values():
            model.start()
        if any(model.pipeline.capabilities.takes_images for model in models.values()):
            media.start()
        yield
        media.close()
        for model in models.values():
            await model.close()

    limits = ConnectionLimits()
    reserve_files(limits.max_connections)
    bound = listener(config.host, config.port)
    page = build_page(models)
    page.share = config.share  # search engines are told to stay away
    app = mount(page, FastAPI(lifespan=lifespan, openapi_url=None), config)
    with _served(Server(app, limits, DRAIN_SECONDS), bound):
        port = bound.getsockname()[1]
        local = address("localhost" if config.host == "0.0.0.0" else config.host, port)
        yield _public_address(page, config.host, port) if config.share else local


def mount(page: gr.Blocks, app: FastAPI, config: DemoConfig) -> FastAPI:
    """Mounts the page behind the checks of `vlm serve`. A public page is known by a name that gradio makes up."""
    app.add_middleware(BodyLimit, limit=MAX_FORM)
    add_door(app, config.host, (ANY,) if config.share else config.allowed_hosts, config.allowed_origins)
    return gr.mount_gradio_app(
        app,
        page,
        path="/",
        theme=theme(),
        css=CSS,
        footer_links=["api"],
        allowed_paths=[str(examples.FOLDER)],
        max_file_size=f"{MAX_FILE_MB}mb",
        show_error=False,
        ssr_mode=False,
    )


@contextlib.contextmanager
def _served(server: Server, bound: Any) -> Iterator[None]:
    """Serves in a thread of its own: what waits in the main thread hears of signals."""
    in_context = copy_context().run  # what the verb calls its options
    thread = threading.Thread(target=in_context, args=(server.run, [bound]), name="server")
    thread.start()
    try:
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        if not server.started:
            raise EngineError("the demo's server did not start; the lines before say why.")
        yield
    finally:
        server.should_exit = True
        thread.join()


def _public_address(page: gr.Blocks, host: str, port: int) -> str:
    """Returns the address of a tunnel. Raises InputError where gradio's servers give none."""
    try:
        address = networking.setup_tunnel(host, port, page.share_token, None, None)
    except Exception as error:  # whatever a network, a download and a program of others may say
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(f"gradio gave no public address ({reason}); try again, or leave out --share.") from None
    return f"https://{address.partition('://')[2]}"
