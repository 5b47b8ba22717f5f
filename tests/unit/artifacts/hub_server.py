"""A loopback server that answers the Hub's file API from a dictionary: repository information, tree, files by range."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34


@dataclass
class Hub:
    """`files` by name; `break_after`: bytes after which a file's first transfer is cut."""

    repo_id: str
    files: dict[str, bytes]
    gated: bool = False
    break_after: dict[str, int] = field(default_factory=dict)
    config: dict | None = None  # what the information says of config.json
    answer: object = None  # instead of the information
    listed: dict[str, int] = field(default_factory=dict)  # sizes that the listings give instead of the files'
    announced: dict[str, int] = field(default_factory=dict)  # sizes of files that are sent in zeros, as often as asked
    redirect: str = ""  # where files are said to be
    commit: str = COMMIT
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    url: str = ""
    gone: bool = False

    def fetched(self) -> set[str]:
        """Names of the files that were asked for with GET."""
        return {path.rsplit("/", 1)[1] for method, path, _ in self.requests if method == "GET" and "/resolve/" in path}


@contextmanager
def serve(hub: Hub):
    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)  # asks so often whether to end
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.gone = True
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *args) -> None:
        """Keeps the tests' output clean."""

    def _answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        if self.state.gone:  # a connection that was kept alive
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        self.state.requests.append((self.command, path, self.headers.get("Range", "")))
        repo = f"/{self.state.repo_id}/"
        if path.startswith(f"/api/models{repo}tree/"):
            self._json(self._tree(), body)
        elif path.startswith("/api/models/"):
            self._info(path, body)
        elif path.startswith(f"{repo}resolve/"):
            self._file(path.removeprefix(f"{repo}resolve/").partition("/")[2], body)
        else:
            self._refuse(404, "RepoNotFound")

    def _info(self, path: str, body: bool) -> None:
        name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        if name != self.state.repo_id:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("", "main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        elif self.state.gated:
            self._refuse(403, "GatedRepo")
        else:
            siblings = [
                {"rfilename": n, "size": self.state.listed.get(n, len(b)), "blobId": _etag(b)}
                for n, b in self.state.files.items()
            ]
            more = {"config": self.state.config} if self.state.config else {}
            self._json(
                self.state.answer
                or {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "tags": [], **more},
                body,
            )

    def _tree(self) -> list[dict]:
        return [
            {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
            for name, data in self.state.files.items()
        ]

    def _file(self, name: str, body: bool) -> None:
        if name not in self.state.files:
            return self._refuse(404, "EntryNotFound")
        if self.state.redirect:
            return self._redirect()
        if name in self.state.announced:
            return self._zeros(self.state.announced[name], body)
        data = self.state.files[name]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0] or 0)
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", self.state.commit)
        self.send_header("Accept-Ranges", "bytes")
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if body:
            self._send(name, data[start:])

    def _redirect(self) -> None:
        self.send_response(302)
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", "18")
        self.send_header("Location", self.state.redirect)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _zeros(self, size: int, body: bool) -> None:
        self.send_response(200)
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        with suppress(OSError):  # the client has left
            for _ in range(size // 2**20 if body else 0):
                self.wfile.write(bytes(2**20))

    def _send(self, name: str, data: bytes) -> None:
        cut = self.state.break_after.pop(name, None)
        self.wfile.write(data[:cut])
        if cut is not None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _json(self, value: object, body: bool) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
