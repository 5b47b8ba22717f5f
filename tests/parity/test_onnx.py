"""Exported graphs on ONNX Runtime against Hugging Face, FP32: the same tokens of every family, in ragged batches."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

from llm_engines.models import t5gemma2
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.parity.cases import flat, mostly_slow
from tests.parity.decoders import test_decoders as decoders
from tests.parity.generation.test_beam_search import check, hf_beams
from tests.parity.vision_language import test_vision_language as seeing
from vlm.api.pipeline import Pipeline
from vlm.backends.graphs.export import check_expressible
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, InputError
from vlm.executor.slots import cache as slot_cache

LENGTHS = (14, 3, 21, 1, 40, 12, 33, 9)
TEXTS = {
    "t5": lambda: tiny.t5(seed=1, feed_forward_proj="gated-gelu"),
    "t5: own head, relu": lambda: tiny.t5(tied=False),
    "mt5": lambda: tiny.t5(kind="mt5", tied=False),
    "umt5": lambda: tiny.t5(kind="umt5"),
    "bart": lambda: tiny.bart(seed=5),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True),
    "bart: bias of the logits": lambda: tiny.bart(seed=2, logits_bias=True),
    "m2m100": lambda: tiny.m2m100(seed=5),
    "marian": lambda: tiny.marian(logits_bias=True),
    "pegasus": lambda: tiny.pegasus(logits_bias=True),
}


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", threads=1, **options)


def compiled(model, folder, **limits):
    return engine_dir(model, folder, backend="onnxruntime", **limits)


def test_attention_that_graphs_cannot_express(tmp_path):
    with pytest.raises(
        ConfigError,
        match="caps its attention scores, which exported graphs cannot express; build it for backend torch",
    ):
        compiled(tiny.t5gemma(), tmp_path)


def test_merged_attention_that_graphs_cannot_express(tmp_path):
    says = "attends to its output and to what it read in one softmax, which exported graphs cannot express; build it"
    with pytest.raises(ConfigError, match=says):
        compiled(tiny.t5gemma2(), tmp_path)
    encoder = t5gemma2.parse_encoder(tiny.t5gemma2().config.to_dict())
    with pytest.raises(ConfigError, match="looks further to one side than to the other, which"):
        check_expressible(t5gemma2.ENCODER_SPEC.skeleton(encoder))


def of_texts(texts):
    return [{"encoder_input_ids": text} for text in texts]


# --- decoders alone ---
@pytest.mark.slow
@pytest.mark.parametrize("make", flat(decoders.MODELS).values(), ids=flat(decoders.MODELS))
def test_decoders(make, tmp_path):
    model = make()
    prompts = tiny.prompts(model, decoders.LENGTHS)
    pipe = Pipeline(compiled(model, tmp_path), cpu())
    found = pipe.generate(decoders.inputs_of(prompts), max_new_tokens=20)
    assert [out.token_ids for out in found] == tiny.hf_continuations(model, prompts, 20)
    for prompt, out in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + out.token_ids])).logits[:, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1)[0].gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A LLaMA with shared heads, nine prompts and their tokens alone."""
    model = tiny.llama(seed=3, num_key_value_heads=2)
    prompts = tiny.prompts(model, (40, 3, 21, 1, 60, 12, 33, 50, 7), seed=4)
    want = tiny.hf_continuations(model, prompts, 30)
    return model, compiled(model, tmp_path_factory.mktemp("ragged"), max_batch_size=9), prompts, want


@pytest.mark.parametrize(
    "options",
    [{"burst": 1}, {"burst": 4, "max_batch_size": 3}, {"max_prefill_tokens": 7}, {"max_batch_size": 1}],
    ids=str,
)
def test_any_batch_and_any_chunks_give_the_tokens_of_one(ragged, options):
    _, engine, prompts, want = ragged
    pipe = Pipeline(engine, cpu(**options))
    for _ in range(2):  # the second time slots hold what others left
        assert [out.token_ids for out in pipe.generate(decoders.inputs_of(prompts), max_new_tokens=30)] == want
    assert pipe.llm.scheduler.blocks.balanced


def test_caches_grow_while_sequences_run(ragged, monkeypatch):
    _, engine, prompts, want = ragged
    monkeypatch.setattr(slot_cache, "FIRST_ROWS", 4)
    pipe = Pipeline(engine, cpu(burst=2, max_prefill_tokens=9, max_batch_size=5))
    rows = lambda: pipe.llm.executor.runner.cache.tensors["self_k_0"].shape[2]  # noqa: E731
    assert rows() == 4
    assert [out.token_ids for out in pipe.generate(decoders.inputs_of(prompts), max_new_tokens=30)] == want
    assert 60 <= rows() <= 128


@pytest.mark.parametrize("options", decoders.BEAMS, ids=str)
def test_beam_search_after_prompts(ragged, options):
    model, engine, prompts, _ = ragged
    pipe = Pipeline(engine, cpu(burst=3, max_prefill_tokens=50))
    found = pipe.generate(decoders.inputs_of(prompts[:5]), max_new_tokens=14, **options)
    for prompt, out in zip(prompts[:5], found, strict=True):
        with torch.no_grad():
            theirs = model.generate(
                torch.tensor([prompt]), max_new_tokens=14, do_sample=False, pad_token_id=0, **options
            )
        for hypothesis, row in zip((out, *out.alternatives), theirs.tolist(), strict=True):
            tokens = row[len(prompt) :]
            assert hypothesis.token_ids == (tokens[: tokens.index(2) + 1] if 2 in tokens else tokens)
    assert pipe.llm.scheduler.blocks.balanced


def test_sampling_and_controls_are_those_of_torch(ragged):
    _, engine, prompts, _ = ragged
    options = [
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 5},
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "min_new_tokens": 9},
        {"logit_bias": ((5, -100.0), (9, 2.5)), "allowed_token_ids": (1, 2, *range(4, 40))},
        {"top_logprobs": 3, "stop_token_ids": (7, 8)},
    ]
    pipes = [Pipeline(e, cpu(max_batch_size=4)) for e in (engine, rebuilt(engine, backend="torch", max_batch_size=9))]
    for given in options:
        ours, theirs = (p.generate(decoders.inputs_of(prompts), max_new_tokens=15, **given) for p in pipes)
        assert [out.token_ids for out in ours] == [out.token_ids for out in theirs]
        assert [out.finish_reason for out in ours] == [out.finish_reason for out in theirs]


def test_rows_of_prompt_tables(ragged):
    """Tables of several sizes, and none, in one batch; the last token of a prompt may be a row."""
    model, engine, prompts, want = ragged
    vocab, generator = model.config.vocab_size, torch.Generator().manual_seed(3)
    tables = [torch.randn(n, model.config.hidden_size, generator=generator) for n in (4, 9, 1)]
    asked = [
        [*range(vocab, vocab + 4), *prompts[1]],
        [*prompts[2][:5], *range(vocab, vocab + 9), *prompts[2][5:]],
        [*prompts[3], *prompts[4], vocab],
    ]
    inputs = [{"decoder_prompt_token_ids": ids, "prompt_table": t} for ids, t in zip(asked, tables, strict=True)]
    pipe = Pipeline(engine, cpu(max_prefill_tokens=30))
    found = pipe.generate([*inputs, *decoders.inputs_of(prompts)], max_new_tokens=12)
    for ids, table, out in zip(asked, tables, found, strict=False):
        assert out.token_ids == decoders._continued(model, ids, table, 12)
    assert [out.token_ids for out in found[3:]] == [tokens[:12] for tokens in want]


# --- texts ---
@pytest.mark.parametrize("make", mostly_slow(TEXTS, ("t5",)))
def test_texts(make, tmp_path):
    model = make()
    texts = tiny.texts(model, LENGTHS, seed=4)
    engine = compiled(model, tmp_path, max_batch_size=6, max_seq_len=64, max_encoder_input_len=64)
    pipe = Pipeline(engine, cpu(burst=5, max_encoder_tokens=60))
    found = pipe.generate(of_texts(texts), max_new_tokens=24)
    assert [out.token_ids for out in found] == tiny.hf_texts(model, texts, 24)
    for options in ({"num_beams": 4}, {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0}):
        outputs = pipe.generate(
            of_texts(texts), max_new_tokens=24, num_return_sequences=options["num_beams"], **options
        )
        check(outputs, [hf_beams(model, text, **options) for text in texts])
    with torch.no_grad():
        hidden = model.get_encoder()(torch.tensor([texts[2]])).last_hidden_state[0]
    torch.testing.assert_close(pipe.encode(of_texts(texts))[2].last_hidden_state, hidden, atol=1e-4, rtol=1e-4)
    with pytest.raises(InputError, match="build it with backend torch"):
        pipe.encode({"encoder_input_ids": texts[0]}, hidden_states=True)
    assert pipe.llm.scheduler.blocks.balanced


# --- images ---
@pytest.mark.slow  # the trained one, in tests/e2e/engines/test_onnx_cli.py, is in the default run
@pytest.mark.parametrize("make", [tiny.nougat, tiny.trocr])
def test_readers(make, tmp_path):
    model = make(seed=0)
    pixels = tiny.images(model, 5)
    pipe = Pipeline(compiled(model, tmp_path, max_batch_size=3), cpu(max_encoder_batch_size=2))
    found = pipe.generate([{"pixel_values": image} for image in pixels], max_new_tokens=40)
    assert [out.token_ids for out in found] == tiny.hf_tokens(model, pixels, 40)
    assert len({tuple(out.token_ids) for out in found}) > 1, "the images make no difference"


@pytest.mark.parametrize("make", mostly_slow(flat(seeing.MODELS), ("llava",)))
def test_images_in_prompts(make, tmp_path):
    """Prompts with no, one and three images in one batch, greedily and by beams."""
    case = seeing.Case(make(), tmp_path)
    limits = {n: getattr(case.engine.build, n) for n in ("max_batch_size", "max_seq_len")}
    if case.key == "encoder_input_ids":
        limits["max_encoder_input_len"] = case.engine.limits.max_encoder_input_len
    pipe = Pipeline(rebuilt(case.engine, backend="onnxruntime", **limits), cpu(max_prefill_tokens=9, max_batch_size=4))
    found = pipe.generate(case.inputs, max_new_tokens=14)
    assert [out.token_ids for out in found] == [case.theirs(*given, 14)[0] for given in case.prompts]
    options = {"num_beams": 3, "num_return_sequences": 2}
    found = pipe.generate(case.inputs, max_new_tokens=10, **options)
    for given, out in zip(case.prompts, found, strict=True):
        assert [hypothesis.token_ids for hypothesis in (out, *out.alternatives)] == case.theirs(*given, 10, **options)


# --- 16 bits ---
@pytest.mark.parametrize("make", mostly_slow({"llama": tiny.llama, "t5": tiny.t5, "bart": tiny.bart}, ("llama",)))
def test_float16_is_close(make, tmp_path):
    """Log-probabilities of what it says are Hugging Face's in FP32 within the type's tolerance."""
    model = make()
    pipe = Pipeline(compiled(model, tmp_path, dtype="float16", max_seq_len=64), cpu())
    encoder = hasattr(model, "get_encoder") and model.config.is_encoder_decoder
    inputs = of_texts(tiny.texts(model, (9, 4))) if encoder else decoders.inputs_of(tiny.prompts(model, (9, 4)))
    for given, out in zip(inputs, pipe.generate(inputs, max_new_tokens=10), strict=True):
        logits = _teacher_forced(model, given, out.token_ids)
        exact = logits.log_softmax(-1).gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=5e-2, rtol=0)


@torch.no_grad()
def _teacher_forced(model, given, tokens):
    """Logits [tokens, vocabulary] at each place."""
    if "encoder_input_ids" in given:
        ids = torch.tensor([[model.generation_config.decoder_start_token_id, *tokens[:-1]]])
        return model(torch.tensor([given["encoder_input_ids"]]), decoder_input_ids=ids).logits[0]
    prompt = given["decoder_prompt_token_ids"]
    return model(torch.tensor([[*prompt, *tokens[:-1]]])).logits[0, len(prompt) - 1 :]
