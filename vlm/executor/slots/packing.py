"""Which sequences share a pass of a compiled graph, where they are padded to the longest of them."""

from __future__ import annotations

from vlm.requests.sequence import PrefillChunk, Sequence

UNEVEN = 2  # sequences are padded to at most so many times their length


def neighbours(
    chunks: list[tuple[Sequence, PrefillChunk]], max_seq_len: int
) -> list[list[tuple[Sequence, PrefillChunk]]]:
    """Returns groups whose slots follow one another, of lengths that are alike, and whose padding fits the cache."""
    groups: list[list[tuple[Sequence, PrefillChunk]]] = []
    for one in sorted(chunks, key=lambda one: one[0].slot):
        group = groups[-1] if groups else []
        lengths = [chunk.end - chunk.start for _, chunk in (*group, one)]
        fits = max(chunk.start for _, chunk in (*group, one)) + max(lengths) <= max_seq_len
        follows = bool(group) and group[-1][0].slot + 1 == one[0].slot
        if follows and fits and max(lengths) <= UNEVEN * min(lengths):
            group.append(one)
        else:
            groups.append([one])
    return groups


def alike(sequences: list[Sequence]) -> list[list[Sequence]]:
    """Returns groups of similar numbers of encoder rows."""
    groups: list[list[Sequence]] = []
    for sequence in sorted(sequences, key=lambda s: s.num_features):
        if groups and sequence.num_features <= UNEVEN * groups[-1][0].num_features:
            groups[-1].append(sequence)
        else:
            groups.append([sequence])
    return groups
