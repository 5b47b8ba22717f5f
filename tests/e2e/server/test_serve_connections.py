"""The server's front under attack: slow clients, many of them, bytes that are no HTTP, bombs, other sites' pages."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import http.client
import json
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from tests.kits.servers.replica_kit import fronted
from tests.kits.servers.server_kit import Served, listening, load, serving, until
from vlm.errors import InputError
from vlm_app.core.listening import reserve_files
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.http.checks import hostname, is_loopback
from vlm_app.server.http.connections import AT_ONCE, MAX_FRAMING, MAX_HEADER_BYTES
from vlm_app.server.http.content_coding import LEAST_BYTES

pytestmark = pytest.mark.slow  # it waits for time limits
SHORT = {"header_seconds": 0.4, "body_seconds": 0.5, "idle_seconds": 0.4}
LIMIT = 2**20
CHAT = {"model": "mini-t5", "messages": [{"role": "user", "content": "translate English to German: The old ship."}]}
INFER = {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["summarize: A ship."]}]}
UPLOADS = (
    *(f"/v1/{route}" for route in ("chat/completions", "completions", "embeddings", "load_lora_adapter")),
    *(f"/v2/{route}" for route in ("models/mini-t5/infer", "models/mini-t5/generate", "repository/index")),
)
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", params=[serving, fronted], ids=["alone", "replicas"])
def place(request):
    """How clients meet the server: itself, or the front of its replicas."""
    return request.param


@pytest.fixture(scope="module")
def served(place):
    with place(load("mini-t5"), max_body_mb=1, allowed_origins=("https://good.example",)) as found:
        yield found


@pytest.fixture(scope="module")
def hasty(served, place):
    """A server that waits for nobody, and holds four connections."""
    with place({}, max_body_mb=1, max_connections=4, **SHORT) as found:
        yield found


@contextlib.contextmanager
def connected(served, sent: bytes = b"") -> Iterator[socket.socket]:
    host, port = served.address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(sent)
        yield connection


def heard(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(2**16):
            found += part
    return found


def answers(text: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+) ", text)]


def sentence(text: bytes) -> str:
    """The one of an answer's body."""
    said = json.loads(text.partition(b"\r\n\r\n")[2])["error"]
    said = said if isinstance(said, str) else said["message"]
    assert said.endswith(".") and "\n" not in said and "Traceback" not in said
    return said


def post(served, path: str = "/v1/chat/completions", body: bytes | None = None, method: str = "POST", **headers):
    """(status, headers, body) of an answer; in the headers' names, _ is -."""
    connection = http.client.HTTPConnection(served.address)
    payload = json.dumps(INFER if path.startswith("/v2") else CHAT).encode() if body is None else body
    sent = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
    connection.putrequest(method, path, skip_host="Host" in sent, skip_accept_encoding=True)
    for name, value in {"Content-Length": str(len(payload)), **sent}.items():
        connection.putheader(name, value)
    connection.endheaders(payload)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def alive(served) -> bool:
    return post(served, "/health", b"", "GET")[0] == 200


# --- slow clients ---
@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_half_a_header_is_closed(hasty, sent):
    with connected(hasty, sent) as connection:
        text = heard(connection)
        assert answers(text) == [408] and "did not come in time" in sentence(text)


def test_headers_that_drip_are_closed(hasty):
    with connected(hasty, b"GET /health HTTP/1.1\r\nHost: localhost\r\n") as connection:
        connection.settimeout(0.1)
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"X: y\r\n")
                with contextlib.suppress(TimeoutError):
                    if not connection.recv(2**16):
                        raise ConnectionResetError


@pytest.mark.parametrize("framing", [b"Content-Length: 99", b"Transfer-Encoding: chunked"])
def test_half_a_body_is_closed(hasty, framing):
    with connected(hasty, START + JSON_TYPE + framing + b"\r\n\r\n[") as connection:
        text = heard(connection)
        assert answers(text) == [408] and "did not come in time" in sentence(text)


def test_the_rest_of_a_refused_body_is_not_waited_for_long(hasty):
    with connected(hasty, START + JSON_TYPE + b"Content-Length: 99999999999\r\n\r\n") as connection:
        until(lambda: b"413" in connection.recv(2**16, socket.MSG_PEEK))
        with pytest.raises(ConnectionError):
            while True:
                connection.sendall(b"x" * 2**16)


@pytest.mark.parametrize("begun", [b"", b"{"], ids=["headers", "a byte"])
def test_who_leaves_in_the_middle_of_a_body_leaves_no_line_in_the_log(served, caplog, begun):
    head = b"Host: localhost\r\nContent-Length: 1000\r\n" + JSON_TYPE + b"\r\n"
    for path in (*UPLOADS, "/v1/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nX-Path:"):
        with connected(served, b"POST %b HTTP/1.1\r\n%b" % (path.encode(), head) + begun):
            pass
        assert alive(served)  # who came later has been answered
    assert not caplog.records


def test_an_idle_connection_is_closed_without_a_word(hasty):
    with connected(hasty, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n") as connection:
        assert answers(heard(connection)) == [200]


def test_a_body_that_moves_may_take_longer(served, hasty):
    """8 KB every 0.1 seconds pay for 0.125 each."""
    body = json.dumps({"model": "none", "prompt": " " * 2**17}).encode()
    start = START + JSON_TYPE + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(hasty, start) as connection:
        for begin in range(0, len(body), 2**13):
            time.sleep(0.1)
            connection.sendall(body[begin : begin + 2**13])
        assert answers(heard(connection)) == [404]


def test_a_client_that_does_not_read_is_cut_off(hasty):
    """/openapi.json is asked for again and again; what is sent fills the kernel's buffers, then ours."""
    asked = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000
    with connected(hasty) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(ConnectionError):
            connection.sendall(asked)
        until(lambda: _gone(connection))


def _gone(connection: socket.socket) -> bool:
    """Has the other side reset it? What it sent before may lie unread; where that has filled the buffer, the kernel
    hears of the reset once it has sent something."""
    try:
        connection.send(b"x", socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass  # the other side is there, and does not read
    except ConnectionError:
        return True
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0


def test_nothing_is_written_to_a_client_that_has_gone(caplog):
    """Twenty pieces are sent while the loop has not heard yet that their reader has reset the connection."""
    begun, reset, sent, told = threading.Event(), threading.Event(), threading.Event(), []

    async def stream(scope, receive, send):
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            reset.wait()
            for _ in range(20):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            told.append((await receive())["type"])
            sent.set()

    with listening(stream, ServerConfig()) as address, connected(Served(address, FastAPI()), HEALTH) as connection:
        begun.wait()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        connection.close()
        reset.set()
        sent.wait()
    assert told == ["http.disconnect"]
    assert "socket.send() raised exception." not in caplog.messages


# --- many of them ---
def test_who_waits_gives_way_to_who_comes(hasty):
    """Twice as many as fit, all half-sent; each new one takes the place of the one that has waited longest."""
    with contextlib.ExitStack() as stack:
        half = [stack.enter_context(connected(hasty, b"GET /health HTTP/1.1\r\n")) for _ in range(8)]
        assert all(alive(hasty) for _ in range(3))
        told = [heard(connection) for connection in half]
        assert sum(answers(text) == [503] and "as many connections" in sentence(text) for text in told) >= 4


def test_half_a_body_gives_way_last_and_is_told():
    start = START + JSON_TYPE + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    with serving({}, max_connections=2) as small, connected(small, start) as upload:
        assert answers(upload.recv(2**16)) == [100]
        with connected(small) as silent:
            assert alive(small)  # in the place of who has said nothing
            assert answers(heard(silent)) == [503]
        with connected(small, start) as another:
            assert answers(another.recv(2**16)) == [100]
            assert alive(small)  # in the place of who has begun first
            text = heard(upload)
            assert answers(text) == [503] and "as many connections" in sentence(text)


def test_of_more_than_fit_at_once_each_hears_an_answer(hasty):
    """They send on where they are refused: a connection that is closed then is reset, and they could not."""
    body = b"Content-Length: 900000\r\n\r\n[" + b" " * 899_998 + b"]"
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connected(hasty)) for _ in range(30)]
        for connection in many:
            connection.sendall(START + JSON_TYPE + body)
        told = [answers(heard(connection)) for connection in many]
    assert all(codes in ([503], [400], [422]) for codes in told), told
    assert [503] in told and alive(hasty)


def test_who_is_worked_for_does_not_give_way(hasty):
    at_work, release = threading.Semaphore(0), threading.Event()

    @hasty.app.get("/wait")
    def wait() -> None:
        at_work.release()
        release.wait()

    asked = b"GET /wait HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with contextlib.ExitStack() as stack:
        stack.callback(release.set)
        working = [stack.enter_context(connected(hasty, asked)) for _ in range(4)]
        assert all(at_work.acquire() for _ in working)
        assert post(hasty, "/health", b"", "GET")[0] == 503
        release.set()
        assert all(answers(heard(connection)) == [200] for connection in working)


@pytest.mark.parametrize(("limits", "soft"), [((100, 4096), 256 + 512), ((1024, 4096), None), ((100, 300), "lower")])
def test_connections_find_files_to_be_had(monkeypatch, limits, soft):
    """soft: what the limit is raised to, or the word of a refusal."""
    found = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: found.append(pair))
    with pytest.raises(InputError, match=soft) if soft == "lower" else contextlib.nullcontext():
        reserve_files(512)
    assert found == ([(soft, 4096)] if isinstance(soft, int) else [])


# --- bytes that are no request, or two ---
SHAPES = {
    "two lengths": (START + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", [400]),
    "length and chunks": (START + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    "length in a list": (START + b"Content-Length: 3, 4\r\n\r\nabcd", [400]),
    "signed length": (START + b"Content-Length: +3\r\n\r\nabc", [400]),
    "huge length": (START + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", [400]),
    "space before colon": (START + b"Content-Length : 3\r\n\r\nabc", [400]),
    "other coding": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", [501]),
    "chunks in 1.0": (START.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", [400]),
    "bad chunk": (START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n", [415, 400]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [400]),
    "two hosts": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: a\r\n\r\n", [400]),
    "a line feed alone": (b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n", [200]),
    "trailers": (START + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a:b\r\n" * MAX_HEADER_BYTES, [415, 431]),
    "extensions": (START + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a" * MAX_HEADER_BYTES * 3, [415, 431]),
    "0.9": (b"GET /\r\n\r\n", [400]),
    "2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [505, 400]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2 + b"\r\n\r\n", [400]),
    "NUL": (b"GET /\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "long line": (b"GET /" + b"a" * MAX_HEADER_BYTES * 3, [431]),
    "many headers": (START + b"a:b\r\n" * MAX_HEADER_BYTES, [431]),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nConnection: close\r\n\r\n", [403, 404]),
    "another's address": (b"GET http://a.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [403]),
    "upgrade": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n",
        [200],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_of_two_meanings_get_one_answer(served, caplog, shape):
    sent, expected = SHAPES[shape]
    with connected(served) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        text = heard(connection)
    [status] = answers(text)
    assert status in expected
    if status != 200:
        sentence(text)
    assert not caplog.records


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 431), (1000, 431), (MAX_HEADER_BYTES - 1, 431)])
def test_headers_have_one_limit_however_they_come(served, more, status):
    start = HEALTH[:-2] + b"Connection: close\r\nX: "
    head = start + b"x" * (MAX_HEADER_BYTES + more - len(start) - 4) + b"\r\n\r\n"
    for before in (b"", HEALTH, START + JSON_TYPE + b"Content-Length: 2\r\n\r\n{}"):
        with connected(served, before + head) as connection:
            text = heard(connection)
            assert answers(text)[-1] == status, before
            assert status == 200 or "over 16,384 bytes" in sentence(text[text.rindex(b"HTTP/1.1") :])


def test_chunks_of_a_byte_are_not_counted_one_by_one(served):
    with connected(served, START + JSON_TYPE + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"1\r\n \r\n" * MAX_FRAMING)
        assert "few bytes" in sentence(heard(connection))


def test_requests_behind_one_another_are_answered_in_order(served):
    with connected(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20) as connection:
        connection.sendall(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert answers(heard(connection)) == [200] * 20 + [404]


def test_large_bodies_behind_one_another_are_both_read(served):
    body = b" " * 200_000 + json.dumps({"model": "none", "prompt": "a"}).encode()
    one = START + JSON_TYPE + b"Content-Length: %d\r\n" % len(body)
    with connected(served, one + b"\r\n" + body + one + b"Connection: close\r\n\r\n" + body) as connection:
        assert answers(heard(connection)) == [404, 404]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost/v1/models", 200), (b"HTTP://127.0.0.1:80/v2/models/mini%2Dt5?x=1", 200),
        (b"http://localhost", 404), (b"http://evil.example/v1/models", 403), (b"http:///v1/models", 403),
    ],
)  # fmt: skip
def test_whole_addresses_are_read_and_their_host_is_what_counts(served, target, status):
    sent = b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(served, sent) as connection, connection.makefile("rb") as answer:
        assert answer.readline().split()[1] == b"%d" % status


def test_a_proxy_may_show_the_server_under_a_path_of_its_own(place):
    """It takes the path off, or leaves it; the page of documentation asks under it either way."""
    with place(load("mini-t5"), root_path="/team/llm", api_key="SECRET") as found:
        key = {"Authorization": "Bearer SECRET"}
        for prefix in ("", "/team/llm"):
            assert post(found, f"{prefix}/health", b"", "GET")[0] == 200
            assert post(found, f"{prefix}/v1/models", b"", "GET", **key)[0] == 200
            status, _, body = post(found, f"{prefix}/v2/models/gpt", b"", "GET", **key)
            assert status == 404 and "gpt" in json.loads(body)["error"]  # as KServe has it
            assert b"'/team/llm/openapi.json'" in post(found, f"{prefix}/docs", b"", "GET", **key)[2]
            schema = json.loads(post(found, f"{prefix}/openapi.json", b"", "GET", **key)[2])
            assert schema["servers"] == [{"url": "/team/llm"}]
        assert post(found, "/team/llmv1/models", b"", "GET", **key)[0] == 404


@pytest.mark.parametrize("path", ["/%00", "/%ff%fe", "/v2/models/%00%ff", "/v1/../../etc/passwd", "//", "/%2e%2e/"])
def test_paths_of_any_bytes_are_404(served, path):
    status, _, text = post(served, path, b"", "GET")
    assert status == 404 and sentence(b"\r\n\r\n" + text)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/mini-t5/infer", "/v2/repository/index"])
def test_a_slash_at_the_end_of_a_path_changes_nothing(served, path):
    status, headers, _ = post(served, f"{path}/", **JSON)
    assert (status, headers["location"]) == (200, None)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/mini-t5", "/v2", "/v2/models/mini-t5/config", "/health"])
def test_what_is_shown_with_a_slash_is_the_same(served, path):
    assert post(served, f"{path}/", b"", "GET")[::2] == post(served, path, b"", "GET")[::2]


def test_a_proxy_is_told_not_to_hold_a_stream_back(served):
    status, headers, _ = post(served, body=json.dumps(CHAT | {"stream": True}).encode(), **JSON)
    assert (status, headers["x-accel-buffering"]) == (200, "no")
    assert post(served, **JSON)[1]["x-accel-buffering"] is None


def test_methods(served):
    for method, status in (("HEAD", 200), ("OPTIONS", 405), ("TRACE", 405), ("DELETE", 405), ("BREW", 405)):
        found, headers, text = post(served, "/health", b"", method)
        assert found == status and (method != "HEAD" or not text)
        assert status == 200 or headers["allow"] == "GET"


def test_many_query_parameters_are_read_by_nobody(served):
    assert post(served, "/health?" + "&".join(f"a{i}=b" for i in range(1500)), b"", "GET")[0] == 200
    assert post(served, "/health?" + "a=b&" * MAX_HEADER_BYTES, b"", "GET")[0] == 431


# --- coded bodies ---
@pytest.mark.parametrize("code", [gzip.compress, zlib.compress], ids=["gzip", "deflate"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/mini-t5/infer"])
def test_bodies_may_be_compressed(served, code, path):
    body = json.dumps(INFER if path.startswith("/v2") else CHAT).encode()
    name = code.__module__.replace("zlib", "deflate")
    plain, packed = post(served, path, body, **JSON), post(served, path, code(body), Content_Encoding=name, **JSON)
    assert plain[0] == packed[0] == 200
    assert re.findall(rb'"(?:content|data)":[^}]*', plain[2]) == re.findall(rb'"(?:content|data)":[^}]*', packed[2])


def test_answers_are_compressed_but_those_that_tritons_client_reads_as_they_come(served):
    for path, coding in (("/metrics", "gzip"), ("/v2/models/mini-t5/config", None)):
        plain = post(served, path, b"", "GET")
        status, headers, body = post(served, path, b"", "GET", Accept_Encoding="gzip")
        assert status == 200 and headers.get("content-encoding") == coding and len(plain[2]) > LEAST_BYTES
        assert (gzip.decompress(body) if coding else body)[:100] == plain[2][:100]


def test_two_files_of_gzip_are_one_body(served):
    body = json.dumps(CHAT).encode()
    packed = gzip.compress(body[:30], mtime=0) + gzip.compress(body[30:], mtime=0)
    assert post(served, body=packed, Content_Encoding="gzip", **JSON)[0] == 200


@functools.cache
def bomb() -> bytes:
    """1 GB of spaces in 1 MB of gzip."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(packer.compress(b" " * 2**24) for _ in range(60)) + packer.flush()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/mini-t5/infer"])
def test_a_bomb_stops_at_the_limit(served, path):
    """Twice over."""
    until(lambda: alive(served))
    content, before = bomb(), peak_mb()
    for coding in ("gzip", "GZIP"):
        status, _, text = post(served, path, content, Content_Encoding=coding, **JSON)
        assert status == 413 and f"{LIMIT:,} bytes" in sentence(b"\r\n\r\n" + text)
    assert peak_mb() - before < 100


def peak_mb() -> float:
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    ("coding", "body", "status", "word"),
    [
        ("br", b"abc", 415, "gzip, deflate"),
        ("zstd", b"abc", 415, "gzip, deflate"),
        ("gzip, gzip", b"abc", 415, "gzip, deflate"),
        ("gzip", b"{}", 400, "not coded"),
        ("gzip", gzip.compress(b"{}" * 50, mtime=0)[:-9], 400, "ends before"),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"{}", 400, "not coded"),
        ("gzip", gzip.compress(b"", mtime=0) * (LIMIT // 20), 400, "over 4,096 gzip files"),
        ("deflate", b"\x78\x01" + b"\x00\x00\x00\xff\xff" * (LIMIT // 5), 413, "1,048,576"),  # of which nothing comes
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/mini-t5/infer"])
def test_bodies_that_are_not_what_they_say(served, path, coding, body, status, word):
    found, _, text = post(served, path, body, Content_Encoding=coding, **JSON)
    assert found == status and word in sentence(b"\r\n\r\n" + text)


def test_all_bodies_together_have_a_limit(served):
    """17 clients have sent all but the last byte of what each may."""
    start = START + JSON_TYPE + b"Content-Length: %d\r\n\r\n" % LIMIT
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connected(served, start)) for _ in range(17)]
        for client in clients:
            client.sendall(b" " * (LIMIT - 1))
        until(lambda: any(_has_answer(client) for client in clients))
        refused = next(client for client in clients if _has_answer(client))
        assert answers(refused.recv(2**16)) == [429]
    until(lambda: post(served, **JSON)[0] == 200)


def _has_answer(client: socket.socket) -> bool:
    client.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        return bool(client.recv(1, socket.MSG_PEEK))
    return False


# --- web pages ---
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/mini-t5/infer", "/v2/repository/index"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin", "Origin": "https://behind.a.proxy"}, 200),
        ({"Origin": "https://good.example"}, 200),
        ({"Host": "localhost:7", "Origin": "http://localhost:7"}, 200),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example", "Sec_Fetch_Site": "same-origin"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "localhost@evil.example"}, 403),
        ({"Host": "[::1]:80"}, 200),
    ],
)
def test_web_pages_of_others_are_refused(served, path, headers, status):
    found, _, text = post(served, path, **JSON, **headers)
    assert found == status
    assert status == 200 or sentence(b"\r\n\r\n" + text)


@pytest.mark.parametrize("second", [b"Origin: https://evil.example\r\n", b"Origin: https://good.example\r\n"])
def test_a_request_has_one_origin(served, second):
    two = b"Origin: https://good.example\r\n" + second
    head = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + two
    with connected(served, head + b"\r\n") as connection:
        text = heard(connection)
        assert answers(text) == [400] and "send one Origin" in sentence(text)


def test_a_page_that_is_named_hears_the_answer(served):
    allowed = {"Origin": "https://good.example"}
    _, headers, _ = post(served, **JSON, **allowed)
    assert headers["access-control-allow-origin"] in ("https://good.example", "*")
    before = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "authorization,content-type"}
    status, headers, _ = post(served, body=b"", method="OPTIONS", **before, **allowed)
    assert status == 200 and "authorization" in headers["access-control-allow-headers"]
    private = {"Access_Control_Request_Private_Network": "true"}  # Chrome, of a server on this machine
    status, headers, _ = post(served, body=b"", method="OPTIONS", **before, **private, **allowed)
    assert (status, headers["access-control-allow-private-network"]) == (200, "true")
    status, headers, _ = post(served, body=b"", method="OPTIONS", **before, Origin="https://evil.example")
    assert status == 403 and "access-control-allow-origin" not in headers


@pytest.mark.parametrize(
    ("kind", "v1", "v2"),
    [
        ("application/json", 200, 200),
        ("Application/JSON; charset=utf-8", 200, 200),
        ("application/octet-stream", 415, 200),  # tritonclient's, for tensors
        (None, 415, 200),  # tritonclient's, for all else
        ("application/x-www-form-urlencoded", 415, 200),  # curl's, as in Triton's documentation
        ("text/plain", 415, 415),
        ("text/plain; application/json", 415, 415),
        ("multipart/form-data; boundary=a", 415, 415),
    ],
)
def test_bodies_say_what_they_are(served, kind, v1, v2):
    for path, status in (("/v1/chat/completions", v1), ("/v2/models/mini-t5/infer", v2)):
        found, _, text = post(served, path, Content_Type=kind)
        assert found == status
        assert status == 200 or "application/json" in sentence(b"\r\n\r\n" + text)


def test_where_others_may_reach_it_any_name_will_do():
    assert all(is_loopback(host) for host in ("127.0.0.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "a.example"))
    assert [hostname(f) for f in ("A.b:1", "[::1]:1", "a.", "a@b", "[", "")] == ["a.b", "::1", "a", "", "", ""]
    with serving({}, host="0.0.0.0") as anywhere, serving({}, host="0.0.0.0", allowed_hosts=("a.example",)) as named:
        for served, status in ((anywhere, 200), (named, 403)):
            assert post(served, "/health", b"", "GET", Host="b.example")[0] == status
            assert post(served, "/health", b"", "GET", Host="A.example:80")[0] == 200


# --- the end ---
def test_who_waits_when_the_server_ends_is_told():
    """One whose work has not begun to answer, and one that has had half an answer."""
    at_work = threading.Semaphore(0)

    async def endless():
        yield b"half"
        at_work.release()
        await asyncio.Event().wait()

    async def wait() -> None:
        at_work.release()
        await asyncio.Event().wait()

    with contextlib.ExitStack() as stack:
        with serving({}, drain_seconds=0) as ending:
            ending.app.get("/wait")(wait)
            ending.app.get("/stream")(lambda: StreamingResponse(endless()))
            silent, half = (
                stack.enter_context(connected(ending, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path))
                for path in (b"/wait", b"/stream")
            )
            assert at_work.acquire() and at_work.acquire()
        text = heard(silent)
        assert answers(text) == [503] and "is stopping" in sentence(text)
        text = heard(half)
        assert b"half" in text and not text.endswith(b"0\r\n\r\n")


HANGS = """
import asyncio, sys, threading, time
import vlm
from vlm_app.server import run as server
from vlm_app.server.core.config import ServerConfig

hang, drain = sys.argv[1], float(sys.argv[2])
server.GRACE_SECONDS = 1
pipeline = vlm.load("mini-t5", device="cpu")
if hang == "engine":
    pipeline.llm.step = lambda **options: threading.Event().wait()
if hang == "loop":
    pipeline.request = lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(stuck(), loop()).result()
if hang == "thread":
    pipeline.request = lambda *args, **kwargs: threading.Event().wait()

async def stuck():
    while True:
        time.sleep(1)

def loop():
    return server_loop[0]

server_loop, serve = [], server.Server.startup

async def startup(self, sockets=None):
    server_loop.append(asyncio.get_running_loop())
    await serve(self, sockets)

server.Server.startup = startup
config = ServerConfig(port=0, preprocess_workers=0, drain_seconds=drain)
server.run({"mini-t5": pipeline}, config, lambda address: print(address, flush=True))
"""


@contextlib.contextmanager
def hanging(what: str, drain_seconds: float) -> Iterator[tuple[subprocess.Popen, socket.socket]]:
    """A process that serves a model, and a client of it that waits for what never comes."""
    line = [sys.executable, "-c", HANGS, what, str(drain_seconds)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().strip().removeprefix("http://")
        body = json.dumps(CHAT).encode()
        start = START.replace(b"completions", b"chat/completions") + JSON_TYPE
        with connected(Served(address, None), start + b"Content-Length: %d\r\n\r\n" % len(body) + body) as client:
            until(lambda: (what == "loop" and _silent(address)) or (what != "loop" and alive(Served(address, None))))
            yield process, client
    finally:
        process.kill()


def _silent(address: str) -> bool:
    """Does it no longer say that it is alive?"""
    connection = http.client.HTTPConnection(address, timeout=1)
    with contextlib.suppress(TimeoutError):
        connection.request("GET", "/health")
        return not connection.getresponse()
    return True


@pytest.mark.parametrize(
    "what", ["engine", pytest.param("loop", marks=pytest.mark.slow), pytest.param("thread", marks=pytest.mark.slow)]
)
def test_sigterm_ends_it_whatever_hangs(what):
    with hanging(what, drain_seconds=0.5) as (process, client):
        process.send_signal(signal.SIGTERM)
        text = heard(client)
        assert process.wait() == 0
        assert "did not end in time" in process.stderr.read()
        assert what == "loop" or (answers(text) == [503] and "is stopping" in sentence(text))


@pytest.mark.slow
def test_a_second_interrupt_ends_it_at_once():
    with hanging("engine", drain_seconds=10_000) as (process, _):
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
