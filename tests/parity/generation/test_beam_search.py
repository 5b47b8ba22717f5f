"""Beam search against Hugging Face, FP32 on the CPU: the same hypotheses and scores, each search as if alone."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.cases import combined
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

LENGTHS = (14, 3, 21, 1, 40, 12, 33, 9)
NEW = 24


def hf_beams(model, ids, **options) -> list[tuple[list[int], float]]:
    """(tokens up to and with the end, score) of each returned hypothesis of one text."""
    [found] = hf_searches(model, [ids], **options)
    return found


@torch.no_grad()
def hf_searches(model, texts, **options) -> list[list[tuple[list[int], float]]]:
    """The hypotheses of each text as `hf_beams` has them: a tenth of its passes, as padding is masked."""
    prefix = options.pop("prefix", None)
    if prefix is not None:
        options["decoder_input_ids"] = torch.tensor([prefix] * len(texts))
    options = {"max_new_tokens": NEW, "num_return_sequences": options["num_beams"], **options}
    if "bad_words_ids" in options:
        options["bad_words_ids"] = [list(word) for word in options["bad_words_ids"]]
    if stops := options.pop("stop_words_ids", ()):
        options["stopping_criteria"] = StoppingCriteriaList([Words(stops, len(prefix or [0]))])
        # ids that no token has: it looks at as many more candidates as there are ends, and so goes on without them
        unused = range(model.config.vocab_size, model.config.vocab_size + len(stops))
        options["eos_token_id"] = [model.config.eos_token_id, *unused]
    encoded, mask = tiny.padded(texts, model.config.pad_token_id)
    out = model.generate(
        encoded, attention_mask=mask, do_sample=False, return_dict_in_generate=True, output_scores=True, **options
    )
    start, words, width = len(prefix or [0]), [(model.config.eos_token_id,), *stops], options["num_return_sequences"]
    scores = out.sequences_scores.tolist() if options["num_beams"] > 1 else [0.0] * len(out.sequences)
    found = [(up_to_end(r[start:], words), s) for r, s in zip(out.sequences.tolist(), scores, strict=True)]
    return [found[first : first + width] for first in range(0, len(found), width)]


def up_to_end(tokens: list[int], words: list[tuple[int, ...]]) -> list[int]:
    """Up to and with the first of the words."""
    ends = [n for n in range(1, len(tokens) + 1) if any(ends_with(tokens[:n], word) for word in words)]
    return tokens[: min(ends, default=len(tokens))]


def ends_with(tokens: list[int], word: tuple[int, ...]) -> bool:
    return tuple(tokens[-len(word) :]) == tuple(word)


class Words(StoppingCriteria):
    """Ends what ends with one of these sequences of generated tokens."""

    def __init__(self, words: list[tuple[int, ...]], start: int):
        self.words, self.start = words, start

    def __call__(self, input_ids, scores, **options):
        rows = [row[self.start :] for row in input_ids.tolist()]
        return torch.tensor([any(ends_with(row, word) for word in self.words) for row in rows])


SUBJECTS = {
    "t5": lambda: tiny.t5(seed=1, feed_forward_proj="gated-gelu"),
    "bart": lambda: tiny.bart(seed=5),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True),
    "m2m100": lambda: tiny.m2m100(seed=5),
    "marian": lambda: tiny.marian(spread=0.25, logits_bias=True),
    "pegasus": lambda: tiny.pegasus(logits_bias=True),
    "t5gemma": lambda: tiny.t5gemma(seed=4, spread=0.6),
    "t5gemma2": lambda: tiny.t5gemma2(seed=4, spread=0.4),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Gives a model, its engine and texts, made once."""

    @functools.cache
    def subject(name: str):
        model = SUBJECTS[name]()
        engine = engine_dir(model, tmp_path_factory.mktemp("beams"), max_batch_size=16)
        return model, engine, tiny.texts(model, LENGTHS, seed=4)

    return subject


@pytest.fixture(params=SUBJECTS)
def subject(request, made):
    return made(request.param)


def check(outputs, want) -> None:
    """Tokens are exact and scores within 1e-4, every returned hypothesis."""
    for out, hypotheses in zip(outputs, want, strict=True):
        found = [(o.token_ids, o.score) for o in (out, *out.alternatives)]
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in hypotheses]
        torch.testing.assert_close([s for _, s in found], [s for _, s in hypotheses], atol=1e-4, rtol=5e-6)


SETTINGS = {
    "width 2": {"num_beams": 2},
    "width 4": {"num_beams": 4},
    "width 5, early": {"num_beams": 5, "early_stopping": True},
    "width 4, never": {"num_beams": 4, "early_stopping": "never"},
    "short is better": {"num_beams": 4, "length_penalty": -1.0},
    "long is better": {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True},
    "sums": {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
    "no repeated pairs": {"num_beams": 4, "no_repeat_ngram_size": 2},
    "penalty and forced ends": {"num_beams": 3, "repetition_penalty": 1.3, "forced_bos_token_id": 9,
                                "forced_eos_token_id": 1},
    "not before ten": {"num_beams": 4, "min_new_tokens": 10},
}  # fmt: skip


OF_ALL = ("width 4", "width 5, early", "long is better", "penalty and forced ends")
SEARCHES = combined(SUBJECTS, SETTINGS, always=OF_ALL, quick=("t5", "mbart", "t5gemma"))


@pytest.mark.parametrize(("name", "settings"), SEARCHES)
def test_hypotheses_and_scores(made, name, settings):
    model, engine, texts = made(name)
    if "forced_eos_token_id" in settings:
        settings = settings | {"forced_eos_token_id": model.config.eos_token_id}
    want = hf_searches(model, texts, **settings)
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", block_size=8, burst=5))
    returned = {"num_return_sequences": settings["num_beams"], "max_new_tokens": NEW}
    check(pipe.generate([{"encoder_input_ids": t} for t in texts], **settings, **returned), want)
    assert pipe.llm.scheduler.blocks.balanced


def test_searches_of_different_width_and_greedy_rows_in_one_batch(subject):
    """Every request has its own settings; sequences join as slots come free."""
    from vlm.requests.request import Request
    from vlm.requests.sampling_params import SamplingParams

    model, engine, texts = subject
    settings = [
        {"num_beams": 2}, {}, {"num_beams": 5, "length_penalty": 0.5}, {"num_beams": 3, "early_stopping": True}, {},
        {"num_beams": 4, "no_repeat_ngram_size": 3}, {"num_beams": 2, "early_stopping": "never"}, {},
    ]  # fmt: skip
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", block_size=4, burst=3, max_batch_size=9))
    start, ids = model.generation_config.decoder_start_token_id, {}
    for i, (text, given) in enumerate(zip(texts, settings, strict=True)):
        returned = given.get("num_beams", 1)
        params = SamplingParams(max_new_tokens=NEW, num_return_sequences=returned, **given)
        ids[pipe.llm.add([Request((start,), encoder_input_ids=tuple(text), params=params)])[0]] = i
    found = {}
    while pipe.llm.has_work:
        found |= {ids[u.request_id]: pipe.outputs.output(u.completion) for u in pipe.llm.step() if u.finished}
    for i, (text, given) in enumerate(zip(texts, settings, strict=True)):
        if given:
            check([found[i]], [hf_beams(model, text, **given)])
        else:
            assert found[i].token_ids == tiny.hf_text(model, text, NEW)
    assert pipe.llm.scheduler.blocks.balanced


STOPPED = (
    {"num_beams": 2},
    {"num_beams": 4},
    {"num_beams": 3, "early_stopping": True},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0},
    {"num_beams": 3, "no_repeat_ngram_size": 2},
    {"num_beams": 3, "bad_words_ids": ((7,), (12, 30))},
    {"num_beams": 1},
    {"num_beams": 5, "min_new_tokens": 10},
)


def words_of(hypotheses: list[tuple[list[int], float]], end: int) -> tuple[tuple[int, ...], ...]:
    """Words that a search would come by: of two tokens, of three, and of one."""
    best, last = hypotheses[0][0], hypotheses[-1][0]
    return tuple(word for word in (tuple(best[1:3]), tuple(last[2:5]), tuple(best[6:7])) if word and end not in word)


def test_stop_words_end_beams(subject):
    """As a stopping criterion of Hugging Face's does; each search has words and settings of its own, in one batch."""
    from vlm.requests.request import Request
    from vlm.requests.sampling_params import SamplingParams

    model, engine, texts = subject
    pairs = list(zip(texts, STOPPED, strict=True))
    words = [words_of(hf_beams(model, text, **settings), model.config.eos_token_id) for text, settings in pairs]
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", block_size=8, burst=5, max_batch_size=12))
    start, ids = model.generation_config.decoder_start_token_id, {}
    for i, ((text, settings), own) in enumerate(zip(pairs, words, strict=True)):
        returned = {"num_return_sequences": settings["num_beams"], "max_new_tokens": NEW}
        params = SamplingParams(**settings, **returned, stop_words_ids=own)
        ids[pipe.llm.add([Request((start,), encoder_input_ids=tuple(text), params=params)])[0]] = i
    found = {}
    while pipe.llm.has_work:
        found |= {ids[u.request_id]: pipe.outputs.output(u.completion) for u in pipe.llm.step() if u.finished}
    for i, ((text, settings), own) in enumerate(zip(pairs, words, strict=True)):
        want = hf_beams(model, text, **settings, stop_words_ids=own)
        if settings["num_beams"] == 1:
            assert found[i].token_ids == want[0][0]
        else:
            check([found[i]], [want])
        for each in (found[i], *found[i].alternatives):
            assert (each.finish_reason == "stop") == any(ends_with(each.token_ids, word) for word in own)
    assert any(o.finish_reason == "stop" for o in found.values()) and pipe.llm.scheduler.blocks.balanced


def test_a_prompt_is_no_stop_word(subject):
    model, engine, texts = subject
    start = model.generation_config.decoder_start_token_id
    prefix = [start, 7, 11]
    given = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": NEW}
    inputs = [{"encoder_input_ids": t, "decoder_prompt_token_ids": prefix} for t in texts[:3]]
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", block_size=4))
    plain = pipe.generate(inputs, **given)
    first = plain[0].token_ids[0]
    assert [o.token_ids for o in pipe.generate(inputs, **given, stop_words_ids=((11, first),))] == [
        o.token_ids for o in plain
    ]


def test_a_prefix_and_a_preempted_search(subject):
    """A search that loses its blocks starts again, to the same end."""
    model, engine, texts = subject
    start = model.generation_config.decoder_start_token_id
    prefix = [start, 7, 11, 5, 13]
    want = hf_searches(model, texts, num_beams=3, prefix=prefix)
    cross = sum(-(-n // 4) for n in LENGTHS)
    alone = 3 * (-(-(len(prefix) + NEW) // 4) + 1)
    total = cross + alone + 10
    runtime = RuntimeConfig(
        device="cpu", block_size=4, burst=2, max_kv_blocks=total, cross_kv_cache_fraction=cross / total + 1e-9
    )
    pipe = Pipeline(shrunk(engine), runtime)
    preempted = []
    pipe.llm.scheduler._preempt = _counting(pipe.llm.scheduler._preempt, preempted)
    inputs = [{"encoder_input_ids": t, "decoder_prompt_token_ids": prefix} for t in texts]
    check(pipe.generate(inputs, num_beams=3, num_return_sequences=3, max_new_tokens=NEW), want)
    assert preempted and pipe.llm.scheduler.blocks.balanced


def shrunk(engine):
    """The same engine for short outputs: the cache is planned for one sequence of full length."""
    from tests.kits.models.engines import rebuilt

    return rebuilt(engine, max_batch_size=16, max_seq_len=32, max_encoder_input_len=max(LENGTHS))


def _counting(function, calls):
    def wrapped(*arguments):
        calls.append(1)
        return function(*arguments)

    return wrapped


# settings that leave a search of four beams fewer outcomes than beams, and how many
FEW = {
    "one token": ({"max_new_tokens": 1, "allowed_token_ids": [5]}, 1),
    "a forced end": ({"max_new_tokens": 1, "forced_eos_token_id": 1}, 1),
    "an end alone": ({"max_new_tokens": 4, "allowed_token_ids": [1]}, 1),
    "again and again": ({"max_new_tokens": 5, "allowed_token_ids": [5, 6], "no_repeat_ngram_size": 1}, 4),
    "no way on": ({"max_new_tokens": 5, "suppress_tokens": [*range(100)]}, 0),
}


@pytest.mark.parametrize("few", FEW)
def test_outcomes_that_are_not_there_are_empty_and_never_an_earlier_requests(made, few):
    model, engine, texts = made("t5")
    settings, count = FEW[few]
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", max_batch_size=4))
    earlier = pipe.generate({"encoder_input_ids": texts[0]}, num_beams=4, max_new_tokens=NEW)
    assert len(earlier.token_ids) > 1
    out = pipe.generate({"encoder_input_ids": texts[1]}, num_beams=4, num_return_sequences=4, **settings)
    outcomes = (out, *out.alternatives)
    assert [bool(each.token_ids) for each in outcomes] == [True] * count + [False] * (4 - count)
    assert all(each.finish_reason == "stop" and not each.logprobs for each in outcomes[count:])
    if "allowed_token_ids" not in settings and count:
        assert out.token_ids == hf_beams(model, texts[1], num_beams=4, **settings)[0][0]
    again = pipe.generate({"encoder_input_ids": texts[0]}, num_beams=4, max_new_tokens=NEW)
    assert (again.token_ids, again.score) == (earlier.token_ids, earlier.score)


@torch.no_grad()
def diverse_beams(model, ids, width: int, rate: float, steps: int) -> list[tuple[list[int], float]]:
    """Li, Monroe and Jurafsky (2016), equation 6, without ends: siblings are ranked, each rank costs `rate`."""
    beams = [([model.generation_config.decoder_start_token_id], 0.0)]
    for _ in range(steps):
        candidates = []
        encoded, rows = torch.tensor([ids] * len(beams)), torch.tensor([tokens for tokens, _ in beams])
        best = model(input_ids=encoded, decoder_input_ids=rows).logits[:, -1].log_softmax(-1).topk(2 * width)
        for (tokens, total), values, following in zip(beams, best.values.tolist(), best.indices.tolist(), strict=True):
            for rank, (value, token) in enumerate(zip(values, following, strict=True)):
                candidates.append((total + value - rate * rank, [*tokens, token], total + value))
        beams = [(tokens, total) for _, tokens, total in sorted(candidates, reverse=True)[:width]]
    return sorted(((tokens[1:], total / steps) for tokens, total in beams), key=lambda b: -b[1])


@pytest.mark.parametrize("rate", [0.3, 2.0])
def test_diversity(subject, rate):
    model, engine, texts = subject
    want = [diverse_beams(model, text, 4, rate, 8) for text in texts[:4]]
    assert want != [diverse_beams(model, text, 4, 0.0, 8) for text in texts[:4]]
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", block_size=4))
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 8, "ignore_eos": True}
    check(pipe.generate([{"encoder_input_ids": t} for t in texts[:4]], diversity_rate=rate, **options), want)
