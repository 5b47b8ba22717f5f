"""Choosing tokens: the filters against Hugging Face's, the draws against the exact distribution."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from vlm.ops.sampling import entropy_filters, sample


def hugging_face(logits, temperature, top_k, top_p, min_p):
    if temperature != 1:
        logits = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        logits = TopKLogitsWarper(top_k)(None, logits)
    if top_p < 1:
        logits = TopPLogitsWarper(top_p)(None, logits)
    if min_p > 0:
        logits = MinPLogitsWarper(min_p)(None, logits)
    return logits


def sampling(temperature, top_k, top_p, min_p, seeds, **fields) -> sample.SamplingState:
    state = sample.SamplingState.empty(len(temperature), torch.device("cpu"))
    fields |= {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seeds": seeds}
    return dataclasses.replace(state, **fields)


SETTINGS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (0.9, 12, 0.5, 0.0),
    (0.5, 1, 0.9, 0.0),
    (2.0, 400, 0.95, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.4, 15, 0.95, 0.05),
]


def test_filters_equal_hugging_faces_row_by_row_in_one_batch():
    torch.manual_seed(0)
    logits = torch.randn(len(SETTINGS), 97) * 3
    columns = [torch.tensor(c) for c in zip(*SETTINGS, strict=True)]
    found = sample.filtered(logits, *columns)
    for row, setting in enumerate(SETTINGS):
        want = hugging_face(logits[row : row + 1], *setting)[0]
        assert torch.equal(found[row].isinf(), want.isinf()), setting
        torch.testing.assert_close(found[row], want)


def test_filters_by_entropy_equal_hugging_faces():
    """Each alone and all of them in their order, beside rows that have none."""
    torch.manual_seed(3)
    settings = [(0.0, 1.0, 0.0, 0.0), (0.4, 1.0, 0.0, 0.0), (0.0, 0.3, 0.0, 0.0), (0.0, 0.95, 0.0, 0.0),
                (0.0, 1.0, 0.02, 0.0), (0.0, 1.0, 0.9, 0.0), (0.0, 1.0, 0.0, 0.05),
                (0.9, 0.8, 0.001, 0.002)]  # fmt: skip
    logits = torch.randn(len(settings), 150) * 3
    logits[:, 140:] = float("-inf")
    top_h, typical, epsilon, eta = (torch.tensor(column) for column in zip(*settings, strict=True))
    found = entropy_filters.last(entropy_filters.top_h(logits, top_h), typical, epsilon, eta)
    for row, (h, t, e, n) in enumerate(settings):
        want = logits[row : row + 1]
        want = TopHLogitsWarper(h)(None, want) if h else want
        want = TypicalLogitsWarper(t)(None, want) if t < 1 else want
        want = EpsilonLogitsWarper(e)(None, want) if e else want
        want = EtaLogitsWarper(n)(None, want) if n else want
        assert torch.equal(found[row], want[0]), settings[row]
        assert (h == e == n == 0 and t == 1) or not torch.equal(found[row], logits[row])


def test_a_draw_takes_what_the_filters_leave():
    logits, rows = torch.tensor([[3.0, 2.0, 1.0, 0.0]]), 200
    ones = torch.ones(rows)
    how = sampling(ones, ones.int() * 0, ones, ones * 0, torch.arange(rows), epsilon_cutoff=ones * 0.2)
    assert set(sample.sample(logits.expand(rows, -1), how, ones.int(), by_entropy=True).tolist()) == {0, 1}
    assert set(sample.sample(logits.expand(rows, -1), how, ones.int()).tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize("setting", SETTINGS)
def test_draws_follow_the_exact_distribution(setting):
    torch.manual_seed(1)
    logits, draws = torch.randn(1, 20) * 1.5, 6000
    params = [torch.tensor([value]).expand(draws) for value in setting]
    seeds = torch.full((draws,), 1234567890123)
    token = sample.sample(logits.expand(draws, -1), sampling(*params, seeds), torch.arange(draws))
    exact = hugging_face(logits, *setting).softmax(-1)[0]
    counts = torch.bincount(token, minlength=20).double()
    kept = exact > 0
    assert counts[~kept].sum() == 0
    expected = exact[kept].double() * draws
    chi_square = ((counts[kept] - expected) ** 2 / expected).sum()
    # mean n - 1, deviation sqrt(2 (n - 1)): six deviations
    freedom = max(int(kept.sum()) - 1, 1)
    assert chi_square < freedom + 6 * (2 * freedom) ** 0.5


def test_a_row_draws_the_same_in_any_batch_and_another_with_another_seed():
    torch.manual_seed(2)
    logits = torch.randn(8, 500)
    columns = [torch.full((8,), 0.9), torch.full((8,), 50), torch.full((8,), 0.95), torch.full((8,), 0.01)]
    seeds, positions = torch.arange(8) * 7919 + 2**40, torch.arange(8) + 3
    together = sample.sample(logits, sampling(*columns, seeds), positions)
    for row in range(8):
        alone = sample.sample(logits[[row]], sampling(*(c[:1] for c in columns), seeds[[row]]), positions[[row]])
        assert alone == together[row]
    others = [sample.sample(logits, sampling(*columns, seeds + n), positions) for n in range(1, 20)]
    assert torch.stack(others).ne(together).any(0).all()


def test_temperature_zero_is_greedy_with_the_models_log_probability():
    logits = torch.randn(3, 50)
    zeros = torch.zeros(3)
    token = sample.sample(logits, sampling(zeros, zeros.int(), zeros + 1, zeros, zeros.long()), zeros.int())
    logprob = sample.log_probability(logits, token)
    want, want_logprob = sample.greedy(logits)
    assert torch.equal(token, want) and torch.equal(token, logits.argmax(-1))
    torch.testing.assert_close(logprob, want_logprob)
    torch.testing.assert_close(logprob, logits.log_softmax(-1).max(-1).values)


def test_the_factual_nucleus_shrinks_and_is_reset():
    """Lee et al. (arXiv:2206.04624): p_t = max(top_p_min, p · top_p_decay^t), whole again after the reset token."""
    sent, p, found = [4, 9, 5, 6, 9, 7, 7, 7], 0.9, []
    zeros = torch.zeros(1)
    state = sampling(zeros + 1, zeros.int(), zeros + p, zeros, zeros.long(), top_p_decay=zeros + 0.5,
                     top_p_min=zeros + 0.2, top_p_reset_id=zeros.int() + 9)  # fmt: skip
    slots = torch.tensor([0])
    for length, token in enumerate(sent, 2):
        found.append(float(state.rows(slots).nucleus))
        history = SimpleNamespace(tokens=torch.full((1, 12), token), lengths=torch.tensor([length]))
        state.after(slots, history)
    torch.testing.assert_close(found, [0.9, 0.45, 0.9, 0.45, 0.225, 0.9, 0.45, 0.225])


def test_a_nucleus_that_does_not_decay_stays_where_it_is():
    zeros = torch.zeros(1)
    state = sampling(
        zeros + 1, zeros.int(), zeros + 0.1, zeros, zeros.long(), top_p_min=zeros + 0.3, decay_steps=zeros.int() + 5
    )
    assert float(state.nucleus) == pytest.approx(0.1)
