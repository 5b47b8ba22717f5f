"""The algorithms of vlm.quantize on weights and inputs whose answer is known."""

from __future__ import annotations

import pytest
import torch

from vlm.errors import ConfigError, InputError
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear, keep_weights
from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.inputs import Inputs
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.layers.quant.quantization import Quantization
from vlm.layers.quant.w8a8 import W8A8
from vlm.quantize.algorithms.awq import Awq
from vlm.quantize.algorithms.base import output_error, product
from vlm.quantize.algorithms.gptq import Gptq, inverse_factor
from vlm.quantize.algorithms.rtn import RoundToNearest
from vlm.quantize.algorithms.smoothquant import SmoothQuant
from vlm.quantize.statistics import Needs, Recorder, Statistics

OUT, IN, GROUP = 24, 64, 16


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def statistics(rows: torch.Tensor) -> Statistics:
    magnitudes = rows.abs()
    return Statistics(magnitudes.mean(0), magnitudes.amax(0), rows, rows.t() @ rows / len(rows))


def correlated(count: int = 400) -> torch.Tensor:
    """Rows of 64 values that eight directions explain for the most part."""
    return draw(count, 8, seed=1) @ draw(8, IN, seed=2) + 0.1 * draw(count, IN, seed=3)


def with_outliers(count: int = 400) -> torch.Tensor:
    """Rows of which three channels are thirty times as large as the others."""
    rows = draw(count, IN, seed=4)
    rows[:, [3, 17, 40]] *= 30
    return rows


def scaled(method, **inputs: bool):
    return method.with_inputs(Inputs(**inputs))


# --- statistics ---
def test_a_recorder_sees_all_rows_and_samples_each_as_likely():
    linear = Linear(8, 4, context=ModelContext())
    batches = [draw(n, 8, seed=n) for n in (5, 40, 0, 55)]
    everything = torch.cat(batches)
    with Recorder({"x": linear}, Needs(rows=30, hessian=True), seed=3) as recorder:
        for rows in batches:
            linear(rows)
    linear(draw(9, 8))  # not recorded
    found = recorder.take("x")
    assert found is not None and found.hessian is not None
    torch.testing.assert_close(found.mean_abs, everything.abs().mean(0))
    torch.testing.assert_close(found.max_abs, everything.abs().amax(0))
    torch.testing.assert_close(found.hessian, everything.t() @ everything / 100)
    places = [int((everything == row).all(1).nonzero()) for row in found.rows]
    assert len(set(places)) == 30 and min(places) < 20 and max(places) > 80


def test_a_layer_that_no_row_reaches_has_no_statistics():
    with Recorder({"x": Linear(8, 4, context=ModelContext())}, Needs()) as recorder:
        pass
    assert recorder.take("x") is None


# --- GPTQ ---
def brute_force(weight: torch.Tensor, hessian: torch.Tensor, method: Int4) -> torch.Tensor:
    """The weight after each column is rounded and the others are solved for anew, by least squares."""
    weight, damped = weight.double(), hessian.double() + 0.01 * hessian.diagonal().mean() * torch.eye(IN)
    rounded = torch.zeros_like(weight)
    current = weight.clone()
    for i in range(IN):
        if i % GROUP == 0:
            scale, zero = method.grid(current[:, None, i : i + GROUP])
        rounded[:, i] = ((method.levels(current[:, i : i + 1], scale, zero) - zero) * scale)[:, 0]
        rest = slice(i + 1, IN)
        # minimizes (w - q) H (w - q)ᵀ over the columns that are not rounded
        error = weight[:, : i + 1] - rounded[:, : i + 1]
        current[:, rest] = weight[:, rest] + error @ damped[: i + 1, rest] @ torch.linalg.inv(damped[rest, rest])
    return rounded


@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_is_the_rounding_that_solves_for_the_rest_after_each_column(symmetric):
    method, weight, found = Int4(GROUP, symmetric), draw(OUT, IN), statistics(correlated())
    parameters = Gptq(method).parameters(weight, found)
    torch.testing.assert_close(
        method.dequantize(parameters).double(), brute_force(weight, found.hessian, method), atol=2e-3, rtol=1e-3
    )


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_gptq_is_better_than_rounding_on_correlated_inputs(symmetric, act_order):
    weight, rows = draw(OUT, IN), correlated()
    method = scaled(Int4(GROUP, symmetric), input_order=act_order)
    before = weight.clone()
    parameters = Gptq(method, act_order=act_order).parameters(weight, statistics(rows))
    assert torch.equal(weight, before)
    rounded = Int4(GROUP, symmetric)
    least = output_error(rounded, rounded.quantize(weight), weight, rows)
    assert output_error(method, parameters, weight, rows) < 0.5 * least
    if act_order:
        assert sorted(parameters["input_order"].tolist()) == list(range(IN))


def test_gptq_takes_inputs_that_are_always_zero_and_few_rows():
    rows = correlated(5)
    rows[:, 7] = 0
    weight, method = draw(OUT, IN), Int4(GROUP)
    kept = method.dequantize(Gptq(method).parameters(weight, statistics(rows)))
    assert torch.isfinite(kept).all() and (kept[:, 7] - weight[:, 7]).abs().max() < 0.5
    assert torch.isfinite(inverse_factor(torch.zeros(IN, IN))).all()


# --- AWQ ---
@pytest.mark.parametrize("symmetric", [True, False])
def test_awq_is_better_than_rounding_where_channels_are_outliers(symmetric):
    weight, rows = draw(OUT, IN), with_outliers()
    method = scaled(Int4(GROUP, symmetric), pre_quant_scale=True)
    parameters = Awq(RoundToNearest(method), Int4(GROUP, symmetric)).parameters(weight, statistics(rows))
    plain = Int4(GROUP, symmetric)
    least = output_error(plain, plain.quantize(weight), weight, rows)
    assert output_error(method, parameters, weight, rows) < 0.5 * least
    assert parameters["pre_quant_scale"].argmin() in (3, 17, 40)


def test_awq_clips_where_that_is_better_and_is_never_worse_than_rounding():
    weight, rows = draw(OUT, IN), draw(300, IN, seed=9)
    weight[:, ::GROUP] *= 4  # one large weight a group, which its inputs hardly need
    rows[:, ::GROUP] *= 0.01
    found, method = statistics(rows), scaled(Int4(GROUP), pre_quant_scale=True)
    search = {clip: Awq(RoundToNearest(method), Int4(GROUP), clip=clip) for clip in (False, True)}
    errors = {c: output_error(method, each.parameters(weight, found), weight, rows) for c, each in search.items()}
    plain = output_error(Int4(GROUP), Int4(GROUP).quantize(weight), weight, rows)
    assert errors[True] <= errors[False] <= plain


# --- SmoothQuant ---
@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
def test_smoothquant_changes_nothing_but_the_rounding(alpha):
    weight, rows = draw(OUT, IN), with_outliers()
    method = scaled(W8A8(), pre_quant_scale=True)
    parameters = SmoothQuant(RoundToNearest(method), alpha=alpha).parameters(weight, statistics(rows))
    inverse = parameters["pre_quant_scale"]
    expected = rows.abs().amax(0) ** alpha / weight.abs().amax(0) ** (1 - alpha)
    torch.testing.assert_close(1 / inverse, expected)
    exact = (rows * inverse).double() @ (weight / inverse).double().t()
    torch.testing.assert_close(exact, rows.double() @ weight.double().t(), atol=1e-4, rtol=1e-4)
    assert (product(method, parameters, rows) - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("per_tensor", [False, True])
def test_smoothquant_is_better_than_rounding_where_channels_are_outliers(static, per_tensor):
    weight, rows = draw(OUT, IN), with_outliers()
    found, largest = statistics(rows), 127.0 if static else None
    plain = RoundToNearest(scaled(W8A8(), input_scale=static), per_tensor=per_tensor, largest_input=largest)
    method = scaled(W8A8(), pre_quant_scale=True, input_scale=static)
    smooth = SmoothQuant(RoundToNearest(method, per_tensor=per_tensor, largest_input=largest))
    least = output_error(plain.method, plain.parameters(weight, found), weight, rows)
    assert output_error(method, smooth.parameters(weight, found), weight, rows) < 0.5 * least


def test_smoothquant_leaves_what_needs_no_smoothing():
    weight, rows = draw(OUT, IN), draw(200, IN, seed=5)
    found, method = statistics(rows), scaled(W8A8(), pre_quant_scale=True)
    plain = output_error(W8A8(), W8A8().quantize(weight), weight, rows)
    parameters = SmoothQuant(RoundToNearest(method)).parameters(weight, found)
    assert output_error(method, parameters, weight, rows) <= plain


# --- round to nearest ---
@pytest.mark.parametrize("method", [Int8(), Fp8(), W8A8()])
def test_one_scale_a_tensor_is_repeated_for_the_channels(method):
    weight = draw(OUT, IN) * torch.linspace(0.1, 2, OUT)[:, None]
    parameters = RoundToNearest(method, per_tensor=True).parameters(weight, None)
    assert parameters["weight_scale"].shape == (OUT, 1) and len(set(parameters["weight_scale"].flatten().tolist())) == 1
    error = (method.dequantize(parameters) - weight).abs()
    assert (error <= weight.abs() / 16 + weight.abs().max() / 250).all()


@pytest.mark.parametrize(("method", "largest"), [(W8A8(), 127.0), (Fp8(), 448.0)])
def test_a_static_scale_holds_the_largest_input(method, largest):
    weight, rows = draw(OUT, IN), draw(100, IN, seed=6)
    method = scaled(method, input_scale=True)
    parameters = RoundToNearest(method, largest_input=largest).parameters(weight, statistics(rows))
    assert float(parameters["input_scale"]) * largest == pytest.approx(float(rows.abs().max()))
    exact = rows @ weight.t()
    assert (product(method, parameters, rows) - exact).norm() < 0.05 * exact.norm()


def test_a_hessian_of_inputs_that_overflowed_is_refused():
    with pytest.raises(InputError, match="is not finite; calibrate with --dtype float32"):
        inverse_factor(torch.full((3, 3), torch.inf))


@pytest.mark.parametrize(("method", "says"), [
    (Int4(48), "decoder.a: groups of 48 weights do not divide 64 inputs; give group_size 32, or name such layers"),
    (Int4(2), "decoder.b: weights of 4 bits are kept of layers whose inputs are a multiple of 4, not 6; name such"),
])  # fmt: skip
def test_layers_that_groups_of_4_bits_do_not_suit_are_named(method, says):
    layers = {name: Linear(size, 8, context=ModelContext()) for name, size in (("a", 64), ("b", 6))}
    with pytest.raises(ConfigError, match=f"^{says}"):
        keep_weights(torch.nn.ModuleDict(layers), Quantization(method, role="decoder"))
