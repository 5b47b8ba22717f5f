"""One check a kernel: random inputs, ragged, against the reference. Run on Triton's interpreter and on a GPU."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from unittest.mock import patch

import torch

from tests.kits.kernels.step_end_cases import (
    append_and_check_stop,
    append_likeliest,
    append_sampled,
    penalize,
    topk_logprobs,
)
from vlm.layers.quant.fp8 import Fp8
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.int8 import Int8
from vlm.ops import activation as activation_op
from vlm.ops import add_layer_norm as norm_op
from vlm.ops import add_rms_norm as rms_op
from vlm.ops import embed as embed_op
from vlm.ops import rotary_angles as angles_op
from vlm.ops.attention import kv_write as write_op
from vlm.ops.attention import merged_attention as merged_op
from vlm.ops.attention import packed_attention as packed_op
from vlm.ops.attention import paged_attention as attention_op
from vlm.ops.attention import prefill_attention as prefill_op
from vlm.ops.attention import rotary as rotary_op
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import activation as activation_kernel
from vlm.ops.kernels import add_lora as lora_kernel
from vlm.ops.kernels import add_norm as norm_kernel
from vlm.ops.kernels import beam_search as beam_kernel
from vlm.ops.kernels import copy_blocks as copy_kernel
from vlm.ops.kernels import embed as embed_kernel
from vlm.ops.kernels import kv_write as write_kernel
from vlm.ops.kernels import last_tokens as last_tokens_kernel
from vlm.ops.kernels import linear as linear_kernel
from vlm.ops.kernels import merged_attention as merged_kernel
from vlm.ops.kernels import packed_attention as packed_kernel
from vlm.ops.kernels import paged_attention as attention_kernel
from vlm.ops.kernels import prefill_attention as prefill_kernel
from vlm.ops.kernels import prompt_lookup as lookup_kernel
from vlm.ops.kernels import qk_norm as qk_norm_kernel
from vlm.ops.kernels import quantized_linear as quantized_kernel
from vlm.ops.kernels import rotary as rotary_kernel
from vlm.ops.kernels import scale_rows as scale_kernel
from vlm.ops.kernels import unpack as unpack_kernel
from vlm.ops.kernels import w8a8 as w8a8_kernel
from vlm.ops.kernels import widen as widen_kernel
from vlm.ops.kernels.norms_ahead import NormsAhead
from vlm.ops.layouts.lora_matrices import LoraMatrices
from vlm.ops.layouts.paged_kv import ARRIVALS, KVCache, NewTokens, PagedKV, quantized
from vlm.ops.products import add_lora as lora_op
from vlm.ops.products import scale_rows as scale_op
from vlm.ops.products import w8a8 as w8a8_op
from vlm.ops.sampling import beam_search as beam_op
from vlm.ops.sampling import last_tokens as last_tokens_op
from vlm.ops.sampling import prompt_lookup as lookup_op
from vlm.ops.state.beams import RowScores

SLOTS = 6
# capped alone, windows of one key, of fewer keys than a tile and of more
VARIANTS = (PLAIN, *(AttentionVariant(*each) for each in ((2.0, None), (None, 0), (3.0, 67), (5.0, 6))))
H200 = SimpleNamespace(multi_processor_count=132)


def _ints(high: int, *size: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, size, dtype=torch.int32)


def _shared_out(device: torch.device, turn: int, turns: int, *axes: Iterable) -> list[tuple]:
    """Returns the combinations of these values that shape number `turn` of so many is run with: on a GPU all; in the
    interpreter, which takes a second for each, a part, so that each combination has one of the shapes."""
    combinations = [*itertools.product(*axes)]
    return combinations if device.type == "cuda" else combinations[turn % turns :: turns]


def _blocks(device: torch.device, width: int) -> int:
    """Returns how many blocks a table has: in the interpreter, which takes milliseconds for each, a quarter of them."""
    return width if device.type == "cuda" else max(width // 4, 5)


KINDS = (torch.float32, torch.int8, torch.float8_e4m3fn)  # of what a cache keeps


def _empty(blocks: int, heads: int, block_size: int, dim: int, dtype: torch.dtype, device: torch.device) -> PagedKV:
    size = {"heads": heads, "block_size": block_size, "head_dim": dim}
    cache = KVCache.zeros(range(1), blocks, **size, dtype=dtype, device=device)
    return dataclasses.replace(cache, tokens_first=False).layer(0)  # as on a GPU


def _kept(keys: torch.Tensor, values: torch.Tensor, device: torch.device) -> list[PagedKV]:
    """Returns blocks of these keys and values [N, H, block, D], as every kind of cache keeps them."""
    arrivals = torch.zeros(ARRIVALS, dtype=torch.int32, device=device)
    kinds = [PagedKV(keys.to(device), values.to(device), arrivals=arrivals)]
    for dtype in KINDS[1:]:
        blocks, heads, size, dim = keys.shape
        kv = _empty(blocks, heads, size, dim, dtype, device)
        for (kept, scales), given in zip(
            ((kv.keys, kv.key_scales), (kv.values, kv.value_scales)), kinds[0], strict=False
        ):
            values_, scale = quantized(given.nan_to_num(7.0), dtype)
            kept.copy_(values_)
            scales.copy_(scale)
        kinds.append(kv)
    return kinds


def _check_written(ours: PagedKV, theirs: PagedKV, count: int, atol: float) -> None:
    """Compares two layers' blocks, which were empty, with so many values written."""
    written = (ours.key_scales > 0).sum() * ours.keys.shape[3] if ours.is_quantized else ours.values.count_nonzero()
    assert written == count
    _check_equal(ours, theirs, atol)


def _check_equal(ours: PagedKV, theirs: PagedKV, atol: float) -> None:
    """Compares two layers' blocks; in 8 bits few values may be one step apart, of e4m3 in Triton's interpreter a power
    of two: it does not carry."""
    if not ours.is_quantized:
        for a, b in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
            torch.testing.assert_close(a, b, atol=atol, rtol=1e-5 if atol else 0.0)
        return
    for a, b in ((ours.key_scales, theirs.key_scales), (ours.value_scales, theirs.value_scales)):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    for a, b in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        apart = (a.float() - b.float()).abs()
        assert (apart > 0).float().mean() < 0.01 and apart.max() <= (1 if a.dtype == torch.int8 else 64)


def paged_attention(device: torch.device) -> None:
    # (rows, heads, head size, block size, blocks a table): one and several splits, odd head sizes
    shapes = ((3, 2, 12, 8, 5), (1, 4, 64, 16, 40), (5, 3, 80, 16, 9), (2, 2, 32, 8, 64))
    for turn, (rows, heads, dim, block, most) in enumerate(shapes):
        width = _blocks(device, most)
        keys, values = (torch.randn(99, heads, block, dim) for _ in range(2))
        # what lies beyond a sequence's length must not matter
        keys[-1], values[-1] = float("nan"), float("nan")
        tables = _ints(98, SLOTS, width)
        slots, lengths = _ints(SLOTS, rows), _ints(width * block + 1, rows, low=1)
        lengths[0] = 1
        tables[slots[0].item(), 1:] = 98
        lengths[slots == slots[0]] = 1
        q = torch.randn(rows, 3, heads, dim)[:, 1]
        arguments = [x.to(device) for x in (tables, slots, lengths)]
        attention_kernel.device_properties, attention_kernel.SPLIT_TILE = lambda index: H200, 16
        biases, variants = (None, torch.randn(heads, 2 * 7 + 1, device=device)), (PLAIN, VARIANTS[-1])
        for kv, bias, variant in _shared_out(device, turn, 4, _kept(keys, values, device), biases, variants):
            options = (*arguments, dim**-0.5, bias, variant)
            want = attention_op.reference(q.to(device), kv, *options)
            found = attention_kernel.paged_attention(q.to(device), kv, *options)
            torch.testing.assert_close(found, want, atol=3e-6, rtol=1e-5)


def _check_16_bits(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], q: torch.Tensor, kv: PagedKV, *both: tuple
) -> None:
    """Compares attention in 16 bits over a cache of 8 with that in float32: with what is about 1, and, in bfloat16,
    with queries, scales of keys and of values that float16 has not. `both`: our further arguments, and theirs. On a
    GPU: the interpreter has none of its instructions."""
    if kv.keys.device.type != "cuda" or not kv.is_quantized:
        return
    assert kv.key_scales is not None and kv.value_scales is not None
    far = kv._replace(key_scales=kv.key_scales * 1e-6, value_scales=kv.value_scales * 1e-9)
    for dtype, cache, larger, smaller in (
        (torch.float16, kv, 1.0, 1.0), (torch.bfloat16, kv, 1.0, 1.0), (torch.bfloat16, far, 1e6, 1e-9)
    ):  # fmt: skip
        rounded = (q * larger).to(kv.keys.device, dtype)
        near = ours(rounded, cache, *both[0]).float() / smaller
        want = theirs(rounded.float(), cache, *both[-1]) / smaller
        torch.testing.assert_close(near, want, atol=0.02, rtol=0.02)


def grouped_attention(device: torch.device) -> None:
    # several query heads a head of keys: groups that are no power of two, one head for all, padded head sizes
    shapes = ((3, 6, 2, 12, 8, 5), (2, 20, 1, 32, 16, 20), (4, 4, 2, 64, 8, 30), (1, 4, 2, 16, 8, 140))
    for turn, (rows, heads, kv_heads, dim, block, most) in enumerate(shapes):
        width = _blocks(device, most)
        keys, values = (torch.randn(99, kv_heads, block, dim) for _ in range(2))
        tables, slots = _ints(99, SLOTS, width), _ints(SLOTS, rows)
        lengths = _ints(width * block + 1, rows, low=1)
        q = torch.randn(rows, 2, heads, dim)[:, 1]
        arguments = [x.to(device) for x in (tables, slots, lengths)]
        attention_kernel.device_properties, attention_kernel.SPLIT_TILE = lambda index: H200, 16
        for kv, variant in _shared_out(device, turn, 4, _kept(keys, values, device), VARIANTS):
            options = (*arguments, dim**-0.5, None, variant)
            want = attention_op.reference(q.to(device), kv, *options)
            found = attention_kernel.paged_attention(q.to(device), kv, *options)
            torch.testing.assert_close(found, want, atol=3e-6, rtol=1e-5)
            _check_16_bits(attention_kernel.paged_attention, attention_op.reference, q, kv, options)


def merged_attention(device: torch.device) -> None:
    # sequences and encoders' outputs of any lengths, in tables of different widths: one split and several
    shapes = ((3, 4, 1, 12, 8, (5, 9)), (2, 6, 2, 32, 16, (20, 3)), (5, 2, 2, 64, 8, (4, 30)))
    for turn, (rows, heads, kv_heads, dim, block, most) in enumerate(shapes):
        widths = [_blocks(device, width) for width in most]
        keys, values = (torch.randn(99, kv_heads, block, dim) for _ in range(2))
        keys[-1], values[-1] = float("nan"), float("nan")
        tables, slots = tuple(_ints(98, SLOTS, width).to(device) for width in widths), _ints(SLOTS, rows)
        lengths = [_ints(width * block + 1, rows, low=1) for width in widths]
        lengths[0][0], lengths[1][-1] = 1, 1
        tables[0][slots[0].item(), 1:] = 98
        lengths[0][slots == slots[0]] = 1
        q, whole = torch.randn(rows, 2, heads, dim, device=device)[:, 1], tuple(x.to(device) for x in lengths)
        attention_kernel.device_properties, attention_kernel.SPLIT_TILE = lambda index: H200, 16
        for kv, variant in _shared_out(device, turn, 3, _kept(keys, values, device), VARIANTS):
            options = (tables, slots.to(device), whole, dim**-0.5, variant)
            found = merged_kernel.merged_attention(q, kv, *options)
            torch.testing.assert_close(found, merged_op.reference(q, kv, *options), atol=5e-6, rtol=1e-5)
            _check_16_bits(merged_kernel.merged_attention, merged_op.reference, q, kv, options)
            assert kv.arrivals is not None and not kv.arrivals.any()


def step_attention(device: torch.device) -> None:
    # turned in part, wholly and not at all; one and several splits; the new token alone; groups of query heads
    shapes = ((3, 2, 2, 12, 8, 5), (2, 4, 4, 64, 16, 40), (5, 6, 2, 20, 8, 9), (3, 20, 1, 32, 16, 20))
    for turn, (rows, heads, kv_heads, dim, block, most) in enumerate(shapes):
        width = _blocks(device, most)
        tables = torch.randperm(SLOTS * width, dtype=torch.int32).view(SLOTS, width).to(device)
        slots = torch.randperm(SLOTS, dtype=torch.int32)[:rows].to(device)
        lengths = _ints(width * block + 1, rows, low=1)
        lengths[0] = 1
        parts = torch.randn(rows, heads + 2 * kv_heads, dim, device=device).split((heads, kv_heads, kv_heads), 1)
        attention_kernel.device_properties, attention_kernel.SPLIT_TILE = lambda index: H200, 16
        keys, values = (torch.randn(SLOTS * width, kv_heads, block, dim) for _ in range(2))
        biases = (None, torch.randn(heads, 2 * 7 + 1, device=device)) if heads == kv_heads else (None,)
        for half, bias, kind in _shared_out(device, turn, 2, (0, dim // 2, 2), biases, range(len(KINDS))):
            variant = VARIANTS[-1] if half == 2 else PLAIN
            angles = torch.randn(rows, 2, half, device=device) if half else None
            places = lengths.to(device) - 1
            new = NewTokens(*parts[1:], places, angles)
            q = parts[0] if angles is None else rotary_op.rotate(parts[0], angles)
            k = parts[1] if angles is None else rotary_op.rotate(parts[1], angles)
            ours, theirs = (_kept(keys, values, device)[kind] for _ in range(2))
            arguments = (tables, slots, lengths.to(device), dim**-0.5, bias, variant)
            found = attention_kernel.paged_attention(parts[0], ours, *arguments, new)
            write_op.reference(k, parts[2], theirs, tables, slots, places)
            _check_equal(ours, theirs, atol=1e-6)
            # of ours: in 8 bits a value may have been written one step apart
            want = attention_op.reference(q, ours, *arguments)
            torch.testing.assert_close(found, want, atol=5e-6, rtol=1e-5)
            assert ours.arrivals is not None and not ours.arrivals.any()


def prefill_attention(device: torch.device) -> None:
    # (slot, first position, rows): a whole prompt, a later chunk, a single row, one beyond a tile
    spans = [(2, 0, 7), (0, 21, 5), (4, 3, 1), (1, 10, 70)]
    for heads, kv_heads, dim, block, variants in (
        (2, 2, 12, 8, VARIANTS), (4, 1, 32, 16, VARIANTS[::3]), (4, 2, 64, 16, VARIANTS[::4])
    ):  # fmt: skip
        keys, values = (torch.randn(60, kv_heads, block, dim, device=device) for _ in range(2))
        tables = _ints(60, SLOTS, 12).to(device)
        for kv in _kept(keys, values, device):
            for bias in (None, torch.randn(heads, 2 * 9 + 1, device=device)):
                _check_prefill(spans, kv, tables, heads, bias, variants)


def prefill_of_long_contexts(device: torch.device) -> None:
    # behind several tiles of keys, and behind one and all but one; blocks that tiles hold whole ones of, and others
    spans = [(3, 140, 70), (0, 62, 2), (4, 63, 1), (5, 255, 3), (1, 0, 66)]
    variants = (PLAIN, AttentionVariant(reach=130))
    for heads, kv_heads, dim, block, biases in ((4, 2, 32, 16, (None, torch.randn(4, 17))), (2, 1, 12, 24, (None,))):
        keys, values = (torch.randn(90, kv_heads, block, dim) for _ in range(2))
        tables = torch.full((SLOTS, 300 // block), 89, dtype=torch.int32)  # a block of what is nobody's
        keys[-1], values[-1] = float("nan"), float("nan")
        blocks = torch.randperm(89, dtype=torch.int32)
        for slot, position, rows in spans:
            whole, rest = divmod(position + rows, block)
            tables[slot, : whole + 1], blocks = blocks[: whole + 1], blocks[whole + 1 :]
            keys[tables[slot, whole], :, rest:], values[tables[slot, whole], :, rest:] = float("nan"), float("nan")
        near = PagedKV(keys.to(device, torch.float16), values.to(device, torch.float16))
        for kv in (*_kept(keys, values, device), near):
            for bias in biases:
                _check_prefill(spans, kv, tables.to(device), heads, None if bias is None else bias.to(device), variants)


def _check_prefill(
    spans: list[tuple[int, int, int]], kv: PagedKV, tables: torch.Tensor, heads: int, bias: torch.Tensor | None,
    variants: tuple[AttentionVariant, ...],
) -> None:  # fmt: skip
    """Compares attention of chunks, (slot, first position, rows) each, with the reference's."""
    rows, dim, device = sum(count for *_, count in spans), kv.keys.shape[3], kv.keys.device
    dtype = kv.keys.dtype if kv.keys.dtype is torch.float16 else torch.get_default_dtype()
    q = torch.randn(rows, 2, heads, dim, device=device)[:, 1].to(dtype)
    whole, tiles = (torch.tensor(prefill_op.tiles_of(spans, n), dtype=torch.int32) for n in (None, 64))
    tiles = torch.cat([tiles, torch.zeros(1, 4, dtype=torch.int32)]).to(device)
    shapes = [prefill_kernel.shape_of(q, kv, bias)]
    # a GPU has no registers for it in float32, and takes it in 16 bits
    if kv.is_quantized and bias is None and heads // kv.keys.shape[1] % 2 == 0 and rows > 99 and device.type == "cpu":
        shapes = [prefill_kernel.TOGETHER]
    if rows > 99 and dtype is torch.float32:  # one loop is what a GPU has there
        shapes.append(shapes[0]._replace(whole=False))
    for variant in variants:
        options = (dim**-0.5, bias, variant)
        want = prefill_op.reference(q, kv, tables, whole, *options)
        error = (2e-3, 2e-3) if dtype is torch.float16 else (5e-6, 1e-5)
        for shape in shapes:
            with patch.object(prefill_kernel, "shape_of", return_value=shape):
                found = prefill_kernel.prefill_attention(q, kv, tables, tiles, *options)
            torch.testing.assert_close(found, want, atol=error[0], rtol=error[1])
        ours, theirs = (tables, tiles, *options), (tables, whole, *options)
        _check_16_bits(prefill_kernel.prefill_attention, prefill_op.reference, q, kv, ours, theirs)


def widen(device: torch.device) -> None:
    for rows, values, width, apart in ((3, 20, 24, 20), (2, 3420, 3424, 3420), (5, 5001, 5008, 6000), (2, 8, 16, 9)):
        x = torch.randn(rows, apart, device=device)[:, :values]
        found = widen_kernel.widened(x, width)
        assert torch.equal(found, torch.nn.functional.pad(x, (0, width - values)))


def rotate(device: torch.device) -> None:
    """Of so many heads several have a program together; some of them it has alone."""
    for rows, heads, dim, half in ((1100, 4, 20, 8), (830, 5, 16, 8), (3, 5, 80, 40)):
        x = torch.randn(rows, 2 * heads, dim, device=device)[:, :heads]
        angles = torch.randn(rows, 2, half, device=device)
        torch.testing.assert_close(rotary_kernel.rotate(x, angles), rotary_op.rotate(x, angles))


def rotary(device: torch.device) -> None:
    rotary_kernel.FEW = 29  # which the last has more heads than
    for rows, heads, kv_heads, dim, half in ((5, 3, 3, 12, 6), (4, 4, 2, 32, 8), (2, 6, 1, 20, 10), (6, 5, 2, 24, 8)):
        tables = torch.randperm(SLOTS * 4, dtype=torch.int32).view(SLOTS, 4).to(device)
        slots, positions = torch.randperm(SLOTS, dtype=torch.int32)[:rows].to(device), _ints(32, rows).to(device)
        parts = torch.randn(rows, heads + 2 * kv_heads, dim, device=device).split((heads, kv_heads, kv_heads), 1)
        angles = torch.randn(rows, 2, half, device=device)
        for part in parts:
            torch.testing.assert_close(rotary_kernel.rotate(part, angles), rotary_op.rotate(part, angles))
        for dtype in KINDS:
            ours, theirs = (_empty(SLOTS * 4, kv_heads, 8, dim, dtype, device) for _ in range(2))
            want = rotary_op.reference(*parts, angles, theirs, tables, slots, positions)
            found = rotary_kernel.rotary_kv_write(*parts, angles, ours, tables, slots, positions)
            torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-5)
            _check_written(ours, theirs, rows * kv_heads * dim, atol=1e-6)


def rotary_angles(device: torch.device) -> None:
    """Positions of one axis and of three, near and far."""
    for half, scale in ((6, 1.0), (10, 1.25)):
        frequencies = 1.0 / 10000.0 ** (torch.arange(half, device=device) / half)
        for rows, dtype in ((1, torch.int32), (7, torch.int64)):
            positions = torch.randint(0, 50000, (3, rows), dtype=dtype).to(device)
            axes = torch.arange(half, device=device) % 3
            for given in ((positions[1], axes[:0]), (positions, axes)):
                at, by = given
                found = rotary_kernel.angles(at, frequencies, by, scale)
                want = angles_op.reference(at, frequencies, by, scale)
                torch.testing.assert_close(found, want, atol=2e-6, rtol=1e-5)


def qk_norm(device: torch.device) -> None:
    for rows, heads, kv_heads, dim in ((5, 4, 2, 12), (1, 16, 8, 128), (3, 2, 2, 20), (700, 4, 2, 12)):
        q, k, _ = torch.randn(rows, heads + 2 * kv_heads, dim, device=device).split((heads, kv_heads, kv_heads), 1)
        weights = torch.randn(2, dim, device=device)
        found = qk_norm_kernel.qk_norm(q, k, *weights, 1e-6)
        for x, weight, got in zip((q, k), weights, found, strict=True):
            torch.testing.assert_close(got, rms_op.reference(x, None, weight, 1e-6)[1], atol=1e-5, rtol=1e-5)


def embed(device: torch.device) -> None:
    for width in (12, 2100):
        weight, table = torch.randn(30, width, device=device), torch.randn(7, width, device=device)
        ids, at = _ints(40, 9).to(device), _ints(7, 9).to(device)
        ids[0], ids[1] = 29, 30
        for dtype in (torch.float32, torch.float16):
            arguments = (ids, weight.to(dtype), table, at, 3.5)
            torch.testing.assert_close(embed_kernel.embed(*arguments), embed_op.reference(*arguments), atol=0, rtol=0)
        plain = (ids.clamp(max=29), weight, None, None, 1.0)
        assert torch.equal(embed_kernel.embed(*plain), embed_op.reference(*plain))
        placed = (*arguments, at, torch.randn(9, width, device=device, dtype=torch.float16)[2:])
        assert torch.equal(embed_kernel.embed(*placed), embed_op.reference(*placed))
        wide = embed_kernel.embed(*arguments, dtype=torch.float32)
        assert torch.equal(wide, embed_op.reference(*arguments).float())


def last_tokens(device: torch.device) -> None:
    """Ragged sequences, a slot twice, with and without an encoder's output."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    state = BatchState(SLOTS, 40, CacheShape(8, 8, 4, 4), device).slots
    state.tokens.copy_(_ints(100, *state.tokens.shape))
    state.lengths.copy_(_ints(41, *state.lengths.shape, low=1))
    slots, crosses = torch.tensor([4, 0, 2, 4], dtype=torch.int32, device=device), _ints(50, SLOTS).to(device)
    for lengths in (None, crosses):
        found = last_tokens_kernel.last_tokens(state, slots, lengths)
        for got, want in zip(found, last_tokens_op.reference(state, slots, lengths), strict=True):
            assert got is want is None or torch.equal(got, want)


def prompt_lookup(device: torch.device) -> None:
    """Ragged sequences of few tokens, of which some are none of the decoder's; padding twice, and two in which nothing
    matches, one of them full but for a place."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    rows = 40
    for room, sources in ((1300, 700), (60, 0)):
        states = [BatchState(rows, room, CacheShape(1, 1, 1, 1), device, max_source_len=sources) for _ in range(2)]
        slots = torch.cat((torch.randperm(rows), torch.full((2,), rows))).int().to(device)
        drawn = {
            "tokens": _ints(12, rows + 1, room), "lengths": _ints(room, rows + 1, low=1),
            "finish": (torch.rand(rows + 1) < 0.1).int(), "max_lengths": torch.full((rows + 1,), room),
            "sources": _ints(12, rows + 1, sources), "source_lengths": _ints(sources + 1, rows + 1),
            "limits": _ints(7, rows + 1),
        }  # fmt: skip
        drawn["tokens"][0], drawn["lengths"][0], drawn["limits"][rows] = torch.arange(room), room - 1, 0
        drawn["tokens"][1], drawn["lengths"][1], drawn["finish"][1], drawn["limits"][1] = 11, room // 2, 0, 6
        for state in states:
            for name, values in drawn.items():
                getattr(state.slots if hasattr(state.slots, name) else state.drafts, name).copy_(values)
        got, want = (
            find(state.slots, state.drafts, slots, 5, 10)
            for find, state in zip((lookup_kernel.propose, lookup_op.reference), states, strict=True)
        )
        assert torch.equal(got, want) and (want >= 0).sum() > rows // 2
        assert torch.equal(states[0].drafts.num_drafted, states[1].drafts.num_drafted)


def write_slots(device: torch.device) -> None:
    """Numbers of each size, a row's beginning alone, rows longer than a tile, and none."""
    from vlm.executor.state.slot_upload import SlotUpload

    dtypes, widths = (torch.int32, torch.int64, torch.float32, torch.bool), ((), (5,), (700,), (2, 3))
    ours = [torch.zeros(9, *width, dtype=dtype, device=device) for dtype in dtypes for width in widths]
    theirs = [target.clone() for target in ours]
    slots = [7, 0, 3]
    upload = SlotUpload(slots, device)
    for target, want in zip(ours, theirs, strict=True):
        width = target.shape[1:] if target.ndim != 2 else (target.shape[1] - 2,)
        values = (torch.rand(3, *width) * 2**20).to(target.dtype)
        upload.put(target, values.tolist())
        (want if want.ndim == 1 else want[:, : values.shape[1]])[slots] = values.to(device)
    upload.put(ours[1], [[]] * 3)  # nothing, of a tensor that has something
    upload.write_at_once()
    for got, want in zip(ours, theirs, strict=True):
        assert torch.equal(got, want)
    assert all(target[7].any() for target in ours) and not any(target[1].any() for target in ours)


def kv_write(device: torch.device) -> None:
    for rows, heads, dim, block, width in ((6, 3, 12, 8, 4), (4, 4, 64, 16, 3)):
        tables = torch.randperm(SLOTS * width, dtype=torch.int32).view(SLOTS, width).to(device)
        slots, positions = (
            torch.randperm(SLOTS, dtype=torch.int32)[:rows].to(device),
            _ints(width * block, rows).to(device),
        )
        k, v = torch.randn(rows, 3, heads, dim, device=device)[:, 1:].unbind(1)
        for dtype in KINDS:
            ours, theirs = (_empty(SLOTS * width, heads, block, dim, dtype, device) for _ in range(2))
            write_op.reference(k, v, theirs, tables, slots, positions)
            write_kernel.kv_write(k, v, ours, tables, slots, positions)
            _check_written(ours, theirs, rows * heads * dim, atol=0.0)


def packed_attention(device: torch.device) -> None:
    lengths = (5, 1, 70, 130, 64)
    rows = sum(lengths)
    # of windows some look further to one side
    every = (*VARIANTS, AttentionVariant(None, 3, 4), AttentionVariant(None, 66, 0))
    for turn, (heads, kv_heads, dim, most) in enumerate(((3, 3, 12, 6), (4, 2, 64, 9), (3, 1, 80, 40))):
        q, k, v = torch.randn(rows, heads + 2 * kv_heads, dim, device=device).split((heads, kv_heads, kv_heads), 1)
        whole, tiles = (torch.tensor(packed_op.tiles_of(lengths, n), dtype=torch.int32) for n in (None, 64))
        tiles = torch.cat([tiles, torch.zeros(2, 3, dtype=torch.int32)]).to(device)
        biases = (None, torch.randn(heads, 2 * most + 1, device=device))
        for bias, variant in _shared_out(device, turn, 3, biases, every):
            want = packed_op.reference(q, k, v, whole, dim**-0.5, bias, variant)
            found = packed_kernel.packed_attention(q, k, v, tiles, dim**-0.5, bias, variant)
            torch.testing.assert_close(found, want, atol=5e-6, rtol=1e-5)


def add_layer_norm(device: torch.device) -> None:
    for shape in ((5, 24), (3, 5, 7, 256), (2, 1000), (4100, 12)):
        x, delta = torch.randn(2, *shape, device=device)
        weight, bias = torch.randn(2, shape[-1], device=device)
        for kind in (torch.float32, torch.float16):  # a stream that is wider than what flows off it
            weight, bias = weight.to(kind), bias.to(kind)
            for added in (delta.to(kind), None):
                want = norm_op.reference(x, added, weight, bias, 1e-5)
                found = norm_kernel.add_norm(x, added, weight, bias, 1e-5)
                assert found[0].dtype == torch.float32 and found[1].dtype == kind
                for a, b in zip(found, want, strict=True):
                    atol, rtol = (5e-6, 1e-5) if a.dtype == torch.float32 else (4e-3, 1e-3)
                    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)
                before, (_, alone) = x.clone(), norm_kernel.add_norm(x, added, weight, bias, 1e-5, keeps_sum=False)
                assert torch.equal(alone, found[1]) and torch.equal(x, before)


def add_rms_norm(device: torch.device) -> None:
    for width in (24, 256, 1000):
        x, delta = torch.randn(2, 5, width, device=device)
        for kind in (torch.float32, torch.float16):
            weight = torch.randn(width, device=device).to(kind)
            for added in (delta.to(kind), None):
                want = rms_op.reference(x, added, weight, 1e-6)
                found = norm_kernel.add_norm(x, added, weight, None, 1e-6)
                assert found[0].dtype == torch.float32 and found[1].dtype == kind
                for a, b in zip(found, want, strict=True):
                    torch.testing.assert_close(a, b, atol=5e-6 if a.dtype == torch.float32 else 4e-3, rtol=1e-3)


ENDINGS = [activation_op.Activation(name, gated) for name in activation_op.ACTIVATIONS for gated in (False, True)]


def activation(device: torch.device) -> None:
    for width in (5, 1500):
        x = 3 * torch.randn(4, 2 * width, device=device)
        for ending in ENDINGS:
            want, found = activation_op.reference(x, ending), activation_kernel.activated(x, ending)
            torch.testing.assert_close(found, want, atol=5e-6, rtol=1e-5)
    for rows, width in ((64, 16384), (513, 2048)):  # so many values that programs have parts of all, no rows
        x = 3 * torch.randn(rows, width, device=device)
        ending = activation_op.Activation("gelu")
        want, found = activation_op.reference(x, ending), activation_kernel.activated(x, ending)
        torch.testing.assert_close(found, want, atol=5e-6, rtol=1e-5)


def scale_rows(device: torch.device) -> None:
    ids = torch.tensor([1, -1, 0, 2, -1], dtype=torch.int32, device=device)
    for width in (5, 1500):
        scales = torch.cat((torch.randn(3, width), torch.ones(1, width))).to(device)
        x = torch.randn(5, width + 3, device=device)[:, 1 : width + 1]  # a part of wider rows
        want, found = scale_op.reference(x, ids, scales), scale_kernel.scale_rows(x, ids, scales)
        assert found.equal(want) and found[1].equal(x[1])
        half = scale_kernel.scale_rows(x.half(), ids, scales)
        assert half.equal(scale_op.reference(x.half(), ids, scales))
        shifts = torch.cat((torch.randn(3, width), torch.zeros(1, width))).to(device)
        want, found = scale_op.reference(x, ids, scales, shifts), scale_kernel.scale_rows(x, ids, scales, shifts)
        torch.testing.assert_close(found, want)
        assert found[1].equal(x[1])


def linear(device: torch.device) -> None:
    for outputs, inputs in ((5, 7), (96, 64), (130, 2500), (1023, 1024)):
        x, weight, bias = (torch.randn(*n, device=device) for n in ((1, inputs), (outputs, inputs), (outputs,)))
        for given in (bias, None):
            want = torch.nn.functional.linear(x.double(), weight.double(), None if given is None else given.double())
            found = linear_kernel.linear(x, weight, given, torch.float32)
            torch.testing.assert_close(found, want.float(), atol=2e-5 * inputs**0.5, rtol=1e-5)
    for turn, outputs in enumerate((2, 30, 262)):
        for (ending,) in _shared_out(device, turn, 3, ENDINGS):
            x, weight, bias = (torch.randn(*n, device=device) for n in ((1, 64), (outputs, 64), (outputs,)))
            want = activation_op.reference(torch.nn.functional.linear(x, weight / 8, bias), ending)
            found = linear_kernel.linear(x, weight / 8, bias, torch.float32, ending)
            torch.testing.assert_close(found, want, atol=2e-5, rtol=1e-5)


def quantized_linear(device: torch.device) -> None:
    """8 bits of whole numbers and of floating point, 4 bits with and without zero points, groups of a quarter of a
    chunk and of more; one row, few and ragged; where there is hardware for them, types of 16 bits."""
    types = (torch.float32, torch.float16, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    sizes = ((1, 5, 64), (1, 130, 2560), (2, 36, 256), (3, 70, 192), (7, 40, 384), (33, 130, 128), (70, 96, 320))
    for (rows, outputs, inputs), dtype in itertools.product(sizes, types):
        x = torch.randn(rows, inputs, device=device, dtype=dtype)
        weight = torch.randn(outputs, inputs, device=device)
        for method in (Int8(), Fp8(), Int4(32), Int4(64, symmetric=False)):
            kept = method.quantize(weight)
            exact = method.dequantize(kept).double()
            unpacked = _unpacked(method, kept, dtype)
            torch.testing.assert_close(
                unpacked, exact.to(dtype), atol=1e-6, rtol=2e-2 if dtype != torch.float32 else 1e-6
            )
            biased = torch.randn(outputs, device=device, dtype=dtype)
            gated = activation_op.Activation("silu", gated=outputs % 2 == 0)
            for bias, ending in ((biased, None), (None, None), (biased, gated)):
                want = torch.nn.functional.linear(x.double(), exact, None if bias is None else bias.double()).float()
                want = want if ending is None else activation_op.reference(want, ending)
                found = _product(method, kept, x, bias, ending)
                torch.testing.assert_close(found, want, atol=3e-5 * inputs**0.5, rtol=1e-5)


def _product(
    method,
    kept: dict[str, torch.Tensor],
    x: torch.Tensor,
    bias: torch.Tensor | None,
    ending: activation_op.Activation | None,
) -> torch.Tensor:
    if isinstance(method, Int4):
        parts = kept["weight_packed"], kept["weight_scale"], kept.get("weight_zero")
        return quantized_kernel.linear4(x, *parts, bias, torch.float32, ending)
    return quantized_kernel.linear8(x, kept["weight"], kept["weight_scale"], bias, torch.float32, ending)


def _unpacked(method, kept: dict[str, torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(method, Int4):
        return unpack_kernel.unpacked4(kept["weight_packed"], kept["weight_scale"], kept.get("weight_zero"), dtype)
    return unpack_kernel.unpacked8(kept["weight"], kept["weight_scale"], dtype)


def add_lora(device: torch.device) -> None:
    """One row and ragged batches, ranks that are no power of two, parts between which one has no adapter; all inputs by
    one program and by several; tiles of few rows and of many; adapters that nobody has, nobody who has one."""
    lora_kernel.num_processors, lora_kernel.PREFILL_ROWS = (lambda device: 8), 64
    for rows, inputs, rank, count, parts in (
        (1, 300, 3, 2, 1), (5, 64, 16, 3, 2), (37, 520, 20, 4, 2), (70, 130, 16, 9, 2), (66, 64, 8, 3, 3)
    ):  # fmt: skip
        columns = (slice(0, 70), slice(90, 100))[:parts] if parts < 3 else (slice(0, 8), slice(16, 96), slice(96, 104))
        a = torch.randn(parts, count, rank, inputs, device=device)
        b = torch.randn(count, rank, sum(place.stop - place.start for place in columns), device=device)
        matrices = LoraMatrices(a, b, columns)
        x, y = torch.randn(rows, inputs, device=device), torch.randn(rows, 104, device=device)
        for ids in (_ints(count + 1, rows) - 1, torch.full((rows,), -1, dtype=torch.int32)):
            given = lambda _, y=y: y.clone(), x, ids.to(device), matrices
            want, found = lora_op.reference(*given), lora_kernel.add_lora(*given)
            torch.testing.assert_close(found, want, atol=2e-5 * inputs, rtol=1e-5)
            assert torch.equal(found[ids < 0], y[ids < 0])


def w8a8(device: torch.device) -> None:
    """Rows rounded by their own scale and by a static one, and their products with weights of both kinds."""
    for (rows, outputs, inputs), dtype in itertools.product(
        ((1, 20, 64), (5, 70, 192), (80, 130, 320)), (torch.int8, torch.float8_e4m3fn)
    ):
        x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
        weight, weight_scale = (part.to(device) for part in w8a8_op.rounded(weight, dtype))
        for static in (None, torch.tensor([0.011])):
            values, scale = (part.to(device) for part in w8a8_op.rounded(x, dtype, static))
            least = w8a8_op.LEAST[dtype][static is not None]
            on_device = None if static is None else static.to(device)
            ours, our_scale = w8a8_kernel.rounded(x.to(device), dtype, on_device, least, w8a8_op.MOST[dtype])
            torch.testing.assert_close(our_scale, scale, atol=0.0, rtol=1e-6)
            if device.type == "cuda" or dtype == torch.int8:  # of e4m3 Triton's interpreter does not carry
                assert (ours.float() != values.float()).float().mean() < 1e-3  # a division may round otherwise
            want = (values.double() @ weight.double().t()) * scale.double() * weight_scale.double().t()
            for bias in (None, torch.randn(outputs, device=device)):
                found = w8a8_kernel.product(values, scale, weight, weight_scale, torch.float32, bias)
                expected = (want if bias is None else want + bias.double()).float()
                # tensor cores add e4m3 with 14 bits
                torch.testing.assert_close(
                    found, expected, atol=1e-2 * inputs**0.5 if dtype.is_floating_point else 1e-3, rtol=1e-3
                )


def rounded_ahead(device: torch.device) -> None:
    """Rows that a norm or an activation makes and rounds: what these give, rounded by itself, and the rows as well."""
    x, delta, weight, bias = torch.randn(4, 9, 72, device=device).unbind()
    makers = [
        lambda: norm_kernel.add_norm(x, delta, weight[0], None, 1e-5),
        lambda: norm_kernel.add_norm(x, None, weight[0], bias[0], 1e-5),
        lambda: (x, activation_kernel.activated(x, activation_op.Activation("silu", gated=True))),
        lambda: (x, activation_kernel.activated(x, activation_op.Activation("gelu"))),
    ]
    for make, dtype, static in itertools.product(
        makers, (torch.int8, torch.float8_e4m3fn), (None, torch.tensor([0.02], device=device))
    ):
        given = dtype, static, w8a8_op.LEAST[dtype][static is not None], w8a8_op.MOST[dtype]
        stream, rows = make()
        want = w8a8_kernel.rounded(rows, *given)
        with NormsAhead(9) as ahead:
            later_stream, later = make()
            found = w8a8_kernel.rounded(later.view_as(rows), *given)
            assert ahead.taken(later) is None
        for ours, theirs in ((later_stream, stream), (later, rows), *zip(found, want, strict=True)):
            assert torch.equal(ours.float(), theirs.float())
        with NormsAhead(9):  # nobody rounds it
            assert torch.equal(make()[1] + 0, rows)


def beam_search(device: torch.device) -> None:
    """Groups of several widths and settings, step after step, until all have ended."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    settings = [(1.0, 0, 0.0, -1), (0.0, 2, 0.0, 7), (-0.5, 1, 0.3, -1), (2.0, 2, 0.5, -1)]
    widths, longest, turns = ([4, 2, 3, 4], 24, 26) if device.type == "cuda" else ([3, 2], 6, 7)
    padding_slot, widest, vocab, size = sum(widths) + 1, max(widths), 40, 4
    firsts = [sum(widths[:i]) for i in range(len(widths))]
    slots = [[*range(a, a + w), *[padding_slot] * (widest - w)] for a, w in zip(firsts, widths, strict=True)]
    states = [BatchState(padding_slot, 150, CacheShape(800, 8, 40, 4), device) for _ in range(2)]
    blocks = torch.randperm((padding_slot + 1) * 41, dtype=torch.int32).to(device).view(-1, 41) + 1
    for state in states:
        s, b = state.slots, state.beams
        state.self_tables[:], b.spare_blocks[:] = blocks[:, :40], blocks[:, 40]
        s.finish[:padding_slot], s.lengths[:], s.prompt_lengths[:], s.max_lengths[:] = 0, 1, 1, longest
        s.max_lengths[: widths[0]] = 5
        s.stop_ids[:, 0] = 1
        s.stop_ids[firsts[-1] :, 1] = 2
        b.can_improve[:], b.scores[:] = True, -1e9
        for (penalty, early, diversity, forced), first, width in zip(settings, firsts, widths, strict=False):
            b.scores[first] = 0.0
            one = slice(first, first + width)
            b.length_penalty[one], b.early_stopping[one], b.diversity[one] = penalty, early, diversity
            s.forced_bos[one] = s.forced_eos[one] = forced
    slots = torch.tensor([*slots, [padding_slot] * widest], dtype=torch.int32).to(device)
    groups = beam_op.Groups(slots, torch.where(slots == padding_slot, 0, slots), padding_slot, 3 * widest)
    for turn in range(turns):
        logits = 2 * torch.randn(sum(widths), vocab, device=device)
        logits[:, 1] += -3 if turn < 4 else 0.5
        logits[turn % sum(widths), 5:30] = float("-inf")
        normalized, again = turn % 2 == 1, None
        logits = logits.log_softmax(-1) if normalized else logits
        if turn % 4 == 3:  # two rows of any and one of nothing add up to 1 again
            logits[:, 30:] = logits[1] = float("-inf")
            again = torch.arange(len(logits), device=device) < 3
        row_scores = RowScores(logits, normalized=normalized, again=again)
        want = beam_op.reference_step(row_scores, states[0].slots, states[0].beams, groups)
        found = beam_kernel.step(row_scores, states[1].slots, states[1].beams, groups)
        # what an ended search would go on with may be anything
        goes_on = states[0].slots.finish[groups.slots[:, 0].long()] == 0
        assert torch.equal(want[goes_on], found[goes_on].long())
        pairs = beam_op.reference_reorder_cache(
            states[0].self_tables, size, states[0].slots, states[0].beams, groups, want
        )
        arguments = (states[1].self_tables, size, states[1].slots, states[1].beams, groups, want.int())
        for a, b in zip(pairs, beam_kernel.reorder_cache(*arguments), strict=True):
            assert torch.equal(a, b)
        assert torch.equal(states[0].self_tables, states[1].self_tables)
        _same_search(*states)
    assert all(states[0].slots.finish[: sum(widths)] == 3), "every search ends"
    _one_outcome(device)
    _larger_sizes(device)


def _larger_sizes(device: torch.device) -> None:
    """Searches among which many scores are equal come to the same in a step for more beams and candidates."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    states = []
    for width, most in ((3, 6), (4, 16)):
        state, make = BatchState(5, 8, CacheShape(8, 2, 2, 2), device), torch.Generator().manual_seed(0)
        s, b = state.slots, state.beams
        s.finish[:5], s.lengths[:], s.prompt_lengths[:], s.max_lengths[:], s.stop_ids[:, 0] = 0, 1, 1, 5, 1
        b.can_improve[:], b.scores[:], b.length_penalty[:], b.scores[0], b.scores[3] = True, -1e9, 1.0, 0.0, 0.0
        slots = [[*own, *[5] * (width - len(own))] for own in ([0, 1, 2], [3, 4])]
        slots = torch.tensor(slots, dtype=torch.int32, device=device)
        for _ in range(4):
            logits = torch.randint(0, 3, (5, 40), generator=make).float().to(device)
            beam_kernel.step(RowScores(logits), s, b, beam_op.Groups(slots, slots % 5, 5, most))
        states.append(state)
    narrow, wide = states
    assert torch.equal(narrow.slots.tokens[:5], wide.slots.tokens[:5]) and narrow.slots.finish[:5].tolist() == [3] * 5
    for name in ("ended", "hypotheses", "hypothesis_lengths", "hypothesis_scores"):
        assert torch.equal(getattr(narrow.beams, name)[:5], getattr(wide.beams, name)[:5]), name


def _one_outcome(device: torch.device) -> None:
    """A search of three beams at its last token, of which settings leave one: one beam exists, and has an outcome."""
    from vlm.executor.kv_cache import CacheShape
    from vlm.executor.state.batch_state import BatchState

    for step in (beam_op.reference_step, beam_kernel.step):
        state = BatchState(3, 8, CacheShape(8, 2, 2, 2), device)
        s, b = state.slots, state.beams
        s.finish[:3], s.lengths[:], s.prompt_lengths[:], s.max_lengths[:], s.stop_ids[:, 0] = 0, 1, 1, 2, 1
        b.can_improve[:], b.scores[:], b.length_penalty[:], b.hypotheses[:] = True, -1e9, 1.0, 7
        b.scores[0] = 0.0
        slots = torch.tensor([[0, 1, 2]], dtype=torch.int32, device=device)
        logits = torch.full((3, 40), float("-inf"), device=device)
        logits[:, 5] = 0.0
        step(RowScores(logits), s, b, beam_op.Groups(slots, slots, 3, 6))
        assert b.ended[:3].tolist() == [True, False, False]
        assert (b.hypotheses[0, 1], b.hypothesis_scores[0]) == (5, 0.0)
        assert s.finish[:3].tolist() == [3, 3, 3]


def _same_search(a, b) -> None:
    for name in ("lengths", "finish"):
        assert torch.equal(getattr(a.slots, name), getattr(b.slots, name)), name
    for name in ("ended", "can_improve", "spare_blocks"):
        assert torch.equal(getattr(a.beams, name), getattr(b.beams, name)), name
    running = a.slots.finish == 0
    torch.testing.assert_close(a.beams.scores[running], b.beams.scores[running], atol=1e-4, rtol=1e-6)
    # what is no hypothesis may be anything
    there = a.beams.ended
    assert torch.equal(a.beams.hypothesis_lengths[there], b.beams.hypothesis_lengths[there])
    scores = [x.beams.hypothesis_scores[there] for x in (a, b)]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=1e-6)
    for slot in range(len(there) - 1):
        length, kept = (
            int(a.slots.lengths[slot]) * int(running[slot]),
            int(a.beams.hypothesis_lengths[slot]) * int(there[slot]),
        )
        assert torch.equal(a.slots.tokens[slot, :length], b.slots.tokens[slot, :length])
        torch.testing.assert_close(a.slots.logprobs[slot, :length], b.slots.logprobs[slot, :length])
        assert torch.equal(a.beams.hypotheses[slot, :kept], b.beams.hypotheses[slot, :kept])


def copy_blocks(device: torch.device) -> None:
    for size in (3 * 8 * 12, 40 * 16 * 16):
        cache = torch.randn(3, 2, 9, size, 1, 1, device=device)
        sources, targets = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([3, 0, 5, 3], [1, 0, 2, 7]))
        want = cache.clone()
        want[:, :, targets.long()] = cache[:, :, sources.long()]
        copy_kernel.copy_blocks(cache, sources, targets)
        assert torch.equal(cache, want)


CASES = {
    f.__name__: f
    for f in (
        paged_attention,
        packed_attention,
        grouped_attention,
        merged_attention,
        step_attention,
        prefill_attention,
        prefill_of_long_contexts,
        rotate,
        rotary,
        rotary_angles,
        qk_norm,
        embed,
        last_tokens,
        prompt_lookup,
        write_slots,
        kv_write,
        add_layer_norm,
        add_rms_norm,
        activation,
        linear,
        widen,
        quantized_linear,
        add_lora,
        scale_rows,
        w8a8,
        rounded_ahead,
        append_likeliest,
        append_sampled,
        penalize,
        topk_logprobs,
        beam_search,
        copy_blocks,
        append_and_check_stop,
    )
}
