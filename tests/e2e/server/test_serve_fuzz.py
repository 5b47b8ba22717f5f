"""Whatever is sent, the server neither fails (5xx) nor breaks: requests made up by schemathesis and hypothesis."""

from __future__ import annotations

import contextlib
import http.client
import json
import os

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from tests.kits.servers.server_kit import EXAMPLES, data_uri, is_empty, load, serving, until
from vlm_app.server.openai.schema import ChatBody, CompletionBody, EmbeddingBody
from vlm_app.server.tensors.specs import IDS_IN, TEXT_IN

MODELS = ("mini-t5", "mini-llava")
EXAMPLE_COUNT = int(os.environ.get("VLM_FUZZ_EXAMPLES", "15"))
fuzz = settings(
    max_examples=EXAMPLE_COUNT,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def served():
    with serving(load(*MODELS), max_body_mb=4) as found:
        yield found
        for service in map(found.service, MODELS):
            assert service.ready
            until(lambda service=service: service.room.held == 0 and is_empty(service.pipeline))


@pytest.mark.parametrize("mode", GenerationMode)
def test_what_the_schema_allows_and_what_it_does_not(served, mode):
    schema = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @settings(fuzz, max_examples=max(1, EXAMPLE_COUNT // 4))
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case):
            assert case.call().status_code < 500

        with contextlib.suppress(Unsatisfiable):  # what takes nothing cannot be given anything wrong
            ask()


def post(served, path: str, body: bytes | str, **headers: str) -> int:
    """The status; what is refused says why in one sentence."""
    connection = http.client.HTTPConnection(served.address)
    connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status != 200:
        error = json.loads(text)["error"]
        assert (error if isinstance(error, str) else error["message"]).endswith(".")
    return answer.status


# --- nearly right: most fields as they should be, some of any kind ---
anything = st.one_of(
    st.none(), st.booleans(), st.text(max_size=5), st.floats(), st.integers(), st.just({}),
    st.sampled_from([2**31, 2**63, -1, 1e300]),
    st.lists(st.integers(-3, 600), max_size=3), st.lists(st.text(max_size=3), max_size=3),
)  # fmt: skip
part = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=20)),
    st.just({"type": "image_url", "image_url": {"url": data_uri(EXAMPLES / "scene1.png")}}),
    st.builds(lambda url: {"type": "image_url", "image_url": {"url": url}}, anything),
    anything,
)
content = st.one_of(st.text(max_size=30), st.lists(part, min_size=1, max_size=3))
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "user", "user", "assistant", "system", "tool"]), "content": content}
)
usual = {
    "temperature": st.floats(0, 2), "top_p": st.floats(0.01, 1), "n": st.integers(1, 3), "seed": st.integers(),
    "stop": st.text(min_size=1, max_size=3), "top_k": st.integers(0, 2**31 - 1), "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0.01, 100), "min_tokens": st.integers(0, 9), "ignore_eos": st.booleans(),
    "stop_token_ids": st.lists(st.integers(0, 450), max_size=4), "stream": st.booleans(),
    "no_repeat_ngram_size": st.integers(0, 8), "length_penalty": st.floats(-2, 2), "num_beams": st.integers(1, 4),
    "presence_penalty": st.floats(-2, 2), "top_logprobs": st.integers(0, 20),
}  # fmt: skip


@st.composite
def bodies(draw, model: type, needed: dict) -> dict:
    """JSON objects for a route, a field of every second one wrong; `max_tokens` is small so that none takes long."""
    known = {name: values for name, values in usual.items() if name in model.model_fields}
    chosen = draw(st.lists(st.sampled_from(sorted(known)), max_size=4, unique=True)) if known else []
    body = {"model": draw(st.sampled_from(MODELS)), **{name: draw(values) for name, values in needed.items()}}
    body |= {name: draw(known[name]) for name in chosen}
    if draw(st.booleans()):
        body[draw(st.sampled_from(sorted(model.model_fields)))] = draw(anything)
    return {**body, "max_tokens": draw(st.integers(1, 8))} if "max_tokens" in model.model_fields else body


chats = bodies(ChatBody, {"messages": st.lists(message, min_size=1, max_size=2), "logprobs": st.booleans()})
prompt = st.one_of(
    st.text(max_size=30),
    st.lists(st.integers(-1, 600), max_size=9),
    st.lists(st.text(max_size=9), max_size=3),
    anything,
)
completions = bodies(CompletionBody, {"prompt": prompt})
embeddings = bodies(EmbeddingBody, {"input": prompt})


@pytest.mark.parametrize(
    ("path", "strategy"),
    [("/v1/chat/completions", chats), ("/v1/completions", completions), ("/v1/embeddings", embeddings)],
)
def test_nearly_right_json(served, path, strategy):
    @fuzz
    @given(strategy)
    def ask(body):
        assert post(served, path, json.dumps(body)) < 500

    ask()


# --- tensors ---
numbers = st.one_of(st.integers(-2, 600), st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63]), st.floats(), st.booleans())


@st.composite
def tensors(draw, specs) -> list[dict]:
    """Some of the specs' tensors, mostly of the right shape."""
    chosen = draw(st.lists(st.sampled_from(specs), unique_by=lambda spec: spec.name, max_size=8))
    batch = draw(st.integers(1, 2))
    made, wrong = [], draw(st.sampled_from([None, *chosen]))
    for spec in dict.fromkeys((specs[0], *chosen)):
        shape = [batch, *(draw(st.integers(0, 4)) if size < 0 else size for size in spec.shape)]
        count = 1
        for size in shape:
            count *= size
        right = {"BYTES": st.text(max_size=9), "BOOL": st.booleans()}.get(spec.datatype, st.integers(1, 9))
        values = numbers if spec is wrong else right
        data = draw(st.lists(values, min_size=count, max_size=count))
        made.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
    length = {"name": "max_output_len", "datatype": "UINT32", "shape": [batch, 1], "data": [5] * batch}
    return [tensor for tensor in made if tensor["name"] != "max_output_len"] + [length]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("specs", [IDS_IN, TEXT_IN], ids=["ids", "texts"])
def test_nearly_right_tensors(served, model, specs):
    @fuzz
    @given(tensors(specs))
    def ask(inputs):
        assert post(served, f"/v2/models/{model}/infer", json.dumps({"inputs": inputs})) < 500

    ask()


def test_any_bytes_as_tensors(served):
    head = json.dumps(
        {"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}}]}
    ).encode()

    @fuzz
    @given(st.binary(max_size=12), st.one_of(st.just(str(len(head))), st.text("0123456789-x", min_size=1, max_size=9)))
    def ask(data, size):
        headers = {"Inference-Header-Content-Length": size}
        assert post(served, "/v2/models/mini-t5/infer", head + data, **headers) < 500

    ask()
