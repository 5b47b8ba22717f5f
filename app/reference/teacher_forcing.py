"""An engine on a reference's tokens: what it chooses after each of their beginnings, and how far its log-probabilities
are from the reference's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request

MASKED = -1e3  # a log-probability below is a mask's
FLAT = 1e-6  # the least deviation that counts


@dataclass(frozen=True)
class Place:
    """What an engine says after a beginning of the reference's tokens."""

    token: int
    logprobs: dict[int, float]  # of its token and of the likeliest ones


@dataclass(frozen=True)
class Distance:
    """How far one place is from the reference's, in standard deviations of the reference's log-probabilities over the
    vocabulary: what rounding does grows with them."""

    same: bool  # the token is the reference's
    error: float  # largest difference of a log-probability
    margin: float  # how much likelier the reference's token is than the engine's, to the reference


def places(pipeline: Pipeline, requests: list[Request], theirs: list[list[int]]) -> list[list[Place]]:
    """Returns a place for each of the reference's tokens.

    The engine decodes freely, all requests in one batch; where its token is another one than the reference's, it goes
    on after the reference's in the next round.
    """
    sequences: list[list[Place]] = [[] for _ in requests]
    while short := [i for i, tokens in enumerate(theirs) if len(sequences[i]) < len(tokens)]:
        rest = [_after(requests[i], theirs[i], len(sequences[i])) for i in short]
        for i, own in zip(short, _decoded(pipeline, rest), strict=True):
            sequences[i] += _up_to_divergence(own, theirs[i][len(sequences[i]) :])
    return sequences


def _after(request: Request, tokens: list[int], count: int) -> Request:
    """Returns the request as it goes on after the first `count` of the tokens."""
    params, room = request.params, len(tokens) - count
    prompt = (*request.decoder_prompt_token_ids, *tokens[:count])
    return replace(
        request,
        decoder_prompt_token_ids=prompt,
        params=replace(params, max_new_tokens=room, min_new_tokens=min(room, max(0, params.min_new_tokens - count))),
    )


def _decoded(pipeline: Pipeline, requests: list[Request]) -> list[list[Place]]:
    return [
        [
            Place(token, {**top, token: own})
            for token, own, top in zip(output.token_ids, output.logprobs, output.top_logprobs, strict=True)
        ]
        for output in pipeline.complete(requests)
    ]


def _up_to_divergence(own: list[Place], tokens: list[int]) -> list[Place]:
    """Returns the places that follow the reference's tokens alone, the first other token's included."""
    pairs = zip(own, tokens, strict=False)
    same = next((i for i, (place, token) in enumerate(pairs) if place.token != token), len(tokens) - 1)
    return own[: same + 1]


def distances(ours: list[Place], theirs: list[int], exact: Tensor, forced: frozenset[int]) -> list[Distance]:
    """Returns how far each place is; exact [tokens, vocabulary]: the reference's log-probabilities. A token that was
    `forced` has the log-probability 0, which is not the model's."""
    return [_distance(place, token, row, forced=forced) for place, token, row in zip(ours, theirs, exact, strict=True)]


def _distance(place: Place, token: int, exact: Tensor, *, forced: frozenset[int]) -> Distance:
    logprobs = {i: p for i, p in place.logprobs.items() if not (p == 0.0 and i in forced)}
    error = float((exact[list(logprobs)] - torch.tensor(list(logprobs.values()))).abs().max())
    deviation = max(float(exact[exact > MASKED].std()), FLAT)
    margin = 0.0 if place.token == token else max(0.0, float(exact[token] - exact[place.token]))
    return Distance(place.token == token, error / deviation, margin / deviation)
