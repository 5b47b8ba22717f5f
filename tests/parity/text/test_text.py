"""T5 and BART families against Hugging Face, FP32 on the CPU: the same tokens, whatever a text is batched with."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, pipeline
from tests.parity.cases import flat, parity
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import InputError, LimitError
from vlm.requests.sampling_params import SamplingParams

LENGTHS = (5, 17, 1, 33, 9, 2, 24)
MODELS = {
    "t5": {
        "t5 v1.0, tied, scaled head": lambda: tiny.t5(),
        "t5 v1.1, untied": lambda: tiny.t5(seed=1, tied=False, feed_forward_proj="gated-gelu"),
        "t5 v1.1, saved as tied": lambda: tiny.t5(seed=1, feed_forward_proj="gated-gelu"),
        "ul2: gated silu": lambda: tiny.t5(seed=1, tied=False, feed_forward_proj="gated-silu"),
        "wide heads, deep decoder": lambda: tiny.t5(d_kv=12, num_heads=3, num_layers=1, num_decoder_layers=3),
        "narrow heads, shallow decoder": lambda: tiny.t5(d_kv=4, num_heads=2, num_layers=3, num_decoder_layers=1),
        "few buckets, short distance": lambda: tiny.t5(
            relative_attention_num_buckets=8, relative_attention_max_distance=20),
        "mt5": lambda: tiny.t5(seed=1, kind="mt5", tied=False),
        "umt5": lambda: tiny.t5(seed=1, kind="umt5"),
        "umt5, a head of its own": lambda: tiny.t5(seed=1, kind="umt5", tied=False),
    },
    "t5gemma": {
        "t5gemma": lambda: tiny.t5gemma(),
        "t5gemma, unequal sides": lambda: tiny.t5gemma(
            seed=2, encoder={"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "head_dim": 8,
                             "num_key_value_heads": 6, "sliding_window": 9, "attn_logit_softcapping": 7.0}),
        "t5gemma, uncapped, untied, biases, layers of its own": lambda: tiny.t5gemma(
            seed=5, spread=0.2, tie_word_embeddings=False, decoder={
                "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True,
                "hidden_activation": "relu", "layer_types": ["full_attention", "sliding_attention"]}),
    },
    "t5gemma2": {
        "t5gemma2": lambda: tiny.t5gemma2(),
        "t5gemma2, uncapped, untied, biases, an odd window, a head a key": lambda: tiny.t5gemma2(
            seed=2, tie_word_embeddings=False, text={
                "attention_bias": True, "final_logit_softcapping": None, "sliding_window": 5, "num_key_value_heads": 4,
                "layer_types": ["full_attention", "sliding_attention"]}),
    },
    "bart": {
        "bart": lambda: tiny.bart(),
        "bart, unequal sides, scaled, relu": lambda: tiny.bart(
            encoder_layers=1, decoder_layers=3, encoder_attention_heads=2, decoder_attention_heads=8,
            encoder_ffn_dim=20, scale_embedding=True, activation_function="relu",
        ),
        "bart with a bias of the logits": lambda: tiny.bart(seed=1, logits_bias=True),
        "mbart": lambda: tiny.bart(multilingual=True, scale_embedding=True),
    },
    "m2m100": {
        "m2m100": lambda: tiny.m2m100(),
        "m2m100, unequal sides, untied": lambda: tiny.m2m100(
            seed=1, encoder_layers=1, decoder_layers=3, encoder_attention_heads=2, decoder_ffn_dim=20,
            scale_embedding=False, activation_function="gelu", tie_word_embeddings=False),
    },
    "marian": {
        "marian": lambda: tiny.marian(),
        "marian with a bias of the logits": lambda: tiny.marian(logits_bias=True),
        "marian, two vocabularies": lambda: tiny.marian(
            seed=2, spread=0.25, share_encoder_decoder_embeddings=False, decoder_vocab_size=40, logits_bias=True),
    },
    "pegasus": {
        "pegasus": lambda: tiny.pegasus(),
        "pegasus, unequal sides, unscaled, gelu, a bias of the logits": lambda: tiny.pegasus(
            seed=1, encoder_layers=1, decoder_layers=3, encoder_attention_heads=2, decoder_ffn_dim=20,
            scale_embedding=False, activation_function="gelu", logits_bias=True),
    },
}  # fmt: skip


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


def inputs_of(texts, **more):
    return [{"encoder_input_ids": text, **more} for text in texts]


@pytest.mark.parametrize("case", parity(MODELS))
def test_greedy_tokens_and_log_probabilities(case, tmp_path):
    model = case.make()
    texts = tiny.texts(model, LENGTHS)
    pipe = pipeline(model, tmp_path)
    assert pipe.family.name == case.family
    found = pipe.generate(inputs_of(texts), max_new_tokens=20)
    assert [out.token_ids for out in found] == tiny.hf_texts(model, texts, 20)
    assert len({tuple(out.token_ids) for out in found}) > 3, "the texts make no difference"
    start = model.generation_config.decoder_start_token_id
    for text, out in zip(texts, found, strict=True):
        ids = torch.tensor([[start, *out.token_ids]])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([text]), decoder_input_ids=ids[:, :-1]).logits
        exact = logits.log_softmax(-1)[0].gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


@pytest.fixture(scope="module", params=["t5", "bart", "m2m100", "marian", "pegasus", "t5gemma", "t5gemma2"])
def ragged(request, tmp_path_factory):
    """A model, nine texts and their tokens alone."""
    model = getattr(tiny, request.param)(seed={"bart": 5, "m2m100": 5}.get(request.param, 0))
    texts = tiny.texts(model, (40, 3, 21, 1, 60, 12, 33, 50, 7), seed=4)
    want = tiny.hf_texts(model, texts, 30)
    return model, engine_dir(model, tmp_path_factory.mktemp("ragged"), max_batch_size=9), texts, want


@pytest.mark.parametrize("options", [{"burst": 1}, {"burst": 4, "block_size": 8, "max_batch_size": 3},
                                     {"max_encoder_tokens": 50, "max_batch_size": 5}])  # fmt: skip
def test_any_batch_gives_the_tokens_of_one(ragged, options):
    _, engine, texts, want = ragged
    pipe = Pipeline(engine, cpu(**options))
    assert [out.token_ids for out in pipe.generate(inputs_of(texts), max_new_tokens=30)] == want
    assert pipe.llm.scheduler.blocks.balanced


def test_forced_first_and_last_tokens(ragged):
    model, engine, texts, _ = ragged
    pipe, end = Pipeline(engine, cpu()), model.config.eos_token_id
    options = {"forced_bos_token_id": 7, "forced_eos_token_id": end}
    want = tiny.hf_texts(model, texts, 9, **options)
    assert all(tokens[0] == 7 and tokens[-1] == end for tokens in want)
    found = pipe.generate(inputs_of(texts), max_new_tokens=9, **options)
    assert [out.token_ids for out in found] == want
    assert all(out.logprobs[0] == 0.0 for out in found)


def test_a_decoder_prefix(ragged):
    model, engine, texts, _ = ragged
    start = model.generation_config.decoder_start_token_id
    prefixes = [[start], [start, 9, 11], [start, *range(5, 25)]]
    pipe = Pipeline(engine, cpu(block_size=8))
    inputs = [{"encoder_input_ids": t, "decoder_prompt_token_ids": p} for t, p in zip(texts, prefixes, strict=False)]
    want = [tiny.hf_text(model, t, 12, prefix=p) for t, p in zip(texts, prefixes, strict=False)]
    assert [out.token_ids for out in pipe.generate(inputs, max_new_tokens=12)] == want


def test_t5_beyond_the_lengths_of_training(tmp_path):
    """Positions are relative: an engine may be built for more than the configuration's 512."""
    model = tiny.t5(seed=3, n_positions=64)
    texts = tiny.texts(model, (700, 3, 130))
    pipe = pipeline(model, tmp_path, max_seq_len=220, max_encoder_input_len=700)
    found = pipe.generate(inputs_of(texts), max_new_tokens=200, ignore_eos=True)
    assert [out.token_ids for out in found] == tiny.hf_texts(model, texts, 200, eos_token_id=-1, min_new_tokens=200)


def test_the_likeliest_tokens_of_each_place(ragged):
    model, engine, texts, want = ragged
    start = model.generation_config.decoder_start_token_id
    pipe = Pipeline(engine, cpu(burst=3, max_batch_size=4))
    found = pipe.generate(inputs_of(texts), max_new_tokens=30, top_logprobs=4)
    assert [out.token_ids for out in found] == want
    for text, out in zip(texts, found, strict=True):
        with torch.no_grad():
            ids = torch.tensor([[start, *out.token_ids[:-1]]])
            exact = model(input_ids=torch.tensor([text]), decoder_input_ids=ids).logits.log_softmax(-1)[0].topk(4)
        assert [list(place) for place in out.top_logprobs] == exact.indices.tolist()
        found_values = torch.tensor([list(place.values()) for place in out.top_logprobs])
        torch.testing.assert_close(found_values, exact.values, atol=1e-4, rtol=0)


@pytest.mark.parametrize("burst", [1, 5])
def test_stop_words(ragged, burst):
    """A sequence of tokens ends the output with it, wherever a burst ends."""
    _, engine, texts, want = ragged
    pipe = Pipeline(engine, cpu(burst=burst, max_batch_size=4))
    words = tuple(dict.fromkeys(tuple(tokens[3:5]) for tokens in want if len(tokens) > 8))
    found = pipe.generate(inputs_of(texts), max_new_tokens=30, stop_words_ids=words)
    for out, tokens in zip(found, want, strict=True):
        ends = [n for n in range(2, len(tokens) + 1) if tuple(tokens[n - 2 : n]) in words]
        assert out.token_ids == tokens[: min(ends, default=len(tokens))]
        assert len(out.logprobs) == len(out.token_ids)
        assert out.finish_reason == ("stop" if ends and ends[0] < len(tokens) else out.finish_reason)
    assert pipe.llm.scheduler.blocks.balanced


def test_several_samples_of_one_text(ragged):
    _, engine, texts, _ = ragged
    pipe = Pipeline(engine, cpu(max_batch_size=5))
    options = {"temperature": 1.5, "max_new_tokens": 15}
    first, second = pipe.generate(inputs_of(texts[:2]), num_return_sequences=4, seed=3, **options)
    drawn = [first, *first.alternatives]
    assert len({tuple(out.token_ids) for out in drawn}) > 1 and len(drawn) == 4 == 1 + len(second.alternatives)
    for out in drawn:
        again = pipe.generate(encoder_input_ids=texts[0], seed=out.seed, **options)
        assert again.token_ids == out.token_ids and again.logprobs == pytest.approx(out.logprobs, abs=1e-4)


def test_settings_that_exclude_each_other_are_said():
    for wrong in (
        {"num_beams": 2, "temperature": 0.5}, {"num_return_sequences": 2}, {"num_beams": 2, "top_logprobs": 1},
        {"num_beams": 3, "num_return_sequences": 4}, {"early_stopping": "soon"}, {"stop": ("",)},
        {"max_new_tokens": 3, "min_new_tokens": 4}, {"top_p_decay": 0.0},
    ):  # fmt: skip
        with pytest.raises(InputError):
            SamplingParams(**wrong)


def test_more_beams_than_the_engine_decodes_at_once(ragged):
    _, engine, texts, _ = ragged
    with pytest.raises(LimitError, match=r"num_beams is 10.*9 sequences.*max_batch_size 10"):
        Pipeline(engine, cpu()).generate(encoder_input_ids=texts[0], num_beams=10)


@pytest.mark.parametrize("make", flat(MODELS).values(), ids=flat(MODELS))
def test_the_encoder_alone(make, tmp_path):
    """Last hidden states, all of them, and attentions, of ragged texts in passes of any size."""
    model = make()
    model.set_attn_implementation("eager")
    texts = tiny.texts(model, LENGTHS)
    pipe = pipeline(model, tmp_path, cpu(max_encoder_tokens=40))
    found = pipe.encode(inputs_of(texts), hidden_states=True, attentions=True)
    for text, encoding in zip(texts, found, strict=True):
        with torch.no_grad():
            want = model.get_encoder()(torch.tensor([text]), output_hidden_states=True, output_attentions=True)
        close = lambda a, b: torch.testing.assert_close(a, b[0], atol=2e-4, rtol=1e-4)  # noqa: E731
        close(encoding.last_hidden_state, want.last_hidden_state)
        for ours, theirs in zip(encoding.hidden_states, want.hidden_states, strict=True):
            close(ours, theirs)
        for ours, theirs in zip(encoding.attentions, want.attentions, strict=True):
            close(ours, theirs)
    alone = pipe.encode({"encoder_input_ids": texts[0]})
    assert alone.hidden_states is None and alone.attentions is None
    close(alone.last_hidden_state, found[0].last_hidden_state[None])
