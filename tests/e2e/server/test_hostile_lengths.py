"""A few bytes that ask for much, and many that ask for more: refused by their sizes, and nobody else waits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import os
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.kits.servers.server_kit import EXAMPLES, alone, asked, command, load, serving, until
from vlm.api.async_pipeline import AsyncPipeline
from vlm.errors import LimitError
from vlm.processing.text.tokenization import Tokenizer
from vlm_app.server.http import json_bodies
from vlm_app.server.kserve import api as kserve
from vlm_app.server.openai import api as openai
from vlm_app.server.openai import embeddings
from vlm_app.server.tensors import wire as tensors

MODELS = ("mini-t5", "mini-llava", "mini-nougat")
LONG = "hello world " * 1_700_000
TEXT = "translate English to German: The old ship is small."
MEMORY_MB, CPU_SECONDS = 400, 6  # that an attack may cost; before, 3 GB and 17 s were the least


def send(address: str, path: str, body: bytes = b"", timeout: float = 120, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, timeout=timeout)
    given = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
    connection.request("POST" if body else "GET", path, body or None, given)
    answer = connection.getresponse()
    return answer.status, answer.read()


def v1(path: str, **body) -> tuple[str, bytes, dict]:
    return f"/v1/{path}", json.dumps(body).encode(), {}


def raw(path: str, *parts: bytes) -> tuple[str, bytes, dict]:
    return path, b"".join(parts), {}


def tensor(name: str, datatype: str, shape: list[int], data: list | int = 0) -> dict:
    """`data`: values, or the number of its bytes after the JSON."""
    values = {"data": data} if isinstance(data, list) else {"parameters": {"binary_data_size": data}}
    return {"name": name, "datatype": datatype, "shape": shape, **values}


def infer(*inputs: dict, model: str = "mini-t5", binary: bytes = b"") -> tuple[str, bytes, dict]:
    head = json.dumps({"inputs": inputs}).encode()
    return f"/v2/models/{model}/infer", head + binary, {"Inference_Header_Content_Length": str(len(head))}


def ids(shape: list[int], data: list) -> dict:
    return tensor("input_ids", "UINT32", shape, data)


COMPLETE, PROMPT = "/v1/completions", b'{"model":"mini-t5","prompt":'
IDS, INFER = ids([1, 3], [5, 6, 1]), "/v2/models/mini-t5/infer"
DATA = b'{"inputs":[{"name":"input_ids","datatype":"UINT32","shape":[1,1],"data":['
PAGE = f"data:image/png;base64,{base64.b64encode((EXAMPLES / 'page.png').read_bytes()).decode()}"
WORDS = struct.pack("<6000000i", *[7] * 3_000_000, *range(1, 3_000_001))
TOO_LONG = "characters; of one for"
# name -> (what it sends, a part of the sentence that it gets)
ATTACKS = {
    "rows without values": (lambda: infer(ids([10**7, 0], [])), "the batch has 10,000,000 rows"),
    "a row without values": (lambda: infer(ids([1, 0], [])), "holds nothing"),
    "images of no height": (
        lambda: infer(ids([1, 1], [5]), tensor("pixel_values", "FP32", [1, 10**7, 3, 0, 64], []), model="mini-llava"),
        "holds nothing",
    ),
    "sizes beyond an index": (lambda: infer(ids([2**30, 0, 2**30, 2**30], [])), "more values than are taken"),
    "a million axes": (lambda: infer(ids([2**31 - 1] * 10**6, [])), "1,000,000 axes"),
    "a hundred axes": (lambda: infer(ids([1] * 100, [5])), "100 axes"),
    "a flag of 10 MB": (
        lambda: infer(IDS, tensor("is_return_log_probs", "BOOL", [1, 10**7], 10**7), binary=bytes(10**7)),
        "give [1, 1]",
    ),
    "sixteen million empty files": (
        lambda: infer(tensor("image", "BYTES", [1, 15 << 20], 60 << 20), binary=bytes(60 << 20)),
        "elements of BYTES",
    ),
    "rows of a table without width": (
        lambda: infer(IDS, tensor("request_prompt_embedding", "FP32", [1, 10**7, 0], [])),
        "holds nothing",
    ),
    "stop words": (
        lambda: infer(IDS, tensor("stop_words_list", "INT32", [1, 2, 3 * 10**6], len(WORDS)), binary=WORDS),
        "1,024 at most",
    ),
    "bad words": (
        lambda: infer(IDS, tensor("bad_words_list", "INT32", [1, 2, 3 * 10**6], len(WORDS)), binary=WORDS),
        "1,024 at most",
    ),
    "beams": (lambda: infer(IDS, tensor("beam_width", "UINT32", [1, 1], [2**32 - 1])), "outputs were asked for"),
    "a text among numbers": (lambda: infer(ids([1, 1001], ["x" * 2_000_000] + [1] * 1000)), "not UINT32"),
    "deep lists": (lambda: raw(INFER, DATA, b"[" * 10**5, b"]" * 10**5, b"]}]}"), "too deep"),
    "60 MB of numbers": (lambda: raw(INFER, DATA, b"1," * (30 << 20), b"1]}]}"), "2,000,000 values"),
    "60 MB of lists": (lambda: raw(INFER, DATA, b"[]," * (20 << 20), b"1]}]}"), "200,000 lists"),
    "numbers for OpenAI": (
        lambda: raw(COMPLETE, PROMPT, b"[", b"1," * (30 << 20), b"1]}"),
        "2,000,000 values",
    ),
    "numbers for the repository": (
        lambda: raw("/v2/repository/index", b'{"ready":[', b"1," * (30 << 20), b"1]}"),
        "2,000,000 values",
    ),
    "lists for the repository": (
        lambda: raw("/v2/repository/models/a/unload", b"[", b"[]," * (20 << 20), b"1]"),
        "200,000 lists",
    ),
    "a million wrong tokens": (
        lambda: raw(COMPLETE, PROMPT, b"[", b'"",' * (1 << 20), b"1]}"),
        "has 1,048,577 entries; give a text",
    ),
    "a million fields": (
        lambda: v1("completions", model="mini-t5", prompt="a", **{f"k{i}": i for i in range(10**6)}),
        "objects and fields",
    ),
    "a thousand fields": (
        lambda: v1("completions", model="mini-t5", prompt="a", **{f"k{i}": i for i in range(1000)}),
        "1,002 fields",
    ),
    "a long field": (lambda: v1("completions", model="mini-t5", prompt="a", **{"k" * 10**6: 1}), "'kkk"),
    "a long name": (lambda: v1("completions", model="m" * 10**6, prompt="a"), "mmm…"),
    "a long text": (lambda: v1("completions", model="mini-t5", prompt=LONG), TOO_LONG),
    "a long word": (lambda: v1("completions", model="mini-t5", prompt="a" * 20_000_000), TOO_LONG),
    "blanks": (lambda: v1("completions", model="mini-t5", prompt=f"a{' ' * 20_000_000}b"), TOO_LONG),
    "blanks for each of 64": (
        lambda: v1("completions", model="mini-t5", prompt=[f"a{' ' * 131_000}b"] * 64),
        TOO_LONG,
    ),
    "signs": (lambda: v1("completions", model="mini-t5", prompt="中" * 3_000_000), TOO_LONG),
    "a long text in a tensor": (lambda: infer(tensor("text_input", "BYTES", [1, 1], [LONG])), TOO_LONG),
    "what an output begins with": (
        lambda: infer(
            tensor("text_input", "BYTES", [1, 1], [LONG]), tensor("image", "BYTES", [1, 1], [PAGE]), model="mini-nougat"
        ),
        TOO_LONG,
    ),
    "a long prompt": (lambda: v1("completions", model="mini-llava", prompt=LONG), TOO_LONG),
    "texts to embed": (lambda: v1("embeddings", model="mini-t5", input=[LONG[:960_000]] * 64), TOO_LONG),
    "a long message": (
        lambda: v1("chat/completions", model="mini-llava", messages=[{"role": "user", "content": LONG}]),
        TOO_LONG,
    ),
    "images that are not there": (
        lambda: v1("chat/completions", model="mini-llava", messages=[{"role": "user", "content": "<image>" * 10**6}]),
        TOO_LONG,
    ),
    "messages": (
        lambda: v1("chat/completions", model="mini-llava", messages=[{"role": "user", "content": ""}] * 90_000),
        "90,000 messages and parts",
    ),
    "a deep message": (
        lambda: raw(
            "/v1/chat/completions",
            b'{"model":"mini-llava","messages":[{"role":"user","content":',
            *(b"[" * 50_000, b"]" * 50_000, b"}]}"),
        ),
        "too deep",
    ),
    "where to stop": (lambda: v1("completions", model="mini-t5", prompt=TEXT, stop=["x" * 300_000]), "may have 256"),
    "log-probabilities": (
        lambda: v1("completions", model="mini-t5", prompt=TEXT, n=64, logprobs=20, max_tokens=500),
        "672,000 log-probabilities",
    ),
    "half a character": (lambda: raw(COMPLETE, PROMPT, b'"\\ud800"}'), "not valid Unicode"),
    "a token of 64 bits": (lambda: raw(COMPLETE, PROMPT, b"[9223372036854775808]}"), "prompt"),
    "a number of 5000 digits": (lambda: raw(COMPLETE, PROMPT, b"9" * 5000, b"}"), "too many digits"),
}  # fmt: skip


def listens(address: str) -> bool:
    with contextlib.suppress(ConnectionRefusedError):
        return send(address, "/health")[0] == 200
    return False


@pytest.fixture(scope="module")
def server():
    """(its process, host:port)"""
    with command(*MODELS) as (process, address):
        until(lambda: listens(address))
        for model in MODELS[:2]:
            assert send(address, *v1("completions", model=model, prompt="a", max_tokens=2)[:2])[0] == 200
        path, body, headers = infer(tensor("image", "BYTES", [1, 1], [PAGE]), model="mini-nougat")
        assert send(address, path, body, **headers)[0] == 200  # the workers for images have started
        yield process, address


def used(pid: int) -> tuple[float, float]:
    """Returns the most memory that a process has held, in MB, and its seconds of computation so far."""
    status = Path(f"/proc/{pid}/status").read_text()
    held = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return held / 1024, sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_is_refused_for_little(server, name):
    """In memory and computation; the time that it takes depends on what else the machine does."""
    process, address = server
    make, words = ATTACKS[name]
    path, body, headers = make()
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # the most memory is counted from now on
    held, computed = used(process.pid)
    status, answer = send(address, path, body, **headers)
    most, total = used(process.pid)
    said = json.loads(answer)["error"]
    sentence = said if isinstance(said, str) else said["message"]
    assert status in (400, 404) and words in sentence and sentence.endswith(".")
    assert len(answer) < 1500 and "Traceback" not in sentence
    assert most - held < MEMORY_MB and total - computed < CPU_SECONDS
    assert send(address, "/health", timeout=30)[0] == 200


@pytest.fixture(scope="module")
def served():
    with serving(load("mini-t5", "mini-llava")) as found:
        yield found


CHAT = v1("chat/completions", model="mini-llava", messages=asked("Read the sign."), max_tokens=2)
PADDING = b" " * json_bodies.FEW
PADDED = (CHAT[0], CHAT[1] + PADDING, {})
LOGPROBS = v1("completions", model="mini-t5", prompt="a", logprobs=2)
# what a request goes through -> a request that does
STEPS = {
    "parsing": (json_bodies, "parse_json", PADDED),
    "parsing for the repository": (json_bodies, "parse_json", ("/v2/repository/index", b"{}" + PADDING, {})),
    "conversations": (openai, "read_chat", CHAT),
    "log-probabilities": (openai.Texts, "_log_probabilities", LOGPROBS),
    "tensors": (tensors, "read", infer(IDS)),
    "batches": (kserve, "read_inference", infer(IDS)),
    "answers": (tensors, "write", infer(IDS)),
    "texts": (Tokenizer, "_encoding", v1("completions", model="mini-t5", prompt=TEXT)),
    "texts to embed": (Tokenizer, "_encoding", v1("embeddings", model="mini-t5", input=TEXT)),
    "embeddings": (embeddings, "_row", v1("embeddings", model="mini-t5", input=TEXT)),
}  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_health_is_told_while_a_request_is_worked_on(served, monkeypatch, step):
    """Whatever takes long, does so beside the event loop: it waits here until health has been told."""
    place, name, (path, body, headers) = STEPS[step]
    reached, go_on, work = threading.Event(), threading.Event(), getattr(place, name)

    def slow(*arguments, **options):
        reached.set()
        assert go_on.wait(60)
        return work(*arguments, **options)

    monkeypatch.setattr(place, name, slow)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(send, served.address, path, body, **headers)
        assert reached.wait(60)
        try:
            assert send(served.address, "/health", timeout=30)[0] == 200
            if step == "texts to embed":  # and the engine's thread is free for others
                other = v1("completions", model="mini-t5", prompt=[5, 6, 1], max_tokens=2)
                assert send(served.address, other[0], other[1], timeout=30)[0] == 200
        finally:
            go_on.set()
        assert answer.result()[0] == 200


def test_images_are_counted_before_they_are_read():
    model = AsyncPipeline(alone("mini-llava"))
    with pytest.raises(LimitError, match=r"100 images and pages are 14,400 tokens, .* for 1,024; send fewer"):
        asyncio.run(model.request({"prompt": "a"}, [b""] * 100))
    with pytest.raises(LimitError, match="100 images and pages"):  # of a PDF the pages
        model.pipeline.processor.with_pixels({"prompt": "a"}, [np.zeros((50, 3, 1, 1), np.float32)] * 2)


def test_what_fits_is_answered(served):
    """A text of many blanks, a list without words, a batch of one: no bound refuses them."""
    spaced = TEXT.replace(" ", " " * 30)
    status, answer = send(served.address, *v1("completions", model="mini-t5", prompt=spaced)[:2])
    assert status == 200 and json.loads(answer)["choices"][0]["text"]
    nothing = [tensor(name, "INT32", [1, 2, 0], []) for name in ("stop_words_list", "bad_words_list")]
    path, body, headers = infer(IDS, *nothing, tensor("request_prompt_embedding", "FP32", [1, 0, 256], []))
    assert send(served.address, path, body, **headers)[0] == 200
