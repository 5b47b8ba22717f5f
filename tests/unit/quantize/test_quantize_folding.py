"""Where scales of layers' inputs are folded: what networks declare, and what a configuration makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kits.models.engines import grouped_checkpoint
from tests.unit.layers.test_networks import NETWORKS, published, skeletons
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.layers.context import ModelContext
from vlm.layers.feed_forward import FeedForward
from vlm.layers.linear import Linear
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.producer import producers_of
from vlm.ops.activation import ACTIVATIONS
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.folding import Fold, folds_of
from vlm.quantize.plan import plan_of
from vlm.registry.catalogs import model_spec


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Checkpoint:
    return grouped_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("network", NETWORKS)
def test_what_a_network_declares_is_as_wide_as_the_layers_inputs_and_is_read_once(network):
    for whole in skeletons(network).values():
        found = producers_of(whole)
        assert found and len(set(found.values())) == len(found)
        for layer, producer in found.items():
            consumer, module = whole.get_submodule(layer), whole.get_submodule(producer.path)
            width = module.part_sizes[producer.part] if isinstance(module, Linear) else len(module.weight)
            assert isinstance(consumer, Linear) and width == consumer.in_features, layer


def test_norms_that_the_residual_stream_reads_take_no_scale():
    for network in ("opt", "bart", "bart-encoder"):
        config = next(iter(published(network).values()))
        pre, post = (
            producers_of(model_spec(network).skeleton(replace(config, pre_norm=first))) for first in (True, False)
        )
        norms = {layer for layer, producer in pre.items() if "norm" in producer.path}
        assert norms and pre.keys() - norms == post.keys()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_positive_scales_pass_the_activations_that_are_declared(activation):
    x, scale = torch.linspace(-3, 3, 40), torch.rand(40, generator=torch.Generator().manual_seed(0)) + 0.5
    act = ACTIVATIONS[activation]
    passes = torch.allclose(act(x * scale), act(x) * scale, atol=1e-6)
    declared = FeedForward(8, 8, activation, context=ModelContext()).producers
    assert bool(declared) == passes
    assert FeedForward(8, 8, activation, gated=True, context=ModelContext()).producers


def test_a_fold_multiplies_its_rows_in_their_own_type():
    values, scale = torch.arange(12.0).view(4, 3).to(torch.bfloat16), torch.tensor([2.0, 0.5])
    found = Fold(("up.weight",), slice(2, 4)).multiplied(values, scale)
    assert found.dtype == torch.bfloat16 and torch.equal(found[:2], values[:2])
    assert torch.equal(found[2:].float(), values[2:].float() * scale[:, None])
    assert torch.equal(values, torch.arange(12.0).view(4, 3).to(torch.bfloat16))


def test_scales_go_into_rows_of_a_quantized_or_a_dense_product(checkpoint):
    for ignore, tensor in (((), "blocks.0.ffn.up.weight_scale"), (("ffn.up",), "blocks.0.ffn.up.weight")):
        folds = folds_of(checkpoint, quantization_of("int8", {"ignore": ignore}))
        fold = folds["decoder.blocks.0.ffn.down"]
        rows = checkpoint.weights("decoder")["blocks.0.ffn.up.weight"].shape[0]
        assert fold == Fold((tensor,), slice(rows // 2, rows))
    assert folds["decoder.blocks.0.ffn.up"] == Fold(("blocks.0.ffn_norm.weight",), slice(None))
    assert "decoder.blocks.0.attention.out" not in folds  # of two heads of values and four of queries


@pytest.mark.parametrize(
    ("scales", "calibrated", "written"),
    [
        (None, {"qkv", "out", "up", "down"}, {"out"}),
        ("folded", {"qkv", "up", "down"}, set()),
        ("separate", {"qkv", "out", "up", "down"}, {"qkv", "out", "up", "down"}),
    ],
)
def test_scales_stay_with_layers_where_they_cannot_be_folded_or_are_not_to_be(checkpoint, scales, calibrated, written):
    plan = plan_of(checkpoint, QuantizeConfig("smoothquant", scales=scales))
    for layers, names in ((plan.layers, calibrated), (plan.written, written)):
        scaled = {layer.path.rpartition(".")[2] for layer in layers if "pre_quant_scale" in layer.kept.specs}
        assert scaled == names
    assert bool(plan.options.get("pre_quant_scale")) == bool(written)
