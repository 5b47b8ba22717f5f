"""Decoders alone against Hugging Face, FP32 on the CPU: the same tokens, however a prompt is batched, cut or shared."""

from __future__ import annotations

import pytest
import torch

from llm_engines.models.llama_config import parse
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, pipeline
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, InputError, LimitError

LENGTHS = (5, 17, 1, 33, 9, 2, 40)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
MODELS = {
    "llama": {
        "llama": lambda: tiny.llama(),
        "llama: grouped queries, biases": lambda: tiny.llama(
            seed=1, num_key_value_heads=2, attention_bias=True, mlp_bias=True),
        "llama: heads of their own width, tied": lambda: tiny.llama(head_dim=12, tie_word_embeddings=True),
        "llama: linear": lambda: tiny.llama(
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
        "llama: dynamic": lambda: tiny.llama(
            rope_parameters={"rope_type": "dynamic", "rope_theta": 500.0, "factor": 4.0}),
        "llama 3.1": lambda: tiny.llama(rope_parameters=LLAMA3, num_key_value_heads=1),
        "llama: yarn": lambda: tiny.llama(rope_parameters=YARN),
        "mistral": lambda: tiny.llama(kind="mistral", num_key_value_heads=2, sliding_window=None, hidden_act="gelu"),
        "mistral within a window": lambda: tiny.llama(kind="mistral", num_key_value_heads=2, sliding_window=6),
    },
    "qwen": {
        "qwen3": lambda: tiny.llama(kind="qwen3", head_dim=12, num_key_value_heads=2, tie_word_embeddings=True),
        "qwen3: biases, own head": lambda: tiny.llama(kind="qwen3", head_dim=8, attention_bias=True),
        "qwen2": lambda: tiny.llama(kind="qwen2", num_key_value_heads=2, use_sliding_window=False),
        "qwen2: the second layer within a window": lambda: tiny.llama(
            kind="qwen2", num_key_value_heads=2, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        "qwen3: layers within a window by name": lambda: tiny.llama(
            kind="qwen3", head_dim=12, use_sliding_window=True, sliding_window=5, max_window_layers=2,
            layer_types=["sliding_attention", "full_attention"]),
    },
    "opt": {
        "opt": lambda: tiny.opt(),
        "opt-350m: norms after, projected": lambda: tiny.opt(
            seed=1, do_layer_norm_before=False, word_embed_proj_dim=20),
        "opt: no biases, gelu": lambda: tiny.opt(enable_bias=False, activation_function="gelu"),
    },
    "gpt2": {
        "gpt2": lambda: tiny.gpt2(),
        "gpt2: wide, relu, unscaled, own head": lambda: tiny.gpt2(
            n_inner=20, activation_function="relu", scale_attn_weights=False, tie_word_embeddings=False, spread=0.15),
        "gpt2: one head": lambda: tiny.gpt2(n_head=1),
        "starcoder": lambda: tiny.gpt2(multi_query=True),
        "gpt_bigcode of many heads": lambda: tiny.gpt2(multi_query=False),
    },
}  # fmt: skip


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


def inputs_of(prompts):
    return [{"decoder_prompt_token_ids": prompt} for prompt in prompts]


@pytest.mark.parametrize("case", parity(MODELS))
def test_greedy_tokens_and_log_probabilities(case, tmp_path):
    model = case.make()
    prompts = tiny.prompts(model, LENGTHS)
    pipe = pipeline(model, tmp_path)
    assert pipe.family.name == case.family
    found = pipe.generate(inputs_of(prompts), max_new_tokens=20)
    assert [out.token_ids for out in found] == tiny.hf_continuations(model, prompts, 20)
    assert len({tuple(out.token_ids) for out in found}) > 3, "the prompts make no difference"
    for prompt, out in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt + out.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[:, len(prompt) - 1 : -1]
        exact = logits.log_softmax(-1)[0].gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layers", [{"max_window_layers": "1"}, {"layer_types": ["sliding_attention"]},
                                    {"layer_types": [["full_attention"]] * 2}], ids=str)  # fmt: skip
def test_windows_that_are_none_are_refused_by_name(layers):
    shape = {"model_type": "qwen2", "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 8}
    with pytest.raises(ConfigError, match=next(iter(layers))):
        parse(shape | layers)


@pytest.fixture(scope="module", params=["llama", "qwen3", "opt", "gpt2"])
def ragged(request, tmp_path_factory):
    """Four models, nine prompts and their tokens alone."""
    model = {"llama": lambda: tiny.llama(seed=3, num_key_value_heads=2), "opt": lambda: tiny.opt(seed=2),
             "qwen3": lambda: tiny.llama(seed=5, kind="qwen3", head_dim=12, num_key_value_heads=2),
             "gpt2": lambda: tiny.gpt2(seed=1, multi_query=True)}[request.param]()  # fmt: skip
    prompts = tiny.prompts(model, (40, 3, 21, 1, 60, 12, 33, 50, 7), seed=4)
    want = tiny.hf_continuations(model, prompts, 30)
    return model, engine_dir(model, tmp_path_factory.mktemp("ragged"), max_batch_size=9), prompts, want


@pytest.mark.parametrize(
    "options",
    [
        {"burst": 1},
        {"burst": 4, "block_size": 8, "max_batch_size": 3},
        {"max_prefill_tokens": 7, "block_size": 4},
        {"max_prefill_tokens": 64, "prefix_sharing": False},
    ],
    ids=str,
)
def test_any_batch_and_any_chunks_give_the_tokens_of_one(ragged, options):
    _, engine, prompts, want = ragged
    pipe = Pipeline(engine, cpu(**options))
    assert [out.token_ids for out in pipe.generate(inputs_of(prompts), max_new_tokens=30)] == want
    assert pipe.llm.scheduler.blocks.balanced


@pytest.mark.parametrize("ended_by", ["max_new_tokens", "stop_token_ids", "stop_words_ids"])
def test_one_token_takes_no_decode_step(ragged, ended_by, monkeypatch):
    """The prefill gives it, unless a prompt has one token."""
    _, engine, prompts, want = ragged
    pipe, inputs, ends = Pipeline(engine, cpu()), inputs_of(prompts), [tokens[0] for tokens in want]
    monkeypatch.setattr(pipe.llm.executor.runner, "decode", None)
    for given, prompt, end in zip(inputs, prompts, ends, strict=True):
        said = {"max_new_tokens": 1, "stop_token_ids": [end], "stop_words_ids": [[end]]}[ended_by]
        if len(prompt) > 1:
            out = pipe.generate(given, **{"max_new_tokens": 9, ended_by: said})
            assert out.token_ids == [end] and len(out.logprobs) == 1
            assert out.finish_reason in ("eos", "length" if ended_by == "max_new_tokens" else "stop")
    assert pipe.llm.scheduler.idle


def test_preemption_loses_nothing(ragged):
    _, engine, prompts, want = ragged
    pipe = Pipeline(engine, cpu(block_size=4, burst=3, max_kv_blocks=33))
    requests = [pipe.request(given, max_new_tokens=30) for given in inputs_of(prompts)]
    ids, done = [pipe.llm.add([request])[0] for request in requests], {}
    while pipe.llm.has_work:
        done |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
    assert [done[i].token_ids for i in ids] == want
    assert sum(s.preemptions for s in done.values()) > 0
    assert pipe.llm.scheduler.blocks.balanced


def test_shared_beginnings_give_the_same_tokens(ragged):
    model, engine, prompts, _ = ragged
    system = prompts[0]
    variants = [system + p for p in prompts[1:4]] + [system, system[:33] + prompts[3], system + prompts[1]]
    want = tiny.hf_continuations(model, variants, 20)
    pipe = Pipeline(engine, cpu(block_size=8))
    written = []
    whole = pipe.llm.executor.prefill
    pipe.llm.executor.prefill = lambda spans: (written.extend(x.end - x.start for _, x in spans), whole(spans))
    assert [out.token_ids for out in pipe.generate(inputs_of(variants), max_new_tokens=20)] == want
    together = sum(written)
    assert together < sum(len(p) - 1 for p in variants) - 4 * 32, "nothing was shared"
    assert [pipe.generate(**given, max_new_tokens=20).token_ids for given in inputs_of(variants)] == want
    assert sum(written) - together < sum(len(p) - 1 for p in variants) - 5 * 32
    assert pipe.llm.scheduler.blocks.balanced


BEAMS = [
    {"num_beams": 2},
    {"num_beams": 4, "early_stopping": True, "length_penalty": 0.0},
    {"num_beams": 5, "early_stopping": "never", "length_penalty": 2.0, "no_repeat_ngram_size": 2},
    {"num_beams": 4, "repetition_penalty": 1.4, "num_return_sequences": 3},
]


@pytest.mark.parametrize("options", BEAMS, ids=str)
def test_beam_search(ragged, options):
    model, engine, prompts, _ = ragged
    pipe = Pipeline(engine, cpu(burst=3, block_size=4, max_prefill_tokens=50))
    found = pipe.generate(inputs_of(prompts[:6]), max_new_tokens=14, **options)
    for prompt, out in zip(prompts[:6], found, strict=True):
        with torch.no_grad():
            theirs = model.generate(
                torch.tensor([prompt]), max_new_tokens=14, do_sample=False, pad_token_id=0, output_scores=True,
                return_dict_in_generate=True, **options,
            )  # fmt: skip
        ours = (out, *out.alternatives)
        for hypothesis, row, score in zip(
            ours, theirs.sequences.tolist(), theirs.sequences_scores.tolist(), strict=True
        ):
            tokens = row[len(prompt) :]
            tokens = tokens[: tokens.index(2) + 1] if 2 in tokens else tokens
            assert hypothesis.token_ids == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
    assert pipe.llm.scheduler.blocks.balanced


def test_rows_of_a_prompt_table_stand_for_tokens(ragged):
    """Against the model's own pass over embeddings; tables of several sizes, and none, in one batch."""
    model, engine, prompts, want = ragged
    vocab, width = model.config.vocab_size, model.get_input_embeddings().embedding_dim
    generator = torch.Generator().manual_seed(3)
    tables = [torch.randn(n, width, generator=generator) for n in (4, 9, 1)]
    asked = [
        [vocab, vocab + 1, vocab + 2, vocab + 3, *prompts[1]],  # tuned tokens first
        [*prompts[2][:5], *range(vocab, vocab + 9), *prompts[2][5:]],  # among the text
        [*prompts[3], *prompts[4], vocab],  # the last of all
    ]
    inputs = [{"decoder_prompt_token_ids": ids, "prompt_table": t} for ids, t in zip(asked, tables, strict=True)]
    for options in ({"block_size": 8}, {"max_prefill_tokens": 5, "burst": 2}):
        pipe = Pipeline(engine, cpu(**options))
        found = pipe.generate([*inputs, *inputs_of(prompts)], max_new_tokens=12)
        for ids, table, out in zip(asked, tables, found, strict=False):
            assert out.token_ids == _continued(model, ids, table, 12)
        assert [out.token_ids for out in found[3:]] == [tokens[:12] for tokens in want]
        other = pipe.generate(decoder_prompt_token_ids=asked[0], prompt_table=-tables[0], max_new_tokens=12)
        assert other.token_ids == _continued(model, asked[0], -tables[0], 12), "equal ids, other rows"
        assert pipe.llm.scheduler.blocks.balanced


@torch.no_grad()
def _continued(model, ids, table, new: int) -> list[int]:
    learned, vocab = model.get_input_embeddings(), model.config.vocab_size
    rows = [table[i - vocab] if i >= vocab else learned.weight[i] for i in ids]
    found = []
    while len(found) < new and (not found or found[-1] != 2):
        logits = model(inputs_embeds=torch.stack(rows)[None], use_cache=False).logits
        found.append(int(logits[0, -1].argmax()))
        rows.append(learned.weight[found[-1]])
    return found


def test_what_does_not_fit_is_said(ragged):
    model, engine, _, _ = ragged
    pipe, width = Pipeline(engine, cpu()), model.get_input_embeddings().embedding_dim
    with pytest.raises(LimitError, match=r"131 prompt tokens and 5 new ones are 8 more than the 128 .*shorter prompt"):
        pipe.generate(decoder_prompt_token_ids=[5] * 131, max_new_tokens=5)
    with pytest.raises(InputError, match=rf"shape \[2, {width + 1}\]; this model takes rows of {width} values"):
        pipe.generate(decoder_prompt_token_ids=[60, 61], prompt_table=torch.zeros(2, width + 1))
    with pytest.raises(LimitError, match="token id 62 is outside the vocabulary of 60 and its prompt table of 2 rows"):
        pipe.generate(decoder_prompt_token_ids=[5, 62], prompt_table=torch.zeros(2, width))
    with pytest.raises(LimitError, match="token id 60 is outside the vocabulary of 60"):
        pipe.generate(decoder_prompt_token_ids=[5, 60])
    with pytest.raises(InputError, match="takes text, not images"):
        pipe.generate(images=["a.png"])
    with pytest.raises(InputError, match="it takes no encoder_output"):
        pipe.generate(decoder_prompt_token_ids=[5], encoder_output=torch.zeros(2, width))
