"""Settings and lengths at their limits: what has no room changes nothing, and neighbours change nothing."""

from __future__ import annotations

import math

import pytest

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.requests.token_update import Completion

MAX_SEQ_LEN = 40


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    model = tiny.llama(seed=1)
    return model, engine_dir(model, tmp_path_factory.mktemp("limits"), max_batch_size=8, max_seq_len=MAX_SEQ_LEN)


def completed(engine, requests: list[tuple[list[int], dict]], **runtime) -> list[Completion]:
    """Returns what these prompts with settings of their own come to in one batch."""
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", **{"burst": 4, "block_size": 4, **runtime}))
    ids = [pipe.llm.add([pipe.request({"decoder_prompt_token_ids": p}, **settings)])[0] for p, settings in requests]
    found = {}
    while pipe.llm.has_work:
        found |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
    assert pipe.llm.scheduler.idle
    return [found[request_id] for request_id in ids]


@pytest.mark.parametrize("drafts", [0, 3])
def test_the_likeliest_tokens_of_a_full_sequences_last_place_stay(subject, drafts):
    """The burst goes on with another sequence."""
    model, engine = subject
    full, other = tiny.prompts(model, (MAX_SEQ_LEN - 2, 5), seed=3)
    settings = {"max_new_tokens": 2, "top_logprobs": 3, "ignore_eos": True}
    longer = {"max_new_tokens": 12, "ignore_eos": True}
    [alone] = completed(engine, [(full, settings)])
    beside, _ = completed(engine, [(full, settings), (other, longer)], num_speculative_tokens=drafts)
    assert len(alone.top_logprobs) == 2 and alone.token_ids[-1] in alone.top_logprobs[-1]
    assert [list(top) for top in beside.top_logprobs] == [list(top) for top in alone.top_logprobs]


def test_more_likeliest_tokens_than_a_vocabulary_has_are_all_of_it(tmp_path):
    engine = engine_dir(tiny.llama(seed=1, vocab_size=12, bos_token_id=0), tmp_path, max_seq_len=MAX_SEQ_LEN)
    [out] = completed(engine, [([5, 6, 7], {"max_new_tokens": 2, "top_logprobs": 20, "ignore_eos": True})])
    assert all(sum(math.exp(value) for value in top.values()) == pytest.approx(1) for top in out.top_logprobs)


BEYOND = {
    "n-grams": {"no_repeat_ngram_size": 2**30 - 1},
    "n-grams of the input": {"encoder_no_repeat_ngram_size": 2**30 - 1},
    "a late gain of ends": {"exponential_decay_length_penalty": (2**40, 1.5)},
    "the least temperature": {"temperature": 1e-44, "seed": 1},
}


@pytest.mark.parametrize("settings", BEYOND.values(), ids=list(BEYOND))
def test_what_no_sequence_is_long_enough_for_changes_nothing(subject, settings):
    model, engine = subject
    prompt = tiny.prompts(model, (5,), seed=3)[0]
    plain = tiny.hf_continued(model, prompt, 12)
    [out] = completed(engine, [(prompt, {"max_new_tokens": 12, **settings})])
    assert out.token_ids == plain
