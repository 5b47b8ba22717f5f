"""Penalties and prohibitions against Hugging Face's processors, row by row in one batch of different settings."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from vlm.errors import InputError
from vlm.executor.kv_cache import CacheShape
from vlm.executor.sampling.plan import SamplingPlan
from vlm.executor.state.batch_state import BatchState
from vlm.ops.sampling import logits_processors
from vlm.ops.state.beams import RowScores
from vlm.ops.state.token_rules import BAN
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Sequence

VOCAB = 12
INPUT = (7, 3, 4, 3, 4, 9, 5)
HISTORIES = [[0, 3, 4, 5, 3, 4], [0, 3, 3, 3, 3], [0], [0, 7, 8, 7, 8, 7], [0, 5, 6, 9, 10, 5, 6, 9], [4, 4]]


def admitted(
    params: list[SamplingParams], histories: list[list[int]], prompt: int = 1, ends=(2,)
) -> tuple[BatchState, list[Sequence], logits_processors.Processing]:
    """What slots hold of requests that have come so far, and what these need."""
    slots = iter(range(2 * len(histories)))
    state = BatchState(2 * len(histories), 16, CacheShape(8, 8, 4, 4), torch.device("cpu"))
    sequences = [
        Sequence(i, Request(tuple(h[:prompt]), encoder_input_ids=INPUT, params=p), 10, len(INPUT), list(h),
                 slots=[next(slots) for _ in range(p.num_beams)], self_blocks=[[]] * p.num_beams)
        for i, (h, p) in enumerate(zip(histories, params, strict=True))
    ]  # fmt: skip
    state.admit(sequences, [list(ends)] * len(sequences))
    return state, sequences, SamplingPlan.from_sequences(sequences).processing


def run(
    params: list[SamplingParams], histories: list[list[int]], prompt: int = 1, ends=(2,), logits=None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the rows before and after."""
    state, sequences, needed = admitted(params, histories, prompt, ends)
    if logits is None:
        logits = torch.randn(len(histories), VOCAB, generator=torch.Generator().manual_seed(0)) * 3
    rows = torch.tensor([s.slot for s in sequences], dtype=torch.int32)
    return logits, logits_processors.apply(logits, state.slots, state.penalties, rows, state.rules.rules, needed)


def check(params: list[SamplingParams], processors: list, histories=HISTORIES, **options) -> None:
    """`processors`: of each row one, several in their order, or None."""
    logits, found = run(params, histories, **options)
    for row, (history, each) in enumerate(zip(histories, processors, strict=True)):
        want = logits[row : row + 1].clone()
        for processor in each if isinstance(each, list) else [each] * (each is not None):
            want = processor(torch.tensor([history]), want)
        torch.testing.assert_close(found[row], want[0], rtol=1e-5, atol=1e-6)


def test_repetition_penalty():
    values = [1.0, 1.3, 2.0, 0.7, 1.1, 5.0]
    processors = [RepetitionPenaltyLogitsProcessor(v) if v != 1 else None for v in values]
    check([SamplingParams(repetition_penalty=v) for v in values], processors)


def test_no_repeat_ngrams():
    sizes = [2, 1, 2, 3, 4, 8]
    check([SamplingParams(no_repeat_ngram_size=n) for n in sizes], [NoRepeatNGramLogitsProcessor(n) for n in sizes])
    check([SamplingParams(no_repeat_ngram_size=n) for n in (1, 2, 0, 2, 3, 2)],
          [NoRepeatNGramLogitsProcessor(n) if n else None for n in (1, 2, 0, 2, 3, 2)])  # fmt: skip


def test_bad_words():
    words = [((7,),), ((3, 3, 3), (5,)), ((3, 4),), ((8, 7, 9), (7, 8)), ((5, 6, 9, 11), (1,)), ()]
    processors = [NoBadWordsLogitsProcessor([list(w) for w in ws], eos_token_id=2) if ws else None for ws in words]
    check([SamplingParams(bad_words_ids=w) for w in words], processors)


def test_bad_words_of_any_number_and_length():
    """The table grows; an end token alone is no bad word; a word may be longer than the history."""
    many = tuple((a, b) for a in range(VOCAB) for b in range(VOCAB) if b not in (3, 4))
    long = (tuple(HISTORIES[4] + [4]), tuple([1] * 40))
    words = [((2,), (6,)), many, long, ((7, 8, 7, 8, 7, 1),), long, ()]
    processors = [NoBadWordsLogitsProcessor([list(w) for w in ws], eos_token_id=2) if ws else None for ws in words]
    check([SamplingParams(bad_words_ids=w) for w in words], processors)


def test_long_ngrams():
    history = [0, *[5, 6, 7] * 4, 8]
    for size in (9, 11):
        check([SamplingParams(no_repeat_ngram_size=size)] * 2, [NoRepeatNGramLogitsProcessor(size)] * 2,
              [history[:13], history])  # fmt: skip


def test_sequence_bias():
    biases = [(((4,), 2.0), ((3, 4, 5), -3.0), ((4, 5), 1.5), ((5,), float("-inf"))), (((3, 9), 4.0),), (), (), (), ()]
    processors = [SequenceBiasLogitsProcessor([[list(t), v] for t, v in b]) if b else None for b in biases]
    check([SamplingParams(sequence_bias=b) for b in biases], processors)


def test_logit_bias():
    """That of a sequence of one token; it adds to the model's own, and comes before penalties."""
    biases = [((4, 2.0), (0, -100.0)), ((3, 4.5),), (), ((1, 1.0), (2, 2.0)), ((5, 0.5),), ()]
    own = [(((4,), 1.0),), (), (((3, 3), 2.0),), (), (), ()]
    params = [SamplingParams(logit_bias=b, sequence_bias=s, repetition_penalty=1.3)
              for b, s in zip(biases, own, strict=True)]  # fmt: skip
    processors = []
    for bias, sequences in zip(biases, own, strict=True):
        both = [*bias, *((words[0], value) for words, value in sequences if len(words) == 1)]
        summed = {token: sum(v for t, v in both if t == token) for token, _ in both}
        longer = [[list(words), value] for words, value in sequences if len(words) > 1]
        table = [*([[token], value] for token, value in summed.items()), *longer]
        processors.append([*([SequenceBiasLogitsProcessor(table)] if table else []),
                           RepetitionPenaltyLogitsProcessor(1.3)])  # fmt: skip
    check(params, processors)


def test_allowed_tokens():
    """Nothing else comes: what is forbidden of them neither."""
    allowed = [(3, 5, 9), (), (0,), tuple(range(VOCAB)), (4, 7), (2,)]
    params = [SamplingParams(allowed_token_ids=a, bad_words_ids=((3,),) * (i == 0)) for i, a in enumerate(allowed)]
    only = lambda a: [PrefixConstrainedLogitsProcessor(lambda row, ids: list(a), 1)] if a else []  # noqa: E731
    bad = NoBadWordsLogitsProcessor([[3]], eos_token_id=2)
    check(params, [[*only(a), *[bad] * (i == 0)] for i, a in enumerate(allowed)])


def test_suppressed_tokens():
    """At the first place alone, which comes after a forced token; an id beyond the vocabulary changes nothing."""
    params = [SamplingParams(suppress_tokens=(3, 7, 99, -1)), SamplingParams(begin_suppress_tokens=(4, 5)),
              SamplingParams(begin_suppress_tokens=(4, 5)), SamplingParams(suppress_tokens=(1,)),
              SamplingParams(begin_suppress_tokens=(6,), forced_bos_token_id=5), SamplingParams()]  # fmt: skip
    at_begin = lambda tokens, place: SuppressTokensAtBeginLogitsProcessor(tokens, place)  # noqa: E731
    processors = [SuppressTokensLogitsProcessor([3, 7, 99, -1]), at_begin([4, 5], 1), at_begin([4, 5], 1),
                  SuppressTokensLogitsProcessor([1]), at_begin([6], 2), None]  # fmt: skip
    check(params, processors, [[0], [0], [0, 3], [0, 3], [0, 5], [0]])


def test_what_stands_in_the_input():
    ids = torch.tensor([INPUT])
    penalties, sizes = [1.5, 0.4, 1.0, 1.0, 2.0, 1.0], [0, 0, 2, 1, 3, 9]
    params = [SamplingParams(encoder_repetition_penalty=p, encoder_no_repeat_ngram_size=n)
              for p, n in zip(penalties, sizes, strict=True)]  # fmt: skip
    of_penalty = lambda p: [EncoderRepetitionPenaltyLogitsProcessor(p, ids)] if p != 1 else []  # noqa: E731
    of_size = lambda n: [EncoderNoRepeatNGramLogitsProcessor(n, ids)] if n else []  # noqa: E731
    check(params, [of_penalty(p) + of_size(n) for p, n in zip(penalties, sizes, strict=True)])


def test_ends_that_get_likelier_and_values_that_are_none():
    ends = torch.tensor([2, 8])
    decays = [(2, 1.5), (0, 1.01), (5, 2.0), None, (1, 0.5), (3, 3.0)]
    params = [SamplingParams(exponential_decay_length_penalty=d, bad_words_ids=((8,), (3,)) if i == 0 else ())
              for i, d in enumerate(decays)]  # fmt: skip
    processors = [[ExponentialDecayLengthPenalty(d, ends, 1)] if d else [] for d in decays]
    processors[0] = [NoBadWordsLogitsProcessor([[8], [3]], ends), *processors[0]]
    check(params, processors, ends=(2, 8))
    logits = torch.tensor([[float("nan"), float("inf"), 1.0, float("-inf"), *[0.5] * 8]] * 2)
    _, found = run([SamplingParams(remove_invalid_values=True), SamplingParams()], [[0], [0]], logits=logits)
    torch.testing.assert_close(found[:1], InfNanRemoveLogitsProcessor()(None, logits[:1]))
    assert found[1].isnan().any()


def test_one_of_several_ends_changes_scores_that_have_been_forbidden_before():
    params = [SamplingParams(forced_eos_token_id=(8, 2), suppress_tokens=(4,)),
              SamplingParams(forced_eos_token_id=(8, 2))]  # fmt: skip
    forced = ForcedEOSTokenLogitsProcessor(10, [8, 2])
    check(params, [[forced, SuppressTokensLogitsProcessor([4])], forced], [[*range(9)], [*range(8)]])


def test_log_probabilities_that_add_up_to_1_again():
    """Of rows that ask for it, but for one of which nothing is left."""
    values = torch.randn(4, VOCAB).log_softmax(-1)
    values[1:, 3:] = values[3] = float("-inf")
    again = torch.tensor([True, True, False, True])
    found = RowScores(values, normalized=True, again=again)
    want = torch.cat([LogitNormalization()(torch.tensor([[0]]), values[:2]), values[2:]])
    torch.testing.assert_close(found.log_probabilities, want)
    torch.testing.assert_close(values - found.normalizer(values.logsumexp(-1))[:, None], want)


def test_normalization_alone_leaves_other_settings_their_way():
    """A published OPUS-MT forbids a token and normalizes: nothing of that is slow on a device."""
    for num_beams in (1, 2):  # one token's choice does not see it
        params = SamplingParams(num_beams=num_beams, renormalize_logits=True, bad_words_ids=((3,),))
        _, _, needed = admitted([params], [[0]])
        assert needed == logits_processors.Processing((BAN,), normalizes=num_beams > 1)


def test_rows_that_draw_by_entropy_are_counted():
    """They alone go through torch, up to a power of two."""
    draws = SamplingParams(typical_p=0.9, temperature=1.0)
    for params, want in (([draws], 1), ([draws, SamplingParams()] * 3, 4), ([SamplingParams(typical_p=0.9)] * 2, 0)):
        _, sequences, _ = admitted(params, [[0]] * len(params))
        assert SamplingPlan.from_sequences(sequences).filtered == want


def test_a_shortest_length_with_the_prompt():
    params = [SamplingParams(min_length=n) for n in (3, 4, 0)]
    processors = [MinLengthLogitsProcessor(n, torch.tensor([2, 8, 11])) for n in (3, 4, 0)]
    check(params, processors, [[0, 5, 6]] * 3, prompt=2, ends=(2, 8, 11))


def test_a_slot_forgets_its_last_requests_rules():
    state = BatchState(2, 16, CacheShape(8, 8, 4, 4), torch.device("cpu"))
    rows, logits = torch.arange(2, dtype=torch.int32), torch.zeros(2, VOCAB)
    for params in (SamplingParams(suppress_tokens=tuple(range(5)), encoder_repetition_penalty=2.0),
                   SamplingParams(bad_words_ids=((7,),), exponential_decay_length_penalty=(0, 9.0)),
                   SamplingParams()):  # fmt: skip
        request = Request((0,), encoder_input_ids=INPUT, params=params)
        sequences = [Sequence(i, request, 10, len(INPUT), [0], slots=[i], self_blocks=[[]]) for i in range(2)]
        state.admit(sequences, [[2]] * 2)
        found = logits_processors.apply(logits, state.slots, state.penalties, rows, state.rules.rules,
                               logits_processors.Processing(tuple(range(5)), decays=True))  # fmt: skip
        assert found.isinf().nonzero()[:, 1].tolist() == [*range(5)] * 2 * bool(params.suppress_tokens) + [
            7
        ] * 2 * bool(params.bad_words_ids)


def test_presence_and_frequency_count_the_output_alone():
    logits, found = run(
        [SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)] * 2, [[3, 3, 4, 4, 4], [3, 3, 5, 6, 5]], 2
    )
    taken = torch.zeros(2, VOCAB)
    taken[0, 4], taken[1, 5], taken[1, 6] = 0.5 + 0.75, 0.5 + 0.5, 0.5 + 0.25
    torch.testing.assert_close(found, logits - taken)


def test_no_end_before_the_shortest_length():
    _, found = run([SamplingParams(min_new_tokens=n) for n in (3, 2, 0)], [[0, 5, 6]] * 3)
    assert found[:, 2].isinf().tolist() == [True, False, False]
    assert not found[:, 3:].isinf().any()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1"),
        ({"bad_words_ids": ((),)}, "bad_words_ids"),
        ({"sequence_bias": (((), 1.0),)}, "sequence_bias"),
        ({"sequence_bias": (((3,), float("nan")),)}, r"sequence_bias of \[3\] is nan; it must be a number, or -inf"),
        ({"sequence_bias": (((3,), float("inf")),)}, r"sequence_bias of \[3\] is inf; it must be a number, or -inf"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty is inf"),
        ({"logit_bias": ((3, 100.5),)}, r"logit_bias of token 3 is 100.5; it must lie in \[-100, 100\]"),
        ({"logit_bias": ((3, float("nan")),)}, "logit_bias of token 3 is nan"),
        ({"exponential_decay_length_penalty": (3,)}, "exponential_decay_length_penalty"),
        ({"typical_p": 0.0}, "typical_p is 0.0"),
        ({"encoder_repetition_penalty": 0.0}, "encoder_repetition_penalty is 0.0"),
        ({"presence_penalty": 1e9}, "presence_penalty"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens 5 is more than max_new_tokens 4"),
    ],
)
def test_values_outside_their_range(options, reason):
    with pytest.raises(InputError, match=reason):
        SamplingParams(**options)
