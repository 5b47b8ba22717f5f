"""The product of one row that is written in CUDA C++: it compiles without a GPU, what it computes tests/gpu shows. And
norms that wait for such a product."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from triton import knobs

import vlm
from vlm.ops import add_rms_norm
from vlm.ops.activation import Activation
from vlm.ops.kernels import add_lora, gemv, nvrtc
from vlm.ops.kernels.norms_ahead import LAYER_NORM, NO_NORM, RMS_NORM, Norm, NormsAhead
from vlm.ops.products.norms_ahead import norms_ahead

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
SHAPE = gemv.Shape(gemv.INT8, inputs=1024, outputs=4096, groups=1, gated=False, zero=False, processors=132)
PLAIN = (NO_NORM, 0, -1)


def compiled(shape: gemv.Shape, architecture: str = "sm_90", *, x: int = 0, act: int = 0, norm=PLAIN) -> bytes:
    values = gemv.constants(shape, x, x, act, bias=True, norm=norm)
    return nvrtc.compiled("gemv.cu", tuple(values.items()), architecture)


def of_kind(kind: int, **changes) -> gemv.Shape:
    return dataclasses.replace(SHAPE, kind=kind, groups=8 if kind == gemv.INT4 else 1, **changes)


@needs_nvrtc
@pytest.mark.parametrize("kind", sorted(set(gemv.KINDS.values())))
def test_it_compiles_for_every_type_and_ending(kind):
    for x, zero in itertools.product((0, 1), (False, True) if kind == gemv.INT4 else (False,)):
        assert compiled(of_kind(kind, gated=True, zero=zero), x=x, act=gemv.ACTIVATIONS["silu"])[:4] == b"\x7fELF"
    for ending in gemv.ACTIVATIONS.values():
        assert compiled(of_kind(kind), act=ending)
    assert compiled(of_kind(kind), "sm_120")


@needs_nvrtc
@pytest.mark.parametrize("norm", [(RMS_NORM, 0, -1), (RMS_NORM, 2, 0), (LAYER_NORM, 0, 2)])
def test_it_compiles_with_every_norm_ahead(norm):
    assert compiled(SHAPE, norm=norm)
    assert compiled(
        of_kind(gemv.INT4, inputs=4096), x=1, norm=tuple(1 if i and t == 0 else t for i, t in enumerate(norm))
    )


@needs_nvrtc
def test_what_does_not_compile_is_named():
    values = gemv.constants(SHAPE, 0, 0, 0, bias=False, norm=PLAIN) | {"KIND": "INT3("}
    with pytest.raises(nvrtc.CompileError, match=r"gemv\.cu .*-DKIND=INT3\("):
        nvrtc.compiled("gemv.cu", tuple(values.items()), "sm_90")


def test_the_shape_of_a_program_s_memory():
    shape = gemv.Shape(gemv.INT4, 11008, 4096, groups=86, gated=False, zero=True, processors=132)
    assert (shape.most_tiles, shape.warps, shape.pieces, shape.stages, shape.depth) == (2, 16, 1, 7, 3)
    ring, scales = 7 * (16 * 1024 + 16), 2 * 16 * 86 * 5
    assert shape.shared == ring + scales + 4 * 11008 + 4 * 2 * 16 * 16 + 8 * 16 + 4 * 88
    small = gemv.Shape(gemv.INT8, 512, 64, groups=1, gated=False, zero=False, processors=132)
    assert (small.warps, small.pieces, small.programs) == (8, 1, 4)  # eight pieces of a row, four tiles
    assert (small.stages, small.depth) == (12, 4)  # all of its weight has room


def test_more_rows_float32_and_the_cpu_are_for_others():
    weight, scale = torch.zeros(64, 256, dtype=torch.int8), torch.zeros(64, 1)
    assert not gemv.fits(torch.zeros(2, 256, dtype=torch.float16), weight, scale, None, None)
    assert not gemv.fits(torch.zeros(1, 256), weight, scale, None, Activation("silu", gated=True))
    assert not gemv.fits(torch.zeros(1, 256, dtype=torch.float16), weight, scale, None, None)


@pytest.mark.parametrize(
    "change",
    [{"outputs": 70, "gated": True}, {"kind": gemv.DENSE, "outputs": 2**17}, {"inputs": 1000}, {"inputs": 64},
     {"kind": gemv.INT4, "outputs": 70, "groups": 8}, {"kind": gemv.INT4, "groups": 16},
     {"kind": gemv.INT4, "inputs": 1152, "groups": 9, "zero": True}, {"inputs": 2**16}, {"outputs": 2**21}],
)  # fmt: skip
def test_sizes_that_boxes_cannot_be_copied_of_are_for_others(change):
    assert SHAPE.fits and dataclasses.replace(SHAPE, outputs=50257).fits
    assert dataclasses.replace(SHAPE, kind=gemv.DENSE, outputs=2**17, gated=True).fits  # no head has gates
    assert not dataclasses.replace(SHAPE, **change).fits


@pytest.fixture
def waiting(monkeypatch):
    """Lets norms wait on the CPU, too, and counts those that were computed by themselves."""
    launched = []

    def launch(norm: Norm) -> None:
        launched.append(norm)
        stream, row = add_rms_norm.reference(norm.x, norm.delta, norm.gain, norm.eps)
        norm.stream.copy_(stream)
        norm.row.copy_(row)

    monkeypatch.setattr(Norm, "launch", launch)
    return launched


def later(x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float):
    """Does what add_rms_norm does, later where it may."""
    ahead = NormsAhead.current()
    if ahead is None:
        return add_rms_norm.reference(x, delta, weight, eps)
    nothing = torch.empty_like(x)
    stream, row = x if delta is None else nothing, torch.empty(x.shape, dtype=weight.dtype)
    ahead.put(Norm(x, delta, weight, None, eps, stream, row, Norm.launch))
    return stream, row


def test_a_norm_is_there_for_whoever_reads_it(waiting):
    x, delta, gain = torch.randn(3, 1, 64).unbind()
    stream, row = add_rms_norm.reference(x, delta, gain, 1e-5)
    readers = {
        "an operation": lambda s, r: r + 1,
        "a view": lambda s, r: r.view(8, 8)[:, 1].clone(),
        "the stream": lambda s, r: s * 2,
        "another norm": lambda s, r: later(s, r, gain, 1e-5)[0] * 1,
        "a product": lambda s, r: torch.nn.functional.linear(r, torch.eye(64)),
    }
    for what, reader in readers.items():
        want = reader(stream, row)
        with NormsAhead():
            found = reader(*later(x, delta, gain, 1e-5))
        torch.testing.assert_close(found, want, msg=what)
    assert len(waiting) == 6


def test_who_takes_its_row_computes_it(waiting):
    x, delta, gain = torch.randn(3, 1, 64).unbind()
    with NormsAhead() as ahead:
        _, row = later(x, delta, gain, 1e-5)
        norm = ahead.taken(row.view(1, 64))
        assert norm is not None and norm.row is row and norm.delta is delta
        _, row = later(x, delta, gain, 1e-5)
        assert ahead.taken(row[:, :32]) is None and len(waiting) == 1  # a product of a part of it
        waiting.clear()
        assert ahead.taken(row) is None and not waiting
        _, row = later(x, delta, gain, 1e-5)
        assert ahead.taken(x) is None and len(waiting) == 1  # its stream may be what is read
        later(x, delta, gain, 1e-5)
        assert len(waiting) == 1
    assert len(waiting) == 2 and NormsAhead.current() is None


def before_any_kernel() -> None:
    knobs.runtime.launch_enter_hook({})


def test_an_error_leaves_none_behind_and_threads_have_their_own(waiting):
    x, gain = torch.randn(2, 1, 64).unbind()
    with pytest.raises(ZeroDivisionError), NormsAhead():
        later(x, None, gain, 1e-5)
        raise ZeroDivisionError
    seen = []
    with NormsAhead():
        later(x, None, gain, 1e-5)
        thread = threading.Thread(target=lambda: (seen.append(NormsAhead.current()), before_any_kernel()))
        thread.start()
        thread.join()
        assert seen == [None] and not waiting
        before_any_kernel()
        assert len(waiting) == 1


def test_a_branch_of_a_graph_begins_behind_what_waits(waiting, monkeypatch):
    """And not with it: whoever reads the norm beside the branch would not wait for it."""
    events = []
    stream = SimpleNamespace(wait_stream=lambda other: events.append(len(waiting)))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(add_lora, "_side_stream", lambda index: stream)
    x, gain = torch.randn(2, 1, 64).unbind()
    with NormsAhead():
        later(x, None, gain, 1e-5)
        with add_lora._beside(torch.device("cuda")) as join:
            assert events == [1]
        join()
    assert events == [1, 1] and len(waiting) == 1


def test_a_network_s_tokens_do_not_depend_on_when_norms_are_computed(waiting, monkeypatch):
    model = vlm.load("mini-t5", device="cpu")
    text = "translate English to German: The house is small."
    want = model.generate(text, max_new_tokens=12).text
    monkeypatch.setattr("vlm.layers.norm.add_rms_norm", later)
    monkeypatch.setattr("vlm.executor.paged.runner.norms_ahead", lambda device, **options: NormsAhead())
    assert model.generate(text, max_new_tokens=12).text == want != "" and len(waiting) > 12


def test_on_the_cpu_there_is_nothing_to_wait_for():
    with norms_ahead(torch.device("cpu")) as nothing:
        assert nothing is None and NormsAhead.current() is None
