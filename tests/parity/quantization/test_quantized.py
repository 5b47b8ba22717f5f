"""Every quantization of weights for every family: the tokens are those of the dense model whose weights are the
dequantized ones, in float32; and not far from the dense model's own."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, method_options, rebuilt
from tests.kits.models.families import MODELS, inputs_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.layers.linear import Linear
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.methods import METHODS

pytestmark = pytest.mark.slow  # every family by every method
WEIGHT_ONLY = ("int8", "int4", "int4-asymmetric")


@pytest.fixture(scope="module", params=MODELS)
def engine(request, tmp_path_factory):
    return engine_dir(MODELS[request.param](), tmp_path_factory.mktemp("dense"), max_batch_size=4)


def logits(pipe: Pipeline) -> list[torch.Tensor]:
    """Returns the logits of eight tokens of each input."""
    outputs = pipe.generate(inputs_of(pipe), max_new_tokens=8, ignore_eos=True, return_generation_logits=True)
    return [torch.cat([out.generation_logits.flatten(), torch.tensor(out.token_ids)]) for out in outputs]


def networks(pipe: Pipeline) -> dict[str, torch.nn.Module]:
    encoders = pipe.llm.encoders
    found = {"visual": encoders.visual, "encoder": encoders.encoder, "decoder": pipe.llm.executor.runner.decoder}
    return {role: network for role, network in found.items() if network is not None}


def quantized_linears(network: torch.nn.Module) -> dict[str, Linear]:
    linears = {path: module for path, module in network.named_modules() if isinstance(module, Linear)}
    return {path: linear for path, linear in linears.items() if not isinstance(linear.method, Dense)}


@pytest.mark.parametrize("method", METHODS)
def test_a_quantized_model_computes_what_its_method_says(engine, method):
    dense = Pipeline(engine, RuntimeConfig(device="cpu"))
    pipe = Pipeline(rebuilt(engine, **method_options(method, 4), max_batch_size=4), RuntimeConfig(device="cpu"))
    found = logits(pipe)
    assert not quantized_linears(networks(pipe).get("visual", torch.nn.Module()))
    plain = networks(dense)
    for role, network in networks(pipe).items():
        linears = quantized_linears(network)
        assert bool(linears) == (role != "visual") and "head" not in linears
        for path, linear in linears.items():
            names = linear.method.layout(linear.in_features, linear.part_sizes)
            weight = linear.method.dequantize({name: getattr(linear, name) for name in names})
            target = plain[role].get_submodule(path)
            assert 0 < (weight - target.weight).abs().max() < 0.35 * target.weight.abs().max()
            target.weight.copy_(weight)
    if method in WEIGHT_ONLY:
        for one, other in zip(found, logits(dense), strict=True):
            torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)
    assert all(torch.isfinite(each).all() for each in found)


def test_what_is_ignored_stays_as_it_is(tmp_path):
    engine = engine_dir(tiny.blip2("t5", seed=7, spread=0.4), tmp_path)

    def paths(**options):
        pipe = Pipeline(rebuilt(engine, quantization="int8", **options), RuntimeConfig(device="cpu"))
        return {f"{role}.{path}" for role, network in networks(pipe).items() for path in quantized_linears(network)}

    usual, everything = paths(), paths(ignore=())
    assert {name.split(".")[0] for name in everything - usual} <= {"visual", "decoder"}
    assert any(name.startswith("visual.") for name in everything) and not any(n.startswith("visual.") for n in usual)
    rest = paths(ignore=("visual", "head", "ffn.down", "encoder.blocks.0.*"))
    gone = {name for name in usual if name.endswith("ffn.down") or name.startswith("encoder.blocks.0.")}
    assert gone and usual - rest == gone
