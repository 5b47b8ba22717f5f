"""Text models on a GPU: Hugging Face's tokens and hypotheses in FP32, 16-bit logits within tolerance."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.marks import HOPPER
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.parity.generation.test_beam_search import check, hf_beams
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.executor import kv_cache
from vlm.executor.paged import waiting_kv
from vlm.layers import attention
from vlm.ops.attention.absorbed_attention import absorbed_attention
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
LENGTHS = (14, 3, 80, 1, 200, 12, 33, 9)
MODELS = {
    "t5": lambda: tiny.t5(seed=1, feed_forward_proj="gated-gelu"),
    "bart": lambda: tiny.bart(seed=5, max_position_embeddings=220),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True, max_position_embeddings=220),
}


@pytest.fixture(scope="module", params=MODELS)
def subject(request, tmp_path_factory):
    model = MODELS[request.param]()
    return model, engine_dir(model, tmp_path_factory.mktemp("gpu"), max_batch_size=12), tiny.texts(model, LENGTHS)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("burst", [1, 4, 16])
def test_greedy_and_searches_in_one_batch(subject, burst, graphs):
    """Every request with its own settings, joining as slots come free."""
    model, engine, texts = subject
    settings = [
        {"num_beams": 2}, {}, {"num_beams": 5, "length_penalty": 0.5}, {"num_beams": 3, "early_stopping": True}, {},
        {"num_beams": 4, "no_repeat_ngram_size": 3}, {"num_beams": 2, "early_stopping": "never"}, {},
    ]  # fmt: skip
    pipe = Pipeline(engine, RuntimeConfig(device="cuda", burst=burst, cuda_graphs=graphs, max_batch_size=9))
    start = model.generation_config.decoder_start_token_id
    for _ in range(2):
        ids, found = {}, {}
        for i, (text, given) in enumerate(zip(texts, settings, strict=True)):
            params = SamplingParams(max_new_tokens=24, num_return_sequences=given.get("num_beams", 1), **given)
            ids[pipe.llm.add([Request((start,), encoder_input_ids=tuple(text), params=params)])[0]] = i
        while pipe.llm.has_work:
            found |= {ids[u.request_id]: pipe.outputs.output(u.completion) for u in pipe.llm.step() if u.finished}
        for i, (text, given) in enumerate(zip(texts, settings, strict=True)):
            if given:
                check([found[i]], [hf_beams(model, text, **given)])
            else:
                assert found[i].token_ids == tiny.hf_text(model, text, 24)
        assert pipe.llm.scheduler.blocks.balanced


def test_likeliest_tokens_samples_and_encodings_equal_the_cpus(subject):
    _, engine, texts = subject
    inputs = [{"encoder_input_ids": text} for text in texts]
    options = {"temperature": 0.9, "top_p": 0.9, "top_p_decay": 0.8, "top_p_min": 0.3, "seed": 7, "top_logprobs": 3}
    pipes = [Pipeline(engine, RuntimeConfig(device=device)) for device in ("cpu", "cuda")]
    ours, theirs = [p.generate(inputs, max_new_tokens=20, **options) for p in pipes]
    for a, b in zip(ours, theirs, strict=True):
        assert a.token_ids == b.token_ids
        assert [list(x) for x in a.top_logprobs] == [list(x) for x in b.top_logprobs]
    for a, b in zip(*(p.encode(inputs) for p in pipes), strict=True):
        torch.testing.assert_close(a.last_hidden_state, b.last_hidden_state, atol=2e-4, rtol=1e-4)


def logprobs(engine, device: str, texts, outputs) -> torch.Tensor:
    """Returns the log-probabilities of given outputs, through encoder, cache and decoder, teacher-forced."""
    pipe, found = Pipeline(engine, RuntimeConfig(device=device)), []
    for text, tokens in zip(texts, outputs, strict=True):
        for end in range(1, len(tokens)):
            out = pipe.generate(
                {"encoder_input_ids": text, "decoder_prompt_token_ids": tokens[:end]}, max_new_tokens=1,
                top_logprobs=5, ignore_eos=True,
            )  # fmt: skip
            found.append(list(out.top_logprobs[0].values()))
    return torch.tensor(found)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 6e-2), ("float16", 8e-3)])
@pytest.mark.parametrize("family", ["t5", "bart"])
def test_16_bit_log_probabilities_are_within_tolerance(tmp_path, family, dtype, tolerance):
    """Root mean square difference of the five likeliest tokens' log-probabilities from FP32's on the CPU."""
    model = wide_model(family)
    exact_engine = engine_dir(model, tmp_path)
    half = rebuilt(exact_engine, dtype=dtype)
    texts, start = tiny.texts(model, (30, 7)), model.generation_config.decoder_start_token_id
    outputs = [[start, *range(5, 17)], [start, *range(30, 42)]]
    exact, found = (logprobs(e, d, texts, outputs) for e, d in ((exact_engine, "cpu"), (half, "cuda")))
    error = (found - exact).square().mean().sqrt().item()
    print(f"{family} {dtype}: {error:.2e}")
    assert error < tolerance


@HOPPER[1]
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-2), ("float16", 5e-3)])
@pytest.mark.parametrize("family", ["t5", "t5 of many heads", "bart"])
def test_steps_over_encoders_rows_find_what_those_over_keys_and_values_do(
    tmp_path, family, dtype, tolerance, monkeypatch
):
    """Logits of each step up to the first one that chooses another token, texts of all lengths in one batch; keys and
    values are there, computed at admission, or wait."""
    model = wide_model(family)
    engine, texts = engine_dir(model, tmp_path, max_batch_size=8), tiny.texts(model, (14, 3, 80, 1, 60, 12, 33, 9))
    half, inputs, found, calls = rebuilt(engine, dtype=dtype), [{"encoder_input_ids": t} for t in texts], [], []

    def noted(*args):
        calls.append(args)
        return absorbed_attention(*args)

    monkeypatch.setattr(attention, "absorbed_attention", noted)
    for least, long in ((10**9, 0), (1, 10**9), (1, 0)):
        for name in ("ABSORBED_NUMBERS", "PAIR_NUMBERS"):
            monkeypatch.setattr(kv_cache, name, least)
        monkeypatch.setattr(waiting_kv, "LONG_ROWS", long)
        assert bool(calls) == (long == 0 and least == 1)
        pipe = Pipeline(half, RuntimeConfig(device="cuda"))
        found.append(pipe.generate(inputs, max_new_tokens=12, ignore_eos=True, return_generation_logits=True))
    assert calls and [out.token_ids for out in found[1]] == [out.token_ids for out in found[2]]
    for ours, theirs in zip(found[0], found[1], strict=True):
        same = [a == b for a, b in zip(ours.token_ids, theirs.token_ids, strict=True)]
        count = 1 + (same.index(False) if False in same else len(same) - 1)
        a, b = (out.generation_logits[:count].double() for out in (ours, theirs))
        assert float((a - b).norm() / a.norm()) < tolerance


def wide_model(family: str):
    """Returns a random model whose heads are as large as published ones'."""
    wide = {"vocab_size": 900, "d_model": 512 if "many heads" in family else 256}
    if family == "t5 of many heads":
        return tiny.t5(seed=1, spread=0.03, d_kv=128, num_heads=32, d_ff=256, **wide)
    if family == "t5":
        return tiny.t5(seed=1, spread=0.05, d_kv=64, d_ff=512, feed_forward_proj="gated-gelu", **wide)
    return tiny.bart(seed=5, spread=0.03, decoder_attention_heads=4, encoder_attention_heads=4, **wide)


def test_float16_holds_a_residual_stream_beyond_its_range(tmp_path):
    """Flan-T5's failure: feed-forward outputs past 65,504. The stream is float32, so nothing is lost."""
    model = tiny.t5(seed=1, spread=0.3, feed_forward_proj="gated-gelu", d_ff=96)
    for stack in (model.encoder, model.decoder):
        for block in stack.block:
            block.layer[-1].DenseReluDense.wo.weight.data *= 3e4
    texts = tiny.texts(model, (30, 7, 12))
    with torch.no_grad():
        states = model.encoder(torch.tensor([texts[0]]), output_hidden_states=True).hidden_states
    assert max(x.abs().max() for x in states[:-1]) > 65504
    exact_engine = engine_dir(model, tmp_path)
    half = rebuilt(exact_engine, dtype="float16")
    start = model.generation_config.decoder_start_token_id
    outputs = [[start, *range(5, 15)]] * 3
    exact, found = (logprobs(e, d, texts, outputs) for e, d in ((exact_engine, "cpu"), (half, "cuda")))
    assert found.isfinite().all()
    assert (found - exact).square().mean().sqrt() < 2e-2
