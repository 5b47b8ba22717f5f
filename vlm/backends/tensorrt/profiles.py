"""Optimization profiles: the ranges of a graph's dynamic dimensions, worked out from what the engine is built for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vlm.config import Config, EngineLimits, RuntimeConfig
from vlm.errors import EngineError

Dims = tuple[int | str | None, ...]  # of a graph's input; a dynamic dimension is a name, None or -1
Range = tuple[int, int, int]  # min, opt, max
Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]  # input -> its shapes at min, opt and max

DECODE, PREFILL = 0, 1  # a decoder's profiles; other graphs have one
TYPICAL_SPAN = 512  # tokens of a prompt or text that kernels are chosen for

AXES = {
    "token_ids": ("batch", "span"),
    "starts": ("batch",),
    "counts": ("batch",),
    "lengths": ("batch",),
    "cross_lengths": ("batch",),
    "prompt_table": ("rows",),
    "hidden": ("batch", "span"),
    "pixel_values": ("batch",),
    "self_k": ("batch", "heads", "cache"),
    "self_v": ("batch", "heads", "cache"),
    "cross_k": ("batch", "heads", "cross_cache"),
    "cross_v": ("batch", "heads", "cross_cache"),
}


@dataclass(frozen=True)
class PlanLimits(Config):
    """The most that a plan is asked for."""

    max_batch_size: int
    max_seq_len: int  # rows of a slot's self cache
    max_encoder_input_len: int  # rows of a slot's cross cache; 0 without an encoder
    max_prefill_tokens: int = RuntimeConfig.max_prefill_tokens  # of one prefill, padding included
    max_encoder_tokens: int = RuntimeConfig.max_encoder_tokens  # of one encoder pass, padding included
    max_encoder_batch_size: int = RuntimeConfig.max_encoder_batch_size  # images of one pass

    @classmethod
    def from_engine(cls, limits: EngineLimits) -> PlanLimits:
        """Returns the limits of an engine's plans; an encoder alone has no cache of its own."""
        return cls(limits.max_batch_size, max(limits.max_seq_len, 1), limits.max_encoder_input_len)

    def boxed(self, span: int, tokens: int) -> int:
        """Returns how many sequences of `span` tokens fit into a pass of `tokens`."""
        return max(1, min(self.max_batch_size, tokens // span))


def graph_profiles(inputs: Mapping[str, Dims], limits: PlanLimits) -> tuple[Profile, ...]:
    """Returns a decoder's decode and prefill profiles, or another graph's only one; `{}` where nothing is dynamic.

    Raises EngineError for a dynamic dimension that no limit says anything of, and for a cache of another size.
    """
    return tuple(_profile(inputs, ranges) for ranges in _ranges(inputs, limits))


def _ranges(inputs: Mapping[str, Dims], limits: PlanLimits) -> list[dict[str, Range]]:
    if "starts" in inputs:
        return [_decode(limits), _prefill(limits)]
    if "pixel_values" in inputs:
        images = limits.max_encoder_batch_size
        return [{"batch": (1, images, images)}]
    return [_encode(limits)]


def _decode(limits: PlanLimits) -> dict[str, Range]:
    batch = limits.max_batch_size
    return {"batch": (1, batch, batch), "span": (1, 1, 1), "rows": (1, batch, batch), **_caches(limits)}


def _prefill(limits: PlanLimits) -> dict[str, Range]:
    longest = min(limits.max_seq_len, limits.max_prefill_tokens)
    return _spans(longest, limits.max_prefill_tokens, limits.max_seq_len, limits) | _caches(limits)


def _encode(limits: PlanLimits) -> dict[str, Range]:
    longest = max(limits.max_encoder_input_len, 1)
    return _spans(longest, limits.max_encoder_tokens, longest, limits)


def _spans(longest: int, tokens: int, prompt: int, limits: PlanLimits) -> dict[str, Range]:
    """Returns padded spans whose largest box stays within `tokens` where one sequence does; a run takes more sequences
    in several passes, with all their prompt tables. `prompt`: tokens of a whole prompt, of which a span is a chunk"""
    batch, typical = limits.boxed(longest, tokens), min(longest, TYPICAL_SPAN)
    rows = limits.max_batch_size * prompt
    return {"batch": (1, 1, batch), "span": (1, typical, longest), "rows": (1, typical, rows)}


def _caches(limits: PlanLimits) -> dict[str, Range]:
    self_rows, cross_rows = limits.max_seq_len, limits.max_encoder_input_len
    return {"cache": _fixed(self_rows), "cross_cache": _fixed(cross_rows)}


def _profile(inputs: Mapping[str, Dims], ranges: Mapping[str, Range]) -> Profile:
    shapes = {name: _shapes(name, dims, ranges) for name, dims in inputs.items()}
    return {name: shapes[name] for name, dims in inputs.items() if any(_size(dim) is None for dim in dims)}


def _shapes(name: str, dims: Dims, ranges: Mapping[str, Range]) -> tuple[Shape, Shape, Shape]:
    axes = AXES.get(_stem(name), ())
    columns = [_range(name, axis, dim, axes, ranges) for axis, dim in enumerate(dims)]
    low, typical, high = (tuple(column[i] for column in columns) for i in range(3))
    return low, typical, high


def _range(name: str, axis: int, dim: int | str | None, axes: tuple[str, ...], ranges: Mapping[str, Range]) -> Range:
    kind = axes[axis] if axis < len(axes) else ""
    bounds = ranges.get(kind)
    size = _size(dim)
    if size is None:
        if bounds is None:
            raise EngineError(f"the graph's input {name} is dynamic in axis {axis} ({dim}), which no limit bounds.")
        return bounds
    if bounds is not None and not bounds[0] <= size <= bounds[2]:
        raise EngineError(
            f"the graph's input {name} has {dim} in axis {axis}, built for are {bounds[0]} to {bounds[2]}; export it"
            " again with the limits of this build."
        )
    return _fixed(size)


def _fixed(size: int) -> Range:
    return size, size, size


def _size(dim: int | str | None) -> int | None:
    """Returns the size of a fixed dimension, None for an open one (-1, a name or None)."""
    return dim if isinstance(dim, int) and dim >= 0 else None


def _stem(name: str) -> str:
    """Returns a name without its layer: `self_k_11` -> `self_k`"""
    head, _, tail = name.rpartition("_")
    return head if tail.isdigit() else name
