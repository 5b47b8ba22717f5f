"""What a request must be before anybody reads it: HTTP of one meaning, for this host, from no stranger's web page, of a
type that is taken."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from vlm_app.server.core.errors import INPUTS, response

Check = Callable[[Scope, Headers], HTTPException | None]
ANY = "*"
CLOSE = {"Connection": "close"}
SAFE = ("GET", "HEAD", "OPTIONS")
# what curl sends for itself is taken, for Triton's documentation has it so; a web page's comes with an Origin
TENSOR_TYPES = ("application/json", "application/octet-stream", "application/x-www-form-urlencoded", "")


class Checks:
    """Answers with the first refusal. HEAD is GET without a body, which the connection leaves out."""

    def __init__(self, app: ASGIApp, checks: Collection[Check]):
        self._app, self._checks = app, checks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusals = (check(scope, headers) for check in self._checks)
        if refusal := next(filter(None, refusals), None):
            await response(refusal, scope["path"])(scope, receive, send)
            return
        await self._app({**scope, "method": "GET"} if scope["method"] == "HEAD" else scope, receive, send)


def framing(scope: Scope, headers: Headers) -> HTTPException | None:
    """Refuses requests of which a proxy before us may see another end than we do."""
    if scope["http_version"] not in ("1.0", "1.1"):
        return HTTPException(505, "HTTP/1.1 is spoken here, and HTTP/1.0; send that", CLOSE)
    if "transfer-encoding" in headers and (scope["http_version"] == "1.0" or "content-length" in headers):
        return HTTPException(400, "the body's length is said twice; send Content-Length or chunks, not both", CLOSE)
    return None


class Hosts:
    """Refuses names that are not this machine's own: one that an attacker's name server points here (DNS rebinding).
    An address is no name, and nobody else can point it."""

    def __init__(self, hosts: Collection[str]):
        self._hosts = {hostname(name) for name in hosts}

    def __call__(self, scope: Scope, headers: Headers) -> HTTPException | None:
        name = hostname(headers.get("host", "localhost"))
        if name in self._hosts or name == "localhost" or name.endswith(".localhost") or is_address(name):
            return None
        return HTTPException(
            403, f"the host {name[:80]!r} is not served here; start the server with --allowed-host and this name"
        )


class Origins:
    """Refuses what a web page of another host sends, as a browser says in Origin and Sec-Fetch-Site; programs say
    nothing. The rules are those of Go's http.CrossOriginProtection."""

    def __init__(self, origins: Collection[str]):
        self._origins = {origin.rstrip("/").lower() for origin in origins}

    def __call__(self, scope: Scope, headers: Headers) -> HTTPException | None:
        if any(len(headers.getlist(name)) > 1 for name in ("origin", "sec-fetch-site")):
            return HTTPException(400, "the request says twice whose page has sent it; send one Origin")
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self._origins or site in ("same-origin", "none") or (origin or "").lower() in self._origins:
            return None
        if origin is None and (site is None or scope["method"] in SAFE):
            return None
        if origin is not None and _place(origin) == headers.get("host", "").lower():
            return None
        page = f"of {origin[:80]}" if origin else "of another site"
        return HTTPException(403, f"a web page {page} may not ask; start the server with --allowed-origin")


def content_type(scope: Scope, headers: Headers) -> HTTPException | None:
    """Refuses bodies that are neither JSON nor, for KServe, tensors: a web page may send text anywhere."""
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return None
    if scope["path"].startswith("/v2") and kind in TENSOR_TYPES:
        return None
    if kind == "multipart/form-data" and _is_elsewhere(scope["path"]):
        return HTTPException(404)
    return HTTPException(415, f"the body is {kind[:80] or 'of no type'!r}; send Content-Type: application/json")


def _is_elsewhere(path: str) -> bool:
    """Says whether a form of OpenAI's clients (audio, pictures, files to keep) went where no route is."""
    return path.startswith("/v1/") and path.rstrip("/") not in INPUTS


def add_door(app: Starlette, host: str, allowed_hosts: Collection[str], allowed_origins: Collection[str]) -> None:
    """Adds the checks that come first to a server that listens at `host`, and CORS for the origins."""
    if allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(allowed_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["*"],
            allow_private_network=True,  # browsers ask whether a public page may come to an address of this network
        )
    checks: list[Check] = [framing, Origins(allowed_origins)]
    if ANY not in allowed_hosts and (allowed_hosts or is_loopback(host)):
        checks.insert(1, Hosts(allowed_hosts))
    app.add_middleware(Checks, checks=checks)


def hostname(place: str) -> str:
    """Returns a host's name or address in lower case, without its port; empty where there is none."""
    try:
        return (urlsplit(f"//{place}").hostname or "").rstrip(".") if "@" not in place else ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Says whether nobody but this machine reaches a server that listens there."""
    return host == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _place(origin: str) -> str:
    return origin.lower().partition("://")[2]
