"""Drawing a token without a sort: what a program does for a row.

What top-k, top-p and min-p keep are the likeliest tokens down to some last one. So who draws a token beyond it draws
again among those that are likelier than it, with the same noise: what passes in the end is the largest sum of score and
noise among what is kept.
"""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit


@jit
def _mix(x):
    """Applies MurmurHash3's finalizer to 32 bits."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@jit
def noise(seed, position, i):
    """Returns standard Gumbel noise: see vlm.ops.sampling.sample.gumbel."""
    row = _mix(seed.to(tl.uint32)) ^ _mix((seed >> 32).to(tl.uint32) + 0x51ED270B)
    row = _mix(_mix(row) ^ (position.to(tl.uint32) + 0x2545F491))
    bits = _mix(row ^ (i.to(tl.uint32) * 0x9E3779B1))
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    # near 1, where the noise is large, a fast logarithm has no digit left: 2 atanh(s) is -log(1 - (1 - u))
    s = (1.0 - uniform) / (1.0 + uniform)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return -tl.log(tl.where(uniform > 0.5, 2.0 * s * series, -tl.log(uniform)))


@jit
def scaled(x, temperature):
    return tl.div_rn(x, tl.broadcast_to(temperature, x.shape))


@jit
def ordered(bits):
    """Turns the bits of numbers into integers that are in their order, and back."""
    return tl.where(bits < 0, bits ^ 2147483647, bits)


@jit
def _count(scores_ptr, temperature, least, V, CHUNK: tl.constexpr):
    """Counts the scaled scores that are at least so high."""
    count = tl.zeros([CHUNK], tl.int32)
    for begin in range(0, V, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        x = scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
        count += ((ordered(x.to(tl.int32, bitcast=True)) >= least) & (x == x) & (i < V)).to(tl.int32)
    return tl.sum(count)


@jit
def _kth_of_all(scores_ptr, temperature, k, V, CHUNK: tl.constexpr):
    """Returns the k-th highest scaled score, a bit at a time."""
    kth = tl.where(_count(scores_ptr, temperature, 0, V, CHUNK) >= k, 0, -2147483648)
    for bit in range(30, -1, -1):
        higher = kth | (1 << bit)
        kth = tl.where(_count(scores_ptr, temperature, higher, V, CHUNK) >= k, higher, kth)
    return ordered(kth).to(tl.float32, bitcast=True)


@jit
def _kth(x, k):
    """Returns the k-th highest of a tile, a bit at a time."""
    x = ordered(x.to(tl.int32, bitcast=True))
    kth = tl.where(tl.sum((x >= 0).to(tl.int32)) >= k, 0, -2147483648)
    for bit in range(30, -1, -1):
        higher = kth | (1 << bit)
        kth = tl.where(tl.sum((x >= higher).to(tl.int32)) >= k, higher, kth)
    return ordered(kth).to(tl.float32, bitcast=True)


@jit
def _is_above(x, i, value, token):
    """Says what comes before a token: what is likelier, and of equals the first."""
    return (x > value) | ((x == value) & (i < token))


@jit
def _mass(scores_ptr, temperature, top, value, token, V, CHUNK: tl.constexpr):
    """Sums, relative to the likeliest, the probabilities of what comes before a token."""
    mass = tl.zeros([CHUNK], tl.float32)
    for begin in range(0, V, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        x = scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
        mass += tl.where(_is_above(x, i, value, token), tl.exp(x - top), 0.0)
    return tl.sum(mass)


@jit
def _redrawn(scores_ptr, temperature, seed, position, value, token, V, CHUNK: tl.constexpr):
    """Draws among what comes before a token; -1 where nothing does."""
    best = tl.full([CHUNK], -float("inf"), tl.float32)
    at = tl.zeros([CHUNK], tl.int32) - 1
    for begin in range(0, V, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        x = scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
        drawn = tl.where(_is_above(x, i, value, token), x + noise(seed, position, i), -float("inf"))
        at, best = tl.where(drawn > best, i, at), tl.maximum(drawn, best)
    return tl.min(tl.where(best == tl.max(best), at, 2147483647))


@jit
def drawn_of_top_k(
    scores_ptr, groups_ptr, chosen_ptr, likeliest, temperature, top, k, p, min_p, seed, position, V, num_groups,
    GROUPS: tl.constexpr, MOST: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Draws among the k highest, which lie in those groups whose highest are among the k highest of these; -1 where
    these groups are more than MOST, or all of them fewer than k."""
    g = tl.arange(0, GROUPS)
    highest = tl.load(groups_ptr + g, mask=g < num_groups, other=-float("inf"))
    is_in = (highest >= _kth(highest, k)) & (highest > -float("inf"))
    count, token = tl.sum(is_in.to(tl.int32)), -1
    if (k <= num_groups) & (count <= MOST):
        tl.store(chosen_ptr + tl.cumsum(is_in.to(tl.int32)) - 1, g, mask=is_in)
        tl.debug_barrier()  # what others have chosen is read
        n = tl.arange(0, MOST * GROUP)
        i = tl.load(chosen_ptr + n // GROUP, mask=n // GROUP < count, other=0) * GROUP + n % GROUP
        there = (n // GROUP < count) & (i < V)
        x = tl.load(scores_ptr + i, mask=there, other=-float("inf")).to(tl.float32)
        x = tl.where(there & (x == x), scaled(x, temperature), -float("inf"))
        x = tl.where(x >= _kth(x, k), x, -float("inf"))
        share = tl.where(x == top, 1.0, tl.exp(x - top))  # infinite ones have no difference
        whole = tl.sum(share)
        drawn = tl.where(share >= min_p, x + noise(seed, position, i), -float("inf"))
        passes = count > MOST  # not yet
        while not passes:  # each turn looks at fewer, and the likeliest ends it
            best = tl.max(drawn)
            first = tl.min(tl.where(drawn == best, i, 2147483647))
            token = tl.where(best > -float("inf"), first, likeliest)  # pyright: ignore[reportOperatorIssue]
            value = tl.max(tl.where(i == token, x, -float("inf")))
            above = _is_above(x, i, value, token)
            before = tl.sum(tl.where(above, share, 0.0))
            passes = (p >= 1.0) | (before < p * whole) | (token == likeliest)
            drawn = tl.where(above, drawn, -float("inf"))
    return token


@jit
def drawn_of_all(
    scores_ptr, token, likeliest, temperature, top, whole, k, p, min_p, seed, position, V, CHUNK: tl.constexpr
):
    """Draws again until a token passes; `token`: what was drawn from all, of which exponentials add up to `whole`."""
    floor = -float("inf")
    if (k > 0) & (k < V):
        floor = _kth_of_all(scores_ptr, temperature, k, V, CHUNK)
        if p < 1.0:
            whole = _mass(scores_ptr, temperature, top, floor, V, V, CHUNK)
    # the likeliest alone may make up p
    token = tl.where((p < 1.0) & (p * whole <= 1.0), likeliest, token)
    passes = token == likeliest
    while not passes:
        value = tl.div_rn(tl.load(scores_ptr + token).to(tl.float32), temperature)
        passes = (value >= floor) & (tl.exp(value - top) >= min_p)
        if passes & (p < 1.0):
            passes = _mass(scores_ptr, temperature, top, value, token, V, CHUNK) < p * whole
        if not passes:
            below = value < floor
            value, token = tl.where(below, floor, value), tl.where(below, V, token)
            token = _redrawn(scores_ptr, temperature, seed, position, value, token, V, CHUNK)
            passes = (token == likeliest) | (token < 0)
            token = tl.where(token < 0, likeliest, token)
    return token
