"""When a step drafts: tokens are proposed for its sequences and verified in one pass, where that pays.

The rule follows from tokens alone, not from clocks: all ranks of a model come to the same.
"""

from __future__ import annotations

from vlm.executor.decode_burst import DecodeBurst, StepOutput
from vlm.requests.sequence import Sequence

# of a pass: up to so many it takes about as long as one of few, which reads all weights, too
MOST_ROWS = 64
# tokens more that a step must bring each sequence: what a pass of more rows takes longer, and some
LEAST_GAIN = 0.3
MEMORY = 16  # steps after which half of what was known of a sequence is forgotten
RETRY = 256  # plain steps after which a sequence that has gained nothing is tried again


def drafts_of(sequences: list[Sequence], most: int) -> int:
    """Returns how many tokens the next burst proposes for each sequence: `most`, or 0 where it would not pay."""
    if not most or sum(sequence.width for sequence in sequences) * (1 + most) > MOST_ROWS:
        return 0
    gain = sum(sequence.draft_gain for sequence in sequences if sequence.max_drafts)
    return most if gain >= LEAST_GAIN * len(sequences) and gain > 0 else 0


def most_new(sequence: Sequence, steps: int, drafts: int) -> int:
    """Returns how many tokens a burst with so many drafts brings a sequence at most."""
    return steps * (1 + min(drafts, sequence.max_drafts))


def learn(sequence: Sequence, row: StepOutput, burst: DecodeBurst) -> None:
    """Takes over what a burst's drafts made of a sequence that may have some, before its tokens are."""
    sequence.scheduled -= most_new(sequence, burst.steps, burst.drafts) - (row.length - len(sequence.tokens))
    if burst.drafts:
        gain, share = (row.num_accepted - sequence.num_accepted) / burst.steps, burst.steps / (burst.steps + MEMORY)
        sequence.draft_gain += share * (gain - sequence.draft_gain)
    else:
        sequence.draft_gain += LEAST_GAIN * burst.steps / RETRY
    sequence.num_drafted, sequence.num_accepted = row.num_drafted, row.num_accepted
