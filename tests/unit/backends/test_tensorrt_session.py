"""What is bound where, by a context that writes down what it is told: plans themselves run only on a GPU."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace

import pytest
import torch

from vlm.backends.graphs.io import BATCH, GraphIO, Port
from vlm.backends.tensorrt.bindings import Binding, PlanPort, plan_passes
from vlm.backends.tensorrt.session import PlanContext, PlanGraph, Queue, ports_of
from vlm.errors import EngineError, OutOfMemoryError
from vlm.executor.memory import is_out_of_memory
from vlm.executor.slots.cache import SlotCache

CPU = torch.device("cpu")
SLOTS, HEADS, ROWS, DIM, VOCAB = 4, 2, 8, 3, 11
CACHE = (HEADS, ROWS, DIM)
IO = GraphIO(
    (
        Port("token_ids", (BATCH, "span"), torch.int64),
        Port("starts", (BATCH,), torch.int64),
        Port("prompt_table", ("rows", DIM), torch.float16),
        Port("self_k_0", (BATCH, *CACHE), torch.float16),
    ),
    (Port("logits", (BATCH, VOCAB), torch.float32), Port("self_k_0_out", (BATCH, *CACHE), torch.float16)),
    {"self_k_0_out": "self_k_0"},
)
DECODE, PREFILL = 0, 1  # at most SLOTS sequences of a token, or 2 of ROWS tokens
PORTS = [
    PlanPort("self_k_0_out", torch.float16, memory="self_k_0"),
    PlanPort("logits", torch.float32),
    PlanPort("token_ids", torch.int64, (((1, 1), (SLOTS, 1)), ((1, 1), (2, ROWS)))),
    PlanPort("starts", torch.int64, (((1,), (SLOTS,)), ((1,), (2,)))),
    PlanPort("prompt_table", torch.float16, (((1, DIM), (20, DIM)),) * 2),
    PlanPort("self_k_0", torch.float16, (((1, *CACHE), (SLOTS, *CACHE)), ((1, *CACHE), (2, *CACHE)))),
]


class FakeContext:
    """Records calls; the shapes of outputs follow from the batch of `token_ids`."""

    def __init__(self):
        self.calls, self.shapes = [], {}

    def set_input_shape(self, name, shape):
        self.calls.append(("shape", name, shape))
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name, address):
        self.calls.append(("address", name, address))
        return True

    def get_tensor_shape(self, name):
        batch = self.shapes["token_ids"][0]
        return {"logits": (batch, VOCAB), "self_k_0_out": (batch, *CACHE)}.get(name) or self.shapes[name]

    def execute_async_v3(self, stream):
        self.calls.append(("run", stream))
        return True

    def addresses(self) -> dict[str, int]:
        return {call[1]: call[2] for call in self.calls if call[0] == "address"}


@pytest.fixture
def graph() -> PlanGraph:
    """A graph of IO over contexts that record, and memory of the CPU."""
    graph = PlanGraph.__new__(PlanGraph)
    graph.io, graph.device, graph._ports = IO, CPU, PORTS
    graph._queue = SimpleNamespace(turn=lambda: contextlib.nullcontext(7))
    graph._contexts = [PlanContext(FakeContext(), []), PlanContext(FakeContext(), [])]
    return graph


def inputs_of(batch: int, span: int) -> dict[str, torch.Tensor]:
    ids, starts = torch.zeros(batch, span, dtype=torch.int64), torch.zeros(batch, dtype=torch.int64)
    return {"token_ids": ids, "starts": starts, "prompt_table": torch.zeros(1, DIM, dtype=torch.float16)}


def bound(graph: PlanGraph, cache: SlotCache, slots: slice, span: int):
    inputs = inputs_of(slots.stop - slots.start, span) | cache.inputs(slots)
    return graph.bind(inputs, cache.outputs(slots))


def test_a_prefill_goes_straight_into_its_slot(graph):
    cache = SlotCache(IO, SLOTS, {}, CPU)
    run = bound(graph, cache, slice(3, 4), span=5)
    outputs = run()
    decode, prefill = (context._context for context in graph._contexts)
    assert not decode.calls and prefill.calls[-1] == ("run", 7)
    slot = cache.tensors["self_k_0"][3].data_ptr()
    told = prefill.addresses()
    assert told["self_k_0"] == told["self_k_0_out"] == slot
    assert told["token_ids"] == run.inputs["token_ids"].data_ptr()
    assert told["logits"] == outputs["logits"].data_ptr() and outputs["logits"].shape == (1, VOCAB)
    assert outputs["self_k_0_out"].data_ptr() == slot
    assert ("shape", "token_ids", (1, 5)) in prefill.calls
    assert not any(call[:2] == ("shape", "logits") for call in prefill.calls)


def test_a_decode_step_is_one_call_once_bound(graph):
    run = bound(graph, SlotCache(IO, SLOTS, {}, CPU), slice(0, SLOTS), span=1)
    run()
    context = graph._contexts[DECODE]._context
    assert len([call for call in context.calls if call[0] == "address"]) == len(PORTS)
    context.calls.clear()
    run()
    assert context.calls == [("run", 7)]


def test_too_many_sequences_are_several_passes(graph):
    cache = SlotCache(IO, SLOTS, {}, CPU)
    inputs = inputs_of(3, 5) | cache.inputs(slice(1, 4))
    logits = torch.zeros(3, VOCAB)
    tensors = {**inputs, **cache.outputs(slice(1, 4)), "logits": logits}
    passes = plan_passes(PORTS, tensors, [name for name in tensors if name != "prompt_table"], CPU)
    assert [one.profile for one in passes] == [PREFILL, PREFILL]
    first, second = ({b.name: b for b in one.bindings} for one in passes)
    assert first["token_ids"].shape == (2, 5) and second["token_ids"].shape == (1, 5)
    assert second["logits"].address == logits[2].data_ptr()
    assert second["self_k_0"].address == cache.tensors["self_k_0"][3].data_ptr()
    assert first["prompt_table"] == second["prompt_table"]
    assert [b.is_input for b in passes[0].bindings] == [True] * 4 + [False] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"starts": None}, "starts is missing"),
        ({"logits": None}, "logits is missing"),
        ({"starts": torch.zeros(2, dtype=torch.int32)}, "starts is torch.int32, not torch.int64"),
        ({"token_ids": torch.zeros(2, 9).long()}, r"token_ids is \(2, 9\), the plan takes \(1, 1\) to \(2, 8\)"),
        (
            {"prompt_table": torch.zeros(21, DIM).half()},
            r"prompt_table is \(21, 3\), the plan takes \(1, 3\) to \(20, 3\)",
        ),
        ({"token_ids": torch.zeros(3, 2).long().t()}, "token_ids is not contiguous"),
        ({"starts": torch.zeros(2, dtype=torch.int64, device="meta")}, "starts is on meta, not on cpu"),
        (
            {"self_k_0_out": torch.zeros(2, *CACHE).half()},
            "self_k_0_out is self_k_0 updated in place, but other memory",
        ),
    ],
)
def test_tensors_that_do_not_fit(change, reason):
    cache = SlotCache(IO, SLOTS, {}, CPU)
    tensors = inputs_of(2, 3) | cache.inputs(slice(0, 2)) | cache.outputs(slice(0, 2))
    tensors = {n: x for n, x in (tensors | {"logits": torch.zeros(2, VOCAB)} | change).items() if x is not None}
    with pytest.raises(EngineError, match=reason):
        plan_passes(PORTS, tensors, [name for name in tensors if name != "prompt_table"], CPU)


TOKEN, LOGITS = Binding("token_ids", 100, (2, 1), True), Binding("logits", 200, (2, VOCAB), False)


def test_only_what_changed_is_bound_again():
    context = FakeContext()
    plan = PlanContext(context, [])
    plan.enqueue([TOKEN, LOGITS], 7)
    context.calls.clear()
    plan.enqueue([TOKEN, dataclasses.replace(LOGITS, address=300)], 8)
    assert context.calls == [("address", "logits", 300), ("run", 8)]


def test_memory_of_another_size_is_never_written():
    context = FakeContext()
    plan = PlanContext(context, [])
    plan.enqueue([TOKEN, LOGITS], 7)
    context.calls.clear()
    more = dataclasses.replace(TOKEN, shape=(3, 1))  # the output is as it was: too small now
    for _ in range(2):  # the second time too
        with pytest.raises(EngineError, match=r"logits is \(3, 11\), memory is given for \(2, 11\)"):
            plan.enqueue([more, LOGITS], 7)
    assert ("run", 7) not in context.calls


@pytest.mark.parametrize("refused", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
def test_what_tensorrt_refuses(refused):
    context = FakeContext()
    setattr(context, refused, lambda *_: False)
    with pytest.raises(EngineError, match="TensorRT"):
        PlanContext(context, []).enqueue([TOKEN], 7)


def test_plans_and_torch_wait_for_each_other(monkeypatch):
    order = []

    class Stream:
        def __init__(self, name):
            self.cuda_stream = name

        def wait_stream(self, other):
            order.append(f"{self.cuda_stream} after {other.cuda_stream}")

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("plan"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("torch"))
    with Queue(CPU).turn() as handle:
        order.append(f"work on {handle}")
    assert order == ["plan after torch", "work on plan", "torch after plan"]


def test_ports_of_an_engine():
    trt = SimpleNamespace(
        TensorIOMode=SimpleNamespace(INPUT=0, OUTPUT=1),
        **{name: name for name in ("float32", "float16", "bfloat16", "int64", "int32", "bool")},
    )
    known = {"token_ids": ("int64", 0), "self_k_0": ("float16", 0), "self_k_0_out": ("float16", 1)}
    known["logits"] = ("float32", 1)
    shapes = {"token_ids": [(1, 1), (4, 1), (4, 1)], "self_k_0": [(1, 2), (4, 2), (4, 2)]}
    engine = SimpleNamespace(
        num_io_tensors=4,
        num_optimization_profiles=2,
        get_tensor_name=list(known).__getitem__,
        get_tensor_dtype=lambda name: known[name][0],
        get_tensor_mode=lambda name: known[name][1],
        get_tensor_profile_shape=lambda name, profile: shapes[name],
        get_aliased_input_tensor=lambda name: "self_k_0" if name == "self_k_0_out" else None,
    )
    ports = {port.name: port for port in ports_of(engine, trt)}
    assert ports["token_ids"] == PlanPort("token_ids", torch.int64, (((1, 1), (4, 1)),) * 2)
    assert ports["self_k_0_out"] == PlanPort("self_k_0_out", torch.float16, memory="self_k_0")
    assert ports["logits"] == PlanPort("logits", torch.float32)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("Error Code 1: Cuda Runtime (out of memory)", OutOfMemoryError),
        ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", EngineError),
    ],
)
def test_what_it_has_no_memory_for_is_told_from_other_failures(monkeypatch, said, kind):
    errors = ["an older error: out of memory"]
    context = PlanContext(FakeContext(), errors)
    monkeypatch.setattr(context._context, "execute_async_v3", lambda stream: bool(errors.append(said)))
    with pytest.raises(kind, match="could not queue the plan's work: Error Code 1") as caught:
        context.enqueue([], 7)
    assert is_out_of_memory(caught.value) == (kind is OutOfMemoryError)
    assert errors == [said]  # those of the last run are kept, no more
