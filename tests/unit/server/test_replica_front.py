"""What a front makes of a request, and of replicas that answer, refuse, break off or go away."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.kits.servers.replica_kit import END, STREAM, Asked, Front, chunk, front_of, whole
from tests.kits.servers.server_kit import until
from vlm_app.server.replicas import forwarding
from vlm_app.server.repository.statistics import Statistics

pytestmark = pytest.mark.slow  # processes that hang and end
OK = whole(b'{"status": "ok"}')
BESIDE = {"/health": OK, "/metrics": whole(b"", kind="text/plain")}  # of work
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}).encode()
JSON = {"Content-Type": "application/json"}
IMAGE = json.dumps({"messages": [{"url": "data:image/png;base64,AAAA"}]}).encode()


async def well(asked: Asked):
    """A replica that says what it was asked."""
    yield BESIDE.get(asked.target) or whole(json.dumps([asked.method, asked.target]).encode())


async def gone(asked: Asked):
    """One that ends whenever it is asked for work."""
    yield BESIDE.get(asked.target, b"")


async def half(asked: Asked):
    """One that ends amid its answer."""
    yield BESIDE.get(asked.target) or whole(b'{"id": 1}')[:-3]


LOST = "the replica that worked on the request has ended; send it again."


def saying(answer: bytes, **beside: bytes):
    async def says(asked: Asked):
        yield (BESIDE | {f"/{name}": own for name, own in beside.items()}).get(asked.target, answer)

    return says


def call(front: Front, path="/v1/chat/completions", body: bytes | None = CHAT, method: str | None = None, **headers):
    """(status, headers, body) of an answer; in the headers' names, _ is -."""
    connection = http.client.HTTPConnection(front.address)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method or ("GET" if body is None else "POST"), path, body, {**(JSON if body else {}), **sent})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def work(front: Front) -> list[list[Asked]]:
    """What each replica was asked beside how it is."""
    return [[each for each in replica.asked if each.target not in BESIDE] for replica in front.replicas]


def sentence(body: bytes) -> str:
    error = json.loads(body)["error"]
    return error if isinstance(error, str) else error["message"]


# --- one request ---
@pytest.mark.parametrize("target", ["/v1/x", "/a/../b//c%2Fd?e=f%20g&h", "/v1/models/", "/%C3%A4#x", "/docs"])
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS"])
def test_a_request_goes_on_as_it_came(target, method):
    with front_of(well) as front:
        status, _, body = call(front, target, b"" if method == "POST" else None, method)
        assert (status, json.loads(body)) == (200, [method, target])


def test_headers_of_the_connection_and_secrets_stay_at_the_front():
    more = {"Origin": "null", "TE": "trailers", "Sec_Fetch_Site": "none", "Expect": "x", "X_Own": "é", "Accept": "a/b"}
    with front_of(
        saying(whole(b"[]", 201, headers="X-More: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n")), api_key="k"
    ) as front:
        status, headers, _ = call(front, Authorization="Bearer k", X_Request_Id="mine", **more)
        [[asked]] = work(front)
    assert set(asked.headers) == {
        "host", "accept-encoding", "content-length", "content-type", "x-request-id", "x-own", "accept"
    }  # fmt: skip
    assert asked.headers["host"] == front.address and asked.body == CHAT
    assert (status, headers["X-More"], headers["X-Request-Id"]) == (201, "1", "mine")
    assert headers.get_all("Set-Cookie") == ["a", "b"] and len(headers.get_all("Date")) == 1


def test_a_body_of_several_parts_arrives_whole():
    big = json.dumps({"prompt": "x" * 3_000_000}).encode()
    with front_of(well) as front:
        assert call(front, body=big)[0] == call(front, body=gzip.compress(big), Content_Encoding="gzip")[0] == 200
        assert [asked.body == big for asked in work(front)[0]] == [True, True]
        assert not any("content-encoding" in asked.headers for asked in work(front)[0])


def test_the_head_of_an_answer_has_no_body():
    with front_of(well) as front:
        status, headers, body = call(front, "/v1/models", None, "HEAD")
        assert (status, body, int(headers["Content-Length"])) == (200, b"", len(json.dumps(["GET", "/v1/models"])))


@pytest.mark.parametrize("route", ["load", "unload"])
def test_adapters_of_one_replica_would_be_none_of_the_others(route):
    with front_of(well, well) as front:
        status, _, body = call(front, f"/v1/{route}_lora_adapter", b'{"lora_name": "a"}')
        assert status == 403 and "the adapters that they were started with" in sentence(body)
        assert work(front) == [[], []]


def test_what_a_server_refuses_no_replica_sees():
    with front_of(well, api_key="k", max_body_mb=1) as front:
        key = {"Authorization": "Bearer k"}
        assert call(front)[0] == 401
        assert call(front, **key, Origin="https://evil.example")[0] == 403
        assert call(front, **key, Host="evil.example")[0] == 403
        assert call(front, **key, Content_Type="text/plain")[0] == 415
        assert call(front, "/v1/files", **key, Content_Type="multipart/form-data; boundary=a")[0] == 404
        assert call(front, body=b"x" * 2**20 + b"x", **key)[0] == 413
        assert call(front, body=b"x" * 10, Content_Encoding="gzip", **key)[0] == 400
        assert work(front) == [[]]
        assert call(front, **key)[0] == 200 == call(front, "/health", None)[0]


# --- several replicas ---
def test_requests_are_shared_out_and_images_stay_together():
    with front_of(well, well, well) as front:
        for _ in range(6):
            call(front)
        assert [len(asked) for asked in work(front)] == [2, 2, 2]
        for _ in range(4):
            call(front, body=IMAGE)
        assert sorted(len(asked) for asked in work(front)) == [2, 2, 6]


@pytest.mark.parametrize("broken", [gone, half, saying(b"no HTTP\r\n\r\n")], ids=["gone", "half", "unreadable"])
def test_a_request_whose_replica_goes_is_answered_by_another(broken):
    with front_of(broken, well) as front:
        assert [call(front)[0] for _ in range(4)] == [200] * 4
        assert [len(asked) for asked in work(front)] == [4, 4]
        assert "vlm_retried_requests_total 4.0" in call(front, "/metrics", None)[2].decode()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v2/models/m/generate"])
def test_a_request_that_ends_two_replicas_ends_no_third(path):
    with front_of(gone, gone, well) as front:
        status, _, body = call(front, path)
        assert (status, sentence(body)) == (503, LOST)
        assert work(front)[2] == []


def test_a_full_replica_is_passed_by():
    full = saying(whole(b'{"error": "full"}', 429, headers="Retry-After: 1\r\n"))
    with front_of(full, well) as front:
        assert [call(front)[0] for _ in range(2)] == [200, 200]
    with front_of(full, full) as front:
        status, headers, body = call(front)
        assert (status, headers["Retry-After"], sentence(body)) == (429, "1", "full")
        assert [len(asked) for asked in work(front)] == [1, 1]


def test_a_503_is_final_unless_its_replica_has_broken():
    late, broken = whole(b'{"error": "late"}', 503), whole(b"{}", 503)
    with front_of(saying(late), well) as front:
        assert call(front)[0] == 503 and work(front)[1] == []
    with front_of(saying(late, health=broken), well) as front:
        assert call(front)[0] == 200 and len(work(front)[0]) == 1


def test_a_replica_that_is_slow_to_say_how_it_is_has_not_broken():
    """Neither has one that a busy front is slow to hear."""

    async def slow(asked: Asked):
        if asked.target == "/health":
            await asyncio.sleep(6)  # longer than a page about all replicas waits
        yield BESIDE.get(asked.target) or whole(b'{"error": "late"}', 503)

    with front_of(slow, well) as front:
        assert call(front)[0] == 503 and work(front)[1] == []


# --- streams ---
def begun(front: Front) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(front.address)
    connection.request("POST", "/v1/completions", CHAT, JSON)
    return connection.getresponse()


def test_events_come_as_they_are_made():
    proceed = threading.Event()

    async def slow(asked: Asked):
        yield STREAM + chunk(b"data: 1\n\ndata")
        await asyncio.to_thread(proceed.wait)
        yield chunk(b": 2\n") + chunk(b"\n") + chunk(b"data: [DONE]\n\n") + END

    with front_of(slow) as front:
        answer = begun(front)
        assert answer.getheader("Content-Type") == "text/event-stream"
        assert answer.read1() == b"data: 1\n\n"  # not the half of an event
        proceed.set()
        assert answer.read() == b"data: 2\n\ndata: [DONE]\n\n"


def test_a_long_event_is_put_together_once():
    """Time by the square of its pieces would be half a minute."""

    async def pieces():
        for piece in (b"data: 1\n\nda", b"ta: 2\n", b"\n", *[b"x" * 2**14] * 2048, b"\n\n", b"rest"):
            yield piece

    async def events():
        answer = SimpleNamespace(content=SimpleNamespace(iter_any=pieces))
        return [event async for event in forwarding._events(answer, "/v1")]

    began = time.monotonic()
    assert asyncio.run(events()) == [b"data: 1\n\n", b"data: 2\n\n", b"x" * 2**25 + b"\n\n", b"rest"]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("end", [b"", chunk(b"data: half of an ev")[:-5]], ids=["between", "amid"])
def test_a_stream_whose_replica_goes_says_so(end):
    proceed = threading.Event()

    async def breaks(asked: Asked):
        yield STREAM + chunk(b"data: 1\n\n")
        await asyncio.to_thread(proceed.wait)
        yield end

    with front_of(breaks, well) as front:
        answer = begun(front)
        assert answer.read1() == b"data: 1\n\n"
        proceed.set()
        last, rest = answer.read().split(b"\n\n")
        assert sentence(last.removeprefix(b"data: ")) == LOST and rest == b""
        assert work(front)[1] == []


@pytest.mark.parametrize("begin", [b"", STREAM + chunk(b"data: 1\n\n")], ids=["waiting", "reading"])
def test_a_client_that_goes_ends_the_work(begin):
    async def endless(asked: Asked):
        yield BESIDE.get(asked.target, begin)
        if asked.target not in BESIDE:
            await asyncio.Event().wait()

    with front_of(endless) as front:
        host, port = front.address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(CHAT)}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + CHAT)
            until(lambda: work(front)[0])
            if begin:
                connection.recv(2**16)
        until(lambda: front.replicas[0].aborted == 1)
        until(lambda: metric(front, "vlm_replica_outstanding_requests", replica="0") == 0)


# --- replicas that end ---
def metric(front: Front, name: str, **labels: str) -> float:
    [value] = [
        sample.value
        for family in text_string_to_metric_families(call(front, "/metrics", None)[2].decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return value


def test_a_replica_that_ends_is_started_again():
    with front_of(well, well) as front:
        front.replicas[0].end()
        until(lambda: front.replicas[0].restarts == 1 and front.replicas[0].is_ready)
        assert front.said == [
            "replica 0 (cpu): it was ended by a test; it is started again in 0 s.",
            "replica 0 (cpu) is ready again.",
        ]
        assert metric(front, "vlm_replica_restarts_total", replica="0") == 1


def test_a_replica_that_hangs_is_started_again_and_its_requests_go_to_another():
    hung = threading.Event()

    async def hangs(asked: Asked):
        """One that answers nothing any more once it is asked for work, until it is started again."""
        if asked.target not in BESIDE:
            hung.set()
        while hung.is_set() and not front.replicas[0].restarts:
            await asyncio.sleep(0.01)
        yield BESIDE.get(asked.target, b"")

    with front_of(hangs, well, unresponsive_seconds=1.8) as front:
        assert call(front)[0] == 200
        until(lambda: front.replicas[0].is_ready)
        assert front.said == [
            "replica 0 (cpu): it lives and has not answered for 1.8 s; it is started again in 0 s.",
            "replica 0 (cpu) is ready again.",
        ]
        assert len(work(front)[1]) == 1


def test_a_replica_that_says_that_it_is_not_well_does_not_hang():
    with front_of(saying(b"", health=whole(b"{}", 503)), unresponsive_seconds=1.2) as front:
        until(lambda: len(front.replicas[0].asked) > 4)
        assert front.said == [] and front.replicas[0].is_ready


def test_the_front_is_well_while_one_replica_is():
    broken = saying(b"", health=whole(b"{}", 503))
    with front_of(well, broken) as front:
        status, _, body = call(front, "/health", None)
        found = json.loads(body)
        assert (status, found["status"], found["broken"]) == (200, "ok", ["1"])
        assert [row["ready"] for row in found["replicas"]] == [True, False]
        status, _, body = call(front, "/v2/health/ready", None)
        assert (status, json.loads(body)) == (200, {"live": True, "ready": True, "broken": ["1"]})
    with front_of(broken, broken) as front:
        assert call(front, "/health", None)[0] == call(front, "/v2/health/ready", None)[0] == 503
        assert call(front, "/v2/health/live", None)[0] == 200


def test_a_replica_that_ends_again_and_again_is_given_up():
    with front_of(well, well) as front:
        ended: list[str] = []
        front.supervisor.on_end = ended.append
        for replica in front.replicas:
            for restarts in (1, 2):
                replica.end()
                until(lambda replica=replica, restarts=restarts: replica.restarts == restarts and replica.is_ready)
            assert not ended
            replica.end()
            until(lambda replica=replica: not replica.is_ready)
        until(lambda: ended)
        assert ended == ["no replica is left, the last one ended so: it was ended by a test"]
        assert front.said[-1] == "replica 1 (cpu): it was ended by a test; it is not started again, restart the server."
        status, _, body = call(front)
        assert (status, sentence(body)) == (503, "no replica is ready; ask again later.")
        assert json.loads(call(front, "/health", None)[2])["broken"] == ["0", "1"]


# --- what goes to all ---
def test_control_goes_to_all_and_to_those_that_come_back():
    load, unload = (f"/v2/repository/models/{verb}" for verb in ("a/load", "b/unload"))
    with front_of(well, well) as front:
        for path in (load, unload, load):
            assert call(front, path, b"{}")[0] == 200
        assert [[each.target for each in asked] for asked in work(front)] == [[load, unload, load]] * 2
        front.replicas[1].end()
        until(lambda: front.replicas[1].restarts == 1 and front.replicas[1].is_ready)
        assert [each.target for each in work(front)[1]][3:] == [unload, load]


def test_a_refusal_of_one_is_the_answer():
    refusing = saying(whole(b'{"error": "not here."}', 400))
    with front_of(well, refusing) as front:
        status, _, body = call(front, "/v2/repository/models/a/load", b"{}")
        assert (status, sentence(body)) == (400, "not here.")
        front.replicas[1].end()
        until(lambda: front.replicas[1].restarts == 1 and front.replicas[1].is_ready)
        assert len(work(front)[1]) == 1  # nothing has changed that it is to be told


def test_the_index_has_a_model_ready_where_all_replicas_do():
    def row(name: str, reason: str = "") -> dict[str, str]:
        return {"name": name, "version": "1", "state": "UNAVAILABLE" if reason else "READY", "reason": reason}

    first, second = [row("a"), row("b"), row("c"), row("new")], [row("a"), row("c", "no memory"), row("b", "unloaded")]
    with front_of(*(saying(whole(json.dumps(rows).encode())) for rows in (first, second))) as front:
        status, _, body = call(front, "/v2/repository/index", b'{"ready": false}')
        assert (status, json.loads(body)) == (200, [row("a"), row("b", "unloaded"), row("c", "no memory")])
        assert [asked.body for [asked] in work(front)] == [b'{"ready": false}'] * 2


def test_statistics_are_of_all_replicas_together():
    def counted(requests: int, *sizes: int) -> Statistics:
        statistics = Statistics()
        for _ in range(requests):
            with statistics.request(2):
                pass
        for size in sizes:
            statistics.step(size, 0.5)
        return statistics

    def answer(*own: Statistics) -> bytes:
        rows = [statistics.as_json(name, "1") for statistics, name in zip(own, "mn", strict=False)]
        return whole(json.dumps({"model_stats": rows}).encode())

    first, second, other = counted(3, 1, 4), counted(2, 4, 8, 8), counted(1)
    with front_of(saying(answer(first, other)), saying(answer(second))) as front:
        for path in ("/v2/models/stats", "/v2/models/m/stats", "/v2/models/m/versions/1/stats"):
            m, n = json.loads(call(front, path, None)[2])["model_stats"]
    rows = [statistics.as_json("m", "1") for statistics in (first, second)]
    assert (m["name"], m["version"], m["inference_count"], m["execution_count"]) == ("m", "1", 10, 5)
    assert m["last_inference"] == max(row["last_inference"] for row in rows)
    parts = [row["inference_stats"]["success"] for row in rows]
    assert m["inference_stats"]["success"] == {"count": 5, "ns": sum(part["ns"] for part in parts)}
    steps = [(batch["batch_size"], *batch["compute_infer"].values()) for batch in m["batch_stats"]]
    assert steps == [(1, 1, 5 * 10**8), (4, 2, 10**9), (8, 2, 10**9)]
    assert n == other.as_json("n", "1")


@pytest.mark.parametrize(("path", "body"), [("/v2/models/gone/stats", None), ("/v2/repository/index", b"[]")])
def test_what_a_replica_refuses_of_its_state_is_refused(path, body):
    with front_of(saying(whole(b'{"error": "not here."}', 404)), gone) as front:
        status, _, answer = call(front, path, body)
        assert (status, sentence(answer)) == (404, "not here.")


def test_metrics_have_the_replica_as_a_label():
    def showing(count: int):
        text = f'# TYPE vlm_outputs_total counter\nvlm_outputs_total{{model="m"}} {count}\n'
        return saying(b"", metrics=whole(text.encode(), kind="text/plain"))

    with front_of(showing(3), showing(4), gone) as front:
        shown = [metric(front, "vlm_outputs_total", replica=name, model="m") for name in "01"]
        assert shown == [3, 4]
        assert [metric(front, "vlm_replica_ready", replica=name) for name in "012"] == [1, 1, 1]


def test_many_at_once_get_their_own_answers():
    async def echo(asked: Asked):
        await asyncio.sleep(0.01)
        yield BESIDE.get(asked.target) or whole(asked.body)

    with front_of(echo, gone, echo) as front, ThreadPoolExecutor(16) as pool:
        bodies = [json.dumps({"prompt": number}).encode() for number in range(200)]
        found = list(pool.map(lambda body: call(front, body=body), bodies))
        assert Counter(status for status, _, _ in found) == {200: 200}
        assert [body for _, _, body in found] == bodies
