"""JSON bodies: bounded before they are parsed, and parsed off the event loop, which answers everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from vlm.artifacts.files import json_fault
from vlm.errors import InputError, LimitError

# of a body: nothing else runs in this process while one is parsed
MAX_VALUES, MAX_NESTED = 2_000_000, 200_000
MAX_FIELDS = 256  # of a request
FEW = 2**16  # bytes that are parsed where they are


def parse_json(body: bytes) -> Any:
    """Raises LimitError for more values than are parsed, InputError for what is no JSON."""
    containers, fields = body.count(b"[") + body.count(b"{"), body.count(b":")
    if body.count(b",") > MAX_VALUES or max(containers, fields) > MAX_NESTED:
        raise LimitError(
            f"the body's JSON may have {MAX_VALUES:,} values and {MAX_NESTED:,} lists, objects and fields; send fewer,"
            " or KServe's tensors in binary (Inference-Header-Content-Length)."
        )
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        raise InputError(f"the request is no JSON: {json_fault(error)}; correct it there.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"the request is not UTF-8 (byte {error.start + 1} of it); encode its JSON so.") from None
    except RecursionError:
        raise InputError("the request's lists and objects lie too deep in each other; send flatter ones.") from None
    except ValueError:
        raise InputError("a number of the request has too many digits; send shorter ones.") from None


async def parse_body(body: bytes) -> Any:
    """Parses as `parse_json`, a long body off the event loop."""
    return parse_json(body) if len(body) < FEW else await asyncio.to_thread(parse_json, body)


class JsonRoute(APIRoute):
    """A route whose JSON body is read by `parse_json`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_parsed(request: Request) -> Response:
            json_request = _Parsed(request.scope, request.receive)
            if request.method == "POST" and "json" in request.headers.get("content-type", "").lower():
                await json_request.parse()
            return await handle(json_request)

        return handle_parsed


class _Parsed(Request):
    """A request whose JSON has been read."""

    async def parse(self) -> None:
        values = await parse_body(await self.body())
        if isinstance(values, dict) and len(values) > MAX_FIELDS:
            raise LimitError(f"the request has {len(values):,} fields; leave out those that the route does not have.")
        self._values = values

    async def json(self) -> Any:
        return self._values
