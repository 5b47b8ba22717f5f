"""How long a server runs, and when it says that it does."""

from __future__ import annotations

import contextlib
import threading

from starlette.applications import Starlette

from vlm_app.core.listening import listener
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.run import Lifetime


def test_an_address_is_told_once_all_that_serves_can_be_asked():
    happened: list[str | None] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette):
        happened.append("started")  # gRPC, among others
        yield
        happened.append("ended")

    def serve() -> None:
        lifetime = Lifetime(ServerConfig())

        def told() -> None:
            happened.append("told")
            lifetime.end("enough")

        app = Starlette(lifespan=lifespan)
        app.state.grpc = None
        with listener("127.0.0.1", 0) as bound:
            happened.append(lifetime.serve(app, bound, told))

    thread = threading.Thread(target=serve)  # in the main one it would have the process ended
    thread.start()
    thread.join()
    assert happened == ["started", "told", "ended", "enough"]
