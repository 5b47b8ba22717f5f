"""Proposes the next tokens of each sequence from a text that it may repeat: what its encoder read, and its own tokens.

Saxena, Prompt Lookup Decoding (2023); Leviathan et al., Speculative Decoding (arXiv:2211.17192). What followed the
longest earlier match of the last tokens is proposed, the latest of equal ones; a match that overlaps the end repeats
with its period.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vlm.ops.state.drafts import MAX_NGRAM, NONE, DraftState
from vlm.ops.state.sequences import SequenceState
from vlm.requests.finish import RUNNING


def reference(state: SequenceState, drafts: DraftState, slots: Tensor, count: int, vocab_size: int) -> Tensor:
    s = slots.long()
    length = state.lengths[s].long()
    text = _texts(state, drafts, s, vocab_size)
    end = (drafts.sources.shape[1] + 1 + length)[:, None]
    match_lengths = _match_lengths(text, end)
    places = torch.arange(text.shape[1], device=s.device)
    # the longest, then the latest
    place = (match_lengths * text.shape[1] + places).argmax(1, keepdim=True)
    ahead = torch.arange(count, device=s.device)
    tokens = text.gather(1, place + ahead % (end - place).clamp(min=1))  # the last place where nothing matches
    most = torch.minimum(drafts.limits[s], state.max_lengths[s] - length - 1)
    allowed = (match_lengths.gather(1, place) > 0) & (ahead < most[:, None]) & (state.finish[s] == RUNNING)[:, None]
    proposed = (allowed & (tokens != NONE)).int().cumprod(1)
    drafts.num_drafted.index_add_(0, s, proposed.sum(1, dtype=torch.int32))
    return torch.where(proposed.bool(), tokens, NONE).T.contiguous()


def propose(state: SequenceState, drafts: DraftState, slots: Tensor, count: int, vocab_size: int) -> Tensor:
    """Proposes the next `count` tokens of the slots [R] int32, each another one or padding -> [count, R] int32, NONE
    from where there is no more to propose, and counts them. None lies beyond a sequence's last token but one, which
    ends it anyway."""
    if slots.is_cuda:
        from vlm.ops.kernels.prompt_lookup import propose as kernel

        return kernel(state, drafts, slots, count, vocab_size)
    return reference(state, drafts, slots, count, vocab_size)


def _texts(state: SequenceState, drafts: DraftState, s: Tensor, vocab_size: int) -> Tensor:
    """Returns what each of the slots `s` [R] may repeat, [R, T]: its source, a gap, its tokens; NONE for what is no
    token of the decoder."""
    source = _held(drafts.sources[s], drafts.source_lengths[s])
    text = torch.cat((F.pad(source, (0, 1), value=NONE), _held(state.tokens[s], state.lengths[s])), 1)
    return text.masked_fill(text >= vocab_size, NONE)


def _held(rows: Tensor, lengths: Tensor) -> Tensor:
    inside = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
    return rows.masked_fill(~inside, NONE)


def _match_lengths(text: Tensor, end: Tensor) -> Tensor:
    """Returns how many tokens before each place of the texts [R, T] are those before their ends [R, 1], up to
    MAX_NGRAM; 0 where no token follows."""
    lengths, same = torch.zeros_like(text, dtype=torch.int64), text != NONE
    for back in range(1, MAX_NGRAM + 1):
        last = text.gather(1, (end - back).clamp(min=0))
        earlier = F.pad(text, (back, 0), value=NONE)[:, : text.shape[1]]
        same = same & (earlier == last) & (last != NONE)
        lengths = lengths + same
    return lengths
