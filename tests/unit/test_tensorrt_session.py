"""What is bound where, by a context that writes down what it is told: plans themselves run only on a GPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from vlm.errors import EngineError
from vlm.runtime.plan_bindings import Binding, Port, allocate_caches, bindings, slots_of
from vlm.runtime.tensorrt_session import PlanContext, PlanDecoder, ports_of

CPU = torch.device("cpu")
SLOTS, HEADS, ROWS, DIM, VOCAB = 4, 2, 8, 3, 11


def ranged(*sizes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple:
    """(least, most) of the decode profile and of the prefill profile"""
    return sizes


def cache_port(name: str) -> Port:
    row = (HEADS, ROWS, DIM)
    return Port(name, torch.float16, ranged(((1, *row), (SLOTS, *row)), ((1, *row), (2, *row))))


PORTS = [
    Port("self_k_0_out", torch.float16, memory="self_k_0"),
    Port("logits", torch.float32),
    Port("token_ids", torch.int64, ranged(((1, 1), (SLOTS, 1)), ((1, 1), (2, ROWS)))),
    Port("starts", torch.int64, ranged(((1,), (SLOTS,)), ((1,), (2,)))),
    cache_port("self_k_0"),
]


class FakeContext:
    """Records calls; the shapes of outputs follow from what `shapes` says."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]):
        self.calls, self.shapes = [], shapes

    def set_input_shape(self, name, shape):
        self.calls.append(("shape", name, shape))
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name, address):
        self.calls.append(("address", name, address))
        return True

    def get_tensor_shape(self, name):
        return self.shapes[name]

    def execute_async_v3(self, stream):
        self.calls.append(("run", stream))
        return True


def step(batch: int, span: int) -> dict[str, torch.Tensor]:
    return {
        "token_ids": torch.zeros(batch, span, dtype=torch.int64),
        "starts": torch.zeros(batch, dtype=torch.int64),
        "logits": torch.zeros(batch, VOCAB),
    }


def test_an_update_takes_the_memory_of_its_input():
    caches = allocate_caches(PORTS, CPU)
    wanted = {b.name: b for b in bindings(PORTS, step(2, 5) | slots_of(caches, 1, 2), 1, CPU)}
    cache = caches["self_k_0"]
    assert cache.shape == (SLOTS, HEADS, ROWS, DIM) and set(caches) == {"self_k_0"}
    assert wanted["self_k_0"].address == wanted["self_k_0_out"].address == cache[1].data_ptr()
    assert wanted["self_k_0"].shape == (2, HEADS, ROWS, DIM)
    assert [b.is_input for b in bindings(PORTS, step(1, 1) | slots_of(caches, 0, 1), 0, CPU)] == [True] * 3 + [
        False
    ] * 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"starts": None}, "starts is missing"),
        ({"logits": None}, "logits is missing"),
        ({"starts": torch.zeros(2, dtype=torch.int32)}, "starts is torch.int32, not torch.int64"),
        (
            {"token_ids": torch.zeros(2, 9, dtype=torch.int64)},
            r"token_ids is \(2, 9\), the plan takes \(1, 1\) to \(2, 8\)",
        ),
        ({"token_ids": torch.zeros(3, 2, dtype=torch.int64).t()}, "token_ids is not contiguous"),
        ({"starts": torch.zeros(2, dtype=torch.int64, device="meta")}, "starts is on meta, not on cpu"),
    ],
)
def test_tensors_that_do_not_fit(change, reason):
    tensors = step(2, 3) | slots_of(allocate_caches(PORTS, CPU), 0, 2) | change
    with pytest.raises(EngineError, match=reason):
        bindings(PORTS, {name: tensor for name, tensor in tensors.items() if tensor is not None}, 1, CPU)


def test_unchanged_bindings_are_set_once():
    token, out = Binding("token_ids", 100, (2, 1), True), Binding("logits", 200, (2, VOCAB), False)
    context = FakeContext({"logits": (2, VOCAB)})
    plan = PlanContext(context)
    plan.enqueue([token, out], 7)
    assert context.calls == [
        ("shape", "token_ids", (2, 1)),
        ("address", "token_ids", 100),
        ("address", "logits", 200),
        ("run", 7),
    ]
    context.calls.clear()
    plan.enqueue([token, dataclasses.replace(out, address=300)], 7)
    assert context.calls == [("address", "logits", 300), ("run", 7)]


def test_memory_of_another_size_is_never_written():
    context = FakeContext({"logits": (2, VOCAB)})
    plan = PlanContext(context)
    for _ in range(2):  # the second time too
        with pytest.raises(EngineError, match=r"logits is \(2, 11\), memory is given for \(1, 11\)"):
            plan.enqueue([Binding("logits", 200, (1, VOCAB), False)], 7)
    assert not any(call[0] == "run" for call in context.calls)


def test_outputs_are_checked_when_an_input_grows():
    context = FakeContext({})
    context.get_tensor_shape = lambda name: context.shapes["token_ids"]  # an output as large as the input
    plan, out = PlanContext(context), Binding("logits", 200, (2, 1), False)
    plan.enqueue([Binding("token_ids", 100, (2, 1), True), out], 7)
    with pytest.raises(EngineError, match=r"logits is \(3, 1\), memory is given for \(2, 1\)"):
        plan.enqueue([Binding("token_ids", 100, (3, 1), True), out], 7)


@pytest.mark.parametrize("refused", ["set_input_shape", "set_tensor_address", "execute_async_v3"])
def test_what_tensorrt_refuses(refused):
    context = FakeContext({})
    setattr(context, refused, lambda *_: False)
    with pytest.raises(EngineError, match="TensorRT"):
        PlanContext(context).enqueue([Binding("token_ids", 100, (2, 1), True)], 7)


def test_a_prefill_goes_into_its_slot():
    runs = []
    session = SimpleNamespace(ports=PORTS, device=CPU, run=lambda tensors, profile: runs.append((tensors, profile)))
    decoder = PlanDecoder(session)
    inputs = step(1, 5)
    logits = inputs.pop("logits")
    decoder.run(3, inputs, logits)
    tensors, profile = runs.pop()
    assert profile == 1 and tensors["logits"] is logits
    assert tensors["self_k_0"].data_ptr() == decoder.caches["self_k_0"][3].data_ptr()
    assert tensors["self_k_0"].is_contiguous()
    decoder.run(0, {"token_ids": torch.zeros(4, 1), "starts": torch.zeros(4)}, torch.zeros(4, VOCAB))
    assert runs[0][1] == 0 and len(runs[0][0]["self_k_0"]) == decoder.slots == SLOTS


def test_ports_of_an_engine():
    trt = SimpleNamespace(
        TensorIOMode=SimpleNamespace(INPUT=0, OUTPUT=1),
        **{name: name for name in ("float32", "float16", "bfloat16", "int64", "int32", "bool")},
    )
    known = {
        "token_ids": ("int64", 0),
        "self_k_0": ("float16", 0),
        "self_k_0_out": ("float16", 1),
        "logits": ("float32", 1),
    }
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
    assert ports["token_ids"] == Port("token_ids", torch.int64, (((1, 1), (4, 1)),) * 2)
    assert ports["self_k_0_out"] == Port("self_k_0_out", torch.float16, memory="self_k_0")
    assert ports["logits"] == Port("logits", torch.float32)
