"""Drafts change no token: every family and setting with drafts and without, in float32, and in fewer steps."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.engine import drafting
from vlm.errors import ConfigError, LimitError
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.token_update import Completion

pytestmark = pytest.mark.slow  # every family, with and without
NEW, MAX_SEQ_LEN = 30, 72
FAMILIES = ("t5", "bart", "gpt2", "llama", "llava", "nougat")
DRAWN = {"temperature": 0.7, "seed": 3, "top_k": 8}
SETTINGS = (
    {},
    {"ignore_eos": True},
    DRAWN,
    {**DRAWN, "top_p": 0.9, "top_p_decay": 0.8, "top_p_reset_id": 7, "ignore_eos": True},
    {"repetition_penalty": 1.1, "min_new_tokens": 9},
    {"no_repeat_ngram_size": 3, **DRAWN},
    {"num_beams": 2},
    {"prompt_lookup_num_tokens": 0},
    {"prompt_lookup_num_tokens": 1, "ignore_eos": True},
    {"top_logprobs": 2, "return_generation_logits": True, "ignore_eos": True},
    {"stop_words_ids": ((7, 8), (11,), (23,)), "ignore_eos": True},
    {"stop_token_ids": tuple(range(20, 40)), "min_new_tokens": 5},
    {"forced_eos_token_id": 2, "max_new_tokens": 17, "ignore_eos": True},
    {"max_new_tokens": 1},
    {"max_new_tokens": 6, "ignore_eos": True},
    {"typical_p": 0.8, "temperature": 0.6, "seed": 11},
)  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, tmp_path_factory) -> EngineDir:
    folder = tmp_path_factory.mktemp("drafts")
    return engine_dir(MODELS[request.param](), folder, max_batch_size=20, max_seq_len=MAX_SEQ_LEN)


@pytest.fixture(scope="module")
def expected(engine) -> list[Completion]:
    """What the settings come to without drafts."""
    return outcomes(load(engine, 0, burst=4))


@pytest.fixture(autouse=True)
def always_drafts(monkeypatch):
    """All steps draft that may: what pays is another question."""
    monkeypatch.setattr(drafting, "MOST_ROWS", 1000)
    monkeypatch.setattr(drafting, "LEAST_GAIN", 0.0)


def load(engine: EngineDir, drafts: int, **runtime) -> Pipeline:
    return Pipeline(engine, RuntimeConfig(device="cpu", num_speculative_tokens=drafts, **runtime))


def inputs_of(pipe: Pipeline) -> list[dict]:
    """Ragged inputs that say something twice; two of them begin alike."""
    generator = torch.Generator().manual_seed(0)
    phrases = [torch.randint(3, 58, (n,), generator=generator).tolist() for n in (9, 3, 14, 1, 9)]
    texts = [[*phrases[0][:4], *phrase, *phrase[: n % 4]] for n, phrase in enumerate(phrases)]
    vision, vocab = pipe.processor.vision, pipe.config.vocab_size
    if vision is None:
        return [{pipe.capabilities.id_field: text} for text in texts]
    pixels = torch.randn(len(texts), vision.num_channels, *vision.image_size, generator=generator)
    if pipe.config.cross_attention:
        return [{"pixel_values": each} for each in pixels]
    rows = range(vocab, vocab + vision.num_features)
    return [
        {"decoder_prompt_token_ids": [*rows, *text], "pixel_values": image}
        for text, image in zip(texts, pixels, strict=True)
    ]


def outcomes(pipe: Pipeline, steps_apart: int = 0) -> list[Completion]:
    """Returns what a request of each of the settings comes to; the next is added after so many steps."""
    inputs, ids, found = inputs_of(pipe), [], {}
    step = lambda: found.update({u.request_id: u.completion for u in pipe.llm.step() if u.completion})  # noqa: E731
    for number, own in enumerate(SETTINGS):
        options = {"max_new_tokens": NEW, "loop_detection": False, **own}
        if not pipe.llm.scheduler.config.num_speculative_tokens:
            options.pop("prompt_lookup_num_tokens", None)
        ids.append(pipe.llm.add([pipe.request(inputs[number % len(inputs)], **options)])[0])
        for _ in range(steps_apart):
            step()
    while pipe.llm.has_work:
        step()
    assert pipe.llm.scheduler.idle
    return [found[request_id] for request_id in ids]


def check(found: list, expected: list) -> None:
    for own, drafted, plain in zip(SETTINGS, found, expected, strict=True):
        assert drafted.token_ids == plain.token_ids and drafted.finish_reason == plain.finish_reason, own
        assert drafted.logprobs == pytest.approx(plain.logprobs, abs=1e-3)
        assert [list(top) for top in drafted.top_logprobs] == [list(top) for top in plain.top_logprobs]
        if plain.generation_logits is not None:
            torch.testing.assert_close(drafted.generation_logits, plain.generation_logits, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("drafts", "runtime"),
    [
        (1, {"burst": 1}),
        (3, {"burst": 4, "block_size": 4}),
        (5, {"burst": 3, "max_batch_size": 5, "max_prefill_tokens": 7}),
    ],
    ids=str,
)
def test_tokens_are_those_without_drafts(engine, expected, drafts, runtime):
    """In one ragged batch, and as requests come one after the other."""
    at_once, trickling = outcomes(load(engine, drafts, **runtime)), outcomes(load(engine, drafts, **runtime), 2)
    check(at_once, expected)
    check(trickling, expected)
    assert sum(c.num_drafted for c in at_once) > sum(c.num_accepted for c in at_once) > 0
    for own, completion in zip(SETTINGS, at_once, strict=True):
        if own.get("prompt_lookup_num_tokens") == 0 or own.get("num_beams", 1) > 1 or own.get("max_new_tokens") == 1:
            assert completion.num_drafted == 0


def test_preempted_sequences_go_on(engine, expected):
    """Too few blocks for all: what was drafted is recomputed with the rest, and its beginning may be another's."""
    few, cross = 5 * MAX_SEQ_LEN // 8, 20 * -(-engine.limits.max_encoder_input_len // 4)
    share = {"max_kv_blocks": few + cross, "cross_kv_cache_fraction": max(0.01, (cross + 0.5) / (few + cross))}
    found = outcomes(load(engine, 3, burst=4, block_size=4, **share))
    check(found, expected)
    assert sum(c.preemptions for c in found)


def test_abort_amid_drafts(tmp_path):
    pipe = load(engine_dir(tiny.llama(seed=3), tmp_path), 3, burst=2)
    prompt, params = (5, 6, 7) * 4, SamplingParams(max_new_tokens=60, ignore_eos=True)
    whole = pipe.generate(decoder_prompt_token_ids=list(prompt), max_new_tokens=60, ignore_eos=True).token_ids
    aborted, other = (pipe.llm.add([Request(prompt, params=params)])[0] for _ in range(2))
    done = {}
    for turn in range(100):
        if turn == 4:
            pipe.llm.abort(aborted)
        done |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
        if not pipe.llm.has_work:
            break
    assert done[aborted].token_ids == whole[: len(done[aborted].token_ids)]
    assert done[aborted].finish_reason == "abort" and done[other].token_ids == whole
    assert pipe.llm.scheduler.idle


# --- steps
def counting(kind: str):
    """A model that counts: of its layers nothing is left, and its head likes best the token after the last one."""
    model = tiny.gpt2(seed=1, tie_word_embeddings=False) if kind == "gpt2" else tiny.t5(seed=1, tied=False)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter is not embedding.weight:
            parameter.data.zero_()
    embedding.weight.data /= embedding.weight.data.norm(dim=1, keepdim=True)
    head.weight = torch.nn.Parameter(embedding.weight.data.roll(1, 0))
    return model


def steps_of(pipe: Pipeline, monkeypatch) -> Counter:
    """Counts the decode steps, by their drafts, as they come."""
    launch, count = pipe.llm.executor.launch, Counter()

    def counted(sequences, steps, drafts, **options):
        count[drafts] += steps
        return launch(sequences, steps, drafts, **options)

    monkeypatch.setattr(pipe.llm.executor, "launch", counted)
    return count


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_fewer_steps_where_a_text_is_repeated(kind, tmp_path, monkeypatch):
    """A decoder alone copies what its prompt says, another one what its encoder reads."""
    said = [*range(10, 40)]
    given = {"decoder_prompt_token_ids": [*said, 10]} if kind == "gpt2" else {"encoder_input_ids": said}
    start = {} if kind == "gpt2" else {"decoder_prompt_token_ids": [0, 10]}
    pipe = load(engine_dir(counting(kind), tmp_path), 3, burst=1)
    count = steps_of(pipe, monkeypatch)
    out = pipe.generate(**given, **start, max_new_tokens=24)
    assert out.token_ids == [*range(11, 35)]
    assert count == {3: 6}, "four tokens a step"
    plain = pipe.generate(**given, **start, max_new_tokens=24, prompt_lookup_num_tokens=0)
    assert plain.token_ids == out.token_ids and count == {3: 6, 0: 23}, "the prefill gives the first"


# --- what is refused
def test_more_than_the_engine_proposes_is_refused(tmp_path):
    pipe = load(engine_dir(tiny.gpt2(), tmp_path), 2)
    with pytest.raises(LimitError, match="proposes 2 tokens a step at most; leave it out, or give num_speculative"):
        pipe.generate(decoder_prompt_token_ids=[5], prompt_lookup_num_tokens=3)
    with pytest.raises(ConfigError, match="num_speculative_tokens is 17, it must be between 0"):
        RuntimeConfig(num_speculative_tokens=17)


def test_a_batch_invariant_gpu_drafts_nothing():
    runtime = RuntimeConfig(batch_invariant=True, num_speculative_tokens=4)
    assert runtime.on("cuda").num_speculative_tokens == 0 and runtime.on("cpu").num_speculative_tokens == 4
