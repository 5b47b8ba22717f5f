"""Which sequences share a pass of a compiled graph, where they are padded to the longest of them."""

from __future__ import annotations

from vlm.requests.sequence import Sequence, Span

UNEVEN = 2  # sequences are padded to at most so many times their length


def neighbours(spans: list[tuple[Sequence, Span]], max_seq_len: int) -> list[list[tuple[Sequence, Span]]]:
    """Groups whose slots follow one another, of lengths that are alike, and whose padding fits the cache."""
    groups: list[list[tuple[Sequence, Span]]] = []
    for one in sorted(spans, key=lambda one: one[0].slot):
        group = groups[-1] if groups else []
        lengths = [span.end - span.start for _, span in (*group, one)]
        fits = max(span.start for _, span in (*group, one)) + max(lengths) <= max_seq_len
        follows = bool(group) and group[-1][0].slot + 1 == one[0].slot
        if follows and fits and max(lengths) <= UNEVEN * min(lengths):
            group.append(one)
        else:
            groups.append([one])
    return groups


def alike(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Groups of similar numbers of encoder rows."""
    groups: list[list[Sequence]] = []
    for sequence in sorted(sequences, key=lambda s: s.num_features):
        if groups and sequence.num_features <= UNEVEN * groups[-1][0].num_features:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
