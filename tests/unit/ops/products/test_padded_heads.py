"""Heads over vocabularies that are no whole vectors: what lies behind their weights is multiplied with, and never seen.

On a CPU nothing is padded but here, and with NaN, which would show in all that sees it.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.rank_cases import CPU, all_ways, check_equal
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.backends.torch import TorchBackend
from vlm.layers import heads
from vlm.layers.adapters.lora import LoraWeights
from vlm.ops.layouts.lora_matrices import LoraMatrices
from vlm.ops.layouts.padded_rows import padded, with_padding
from vlm.ops.products.add_lora import add_lora
from vlm.ops.products.linear import linear

MODELS = {
    "gpt2": lambda: tiny.gpt2(vocab_size=61),
    "t5": lambda: tiny.t5(seed=1, vocab_size=61),
    "t5: own head": lambda: tiny.t5(tied=False, vocab_size=61),
    "bart: bias of the logits": lambda: tiny.bart(seed=2, logits_bias=True, vocab_size=61),
}


def poisoned(values: torch.Tensor) -> torch.Tensor:
    """Pads with NaN."""
    rows = padded(values)
    with_padding(rows)[len(rows) :] = torch.nan
    return rows


@pytest.fixture
def pads(monkeypatch):
    """Pads on a CPU what is padded on a GPU."""
    monkeypatch.setattr(heads, "_is_faster_padded", lambda values: len(values) % heads.VECTOR != 0)
    monkeypatch.setattr(heads, "padded", poisoned)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Gives a model's engine and what it puts out without padding, made once."""

    @functools.cache
    def made(name: str):
        engine = engine_dir(MODELS[name](), tmp_path_factory.mktemp("odd"), max_batch_size=8)
        return engine, all_ways(Pipeline(engine, CPU))

    return made


def test_padding_is_memory_behind_the_rows():
    values = torch.randn(13, 4)
    rows = padded(values)
    assert torch.equal(rows, values) and rows.is_contiguous()
    whole = with_padding(nn.Parameter(rows, requires_grad=False))
    assert whole.shape == (16, 4) and whole.data_ptr() == rows.data_ptr() and not whole[13:].any()
    assert with_padding(padded(torch.ones(5))).tolist() == [1.0] * 5 + [0.0] * 3
    last = torch.arange(13, dtype=torch.float16)[:, None].expand(13, 4)
    assert torch.equal(with_padding(padded(last)[8:])[:5], last[8:])  # a rank's part that ends where the whole does


def test_what_was_not_padded_is_taken_as_it_is():
    for values in (torch.randn(13, 4), torch.randn(16, 4), torch.randn(26, 4)[:13], padded(torch.randn(13, 4))[:5]):
        assert with_padding(values) is values


@pytest.mark.parametrize("out_fp32", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_product_is_a_view_of_wider_rows(dtype, out_fp32):
    x, weight, bias = (torch.randn(*size).to(dtype) for size in ((3, 8), (13, 8), (13,)))
    for each in (None, bias):
        found = linear(x, poisoned(weight), None if each is None else poisoned(each), out_fp32=out_fp32)
        assert found.shape == (3, 13) and found.stride() == (16, 1)
        torch.testing.assert_close(found, linear(x, weight, each, out_fp32=out_fp32))
    torch.testing.assert_close(linear(x, poisoned(weight), bias), linear(x, weight, bias))  # a bias without


def test_adapters_add_to_the_view():
    x, weight = torch.randn(3, 8), torch.randn(13, 8)
    own = LoraWeights(torch.randn(2, 8), torch.randn(13, 2))
    matrices = LoraMatrices(own.a[None, None], own.b.t()[None].contiguous(), (slice(0, 13),))
    found = add_lora(lambda x: linear(x, poisoned(weight)), x, torch.zeros(3, dtype=torch.int32), matrices)
    torch.testing.assert_close(found, x @ own.merged(weight).t())


@pytest.mark.parametrize("name", MODELS)
def test_nothing_sees_the_padding(engine, name, pads):
    """Greedy, searching and sampling, with the logits of all tokens."""
    odd, expected = engine(name)
    check_equal(all_ways(Pipeline(odd, CPU)), expected)


@pytest.mark.parametrize("name", ["t5", "t5: own head", "bart: bias of the logits"])
@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks_have_padding_of_their_own(engine, name, sizes, pads):
    odd, expected = engine(name)
    check_equal(with_followers(rebuilt(odd, max_batch_size=8, **sizes), CPU, all_ways), expected)


def test_likeliest_tokens_and_the_logits_of_prompts(engine, monkeypatch, request):
    odd, _ = engine("gpt2")
    options = {"max_new_tokens": 6, "ignore_eos": True, "top_logprobs": 5, "return_context_logits": True}
    ids = {"decoder_prompt_token_ids": [3, 4, 5, 6, 7]}
    want = Pipeline(odd, CPU).generate(ids, **options)
    request.getfixturevalue("pads")
    found = Pipeline(odd, CPU).generate(ids, **options)
    assert found.token_ids == want.token_ids
    assert [[*top] for top in found.top_logprobs] == [[*top] for top in want.top_logprobs]
    torch.testing.assert_close(found.context_logits, want.context_logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_weight_is_held_once_with_its_padding(engine, name, pads):
    odd, _ = engine(name)
    pipe = Pipeline(odd, CPU)
    runner = pipe.loop.engine.executor.runner
    decoder, encoder = runner.decoder, runner.cross_kv.encoder
    assert {key: value.shape for key, value in decoder.state_dict().items()} == {
        key: value.shape for key, value in odd.weights("decoder").items()
    }
    assert with_padding(decoder.head.weight).shape == (64, 32)
    if isinstance(decoder.head, heads.TiedHead):
        assert decoder.head.weight.data_ptr() == decoder.embedding.weight.data_ptr()
    else:
        assert len(with_padding(decoder.embedding.weight)) == 61
    if encoder is not None:
        assert encoder.embedding.weight is decoder.embedding.weight


def test_on_a_cpu_weights_stay_the_mapped_file(engine):
    odd, _ = engine("gpt2")
    decoder = TorchBackend().load(odd, CPU, torch.device("cpu"))["decoder"]
    assert with_padding(decoder.head.weight) is decoder.head.weight
