"""Weight rules: how a foreign checkpoint's tensors become a module's, said as data and closed on both sides.

In a name pattern `{}` stands for a run of digits (a layer index) and is carried over to the target in order; `{q,k,v}`
stands for several tensors, the parts of one fused tensor, in that order:

    Rename("model.layers.{}.fc1.weight", "blocks.{}.ffn.up.weight")
    Fuse("model.layers.{}.attn.{q,k,v}_proj.weight", "blocks.{}.attention.qkv.weight")
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from vlm.errors import listed

_PLACE = re.compile(r"\{([^{}]*)\}")


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    literals, places = _PLACE.split(pattern)[::2], _PLACE.findall(pattern)
    groups = [rf"(?:{'|'.join(map(re.escape, p.split(',')))})" if p else r"(\d+)" for p in places]
    return re.compile("".join(a + b for a, b in itertools.zip_longest(map(re.escape, literals), groups, fillvalue="")))


def _indices(pattern: str, name: str) -> tuple[str, ...] | None:
    """Returns the layer indices with which `pattern` gives `name`; None when it does not."""
    match = _compiled(pattern).fullmatch(name)
    return match.groups() if match else None


def _expand(pattern: str, indices: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names a pattern stands for once the indices are put in: one, or one per part."""
    numbers = iter(indices)
    name = _PLACE.sub(lambda m: m[0] if m[1] else next(numbers), pattern)
    if not (parts := _PLACE.search(name)):
        return (name,)
    return tuple(name[: parts.start()] + part + name[parts.end() :] for part in parts[1].split(","))


@dataclass(frozen=True)
class Step:
    """A rule at one place: reads `sources` (and `beside`, where present), fills `targets`."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    run: Callable[[list[Tensor]], list[Tensor]]  # ValueError says what is wrong with the tensors
    beside: tuple[str, ...] = ()
    transposes: bool = False  # are its sources [in, out]?
    is_function: bool = False  # Apply's: it may move more than whole rows of matrices

    def moves_rows(self, shapes: Iterable[tuple[int, int]]) -> bool:
        """Says whether of matrices of these shapes [out, in] it makes one of their rows as they are, of any width."""
        if not self.is_function:
            return True
        columns = [torch.arange(width, dtype=torch.int32).repeat(rows, 1) for rows, width in shapes]
        try:
            whole, narrow = self.run(columns)[0], self.run([each[:, :1] for each in columns])[0]
        except (ValueError, RuntimeError, IndexError):
            return False
        return narrow.shape == (len(whole), 1) and bool((whole == columns[0][0]).all())

    def column_order(self, shape: tuple[int, int]) -> Tensor | None:
        """Returns which column of its only source [out, in] each column of its target is, where it moves columns and
        leaves rows in their places; None where it moves whole rows. Raises ValueError where it does anything else."""
        if self.moves_rows([shape]):
            return None
        own_rows = torch.arange(shape[0], dtype=torch.int32)[:, None].expand(shape)
        own_columns = torch.arange(shape[1], dtype=torch.int32).expand(shape)
        [rows], [columns] = self.run([own_rows.contiguous()]), self.run([own_columns.contiguous()])
        order = columns[0].long()
        if not torch.equal(rows, own_rows) or not torch.equal(columns, own_columns[:, order]):
            raise ValueError("is not moved by whole rows or columns")
        return order


@dataclass(frozen=True)
class Rule:
    """Base of the rules. One that matches no tensor is an error unless it is `optional`."""

    source: str
    _: KW_ONLY
    optional: bool = False

    def __post_init__(self) -> None:
        for pattern in (self.source, self.target):
            if sum("," in place for place in _PLACE.findall(pattern)) > 1:
                raise ValueError(f"the pattern {pattern!r} may hold one list of parts")
        if self.target.count("{}") > self.source.count("{}"):
            raise ValueError(f"the target {self.target!r} has more indices than the source {self.source!r}")

    @property
    def target(self) -> str:
        return getattr(self, "to", "")

    @property
    def transposes(self) -> bool:
        """Says whether it exchanges the two dimensions of matrices."""
        return False

    def steps(self, names: Iterable[str]) -> list[Step]:
        matches = dict.fromkeys(i for name in names if (i := _indices(self.source, name)) is not None)
        return [self.step(indices) for indices in matches]

    def step(self, indices: tuple[str, ...]) -> Step:
        sources, targets = _expand(self.source, indices), _expand(self.target, indices)
        return Step(sources, targets, self.run, transposes=self.transposes)

    def matches(self, name: str) -> bool:
        """Says whether its pattern gives a tensor's name."""
        return _indices(self.source, name) is not None

    def sources_of(self, target: str) -> tuple[str, ...] | None:
        """Returns the tensors this rule would make `target` of; None when it makes no such target."""
        if not self.target or self.target.count("{}") != self.source.count("{}"):
            return None
        indices = _indices(self.target, target)
        return None if indices is None else _expand(self.source, indices)

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        raise NotImplementedError


@dataclass(frozen=True)
class Rename(Rule):
    """The tensor as it is, under another name."""

    to: str

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors


@dataclass(frozen=True)
class Fuse(Rule):
    """Parts joined along `dim`: `Fuse("layers.{}.{q,k,v}.weight", "layers.{}.qkv.weight")`; `transposed`: their two
    dimensions are exchanged after that."""

    to: str
    dim: int = 0
    transposed: bool = False

    @property
    def transposes(self) -> bool:
        return self.transposed

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        others = {(t.dim(), *(s for d, s in enumerate(t.shape) if d != self.dim % t.dim())) for t in tensors if t.dim()}
        if len(others) != 1 or any(t.dim() == 0 for t in tensors):
            raise ValueError(f"shapes {listed(list(t.shape) for t in tensors)} cannot be joined along {self.dim}")
        result = torch.cat(tensors, dim=self.dim)
        return [result.T if self.transposed else result]


@dataclass(frozen=True)
class Split(Rule):
    """Equal parts along `dim`: `Split("h.{}.kv.weight", "h.{}.{k,v}.weight")`."""

    to: str
    dim: int = 0

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        [tensor], parts = tensors, len(_expand(self.to, ("0",) * self.to.count("{}")))
        if tensor.dim() == 0 or tensor.shape[self.dim] % parts:
            raise ValueError(f"shape {list(tensor.shape)} has no {parts} equal parts along {self.dim}")
        return list(tensor.chunk(parts, dim=self.dim))


@dataclass(frozen=True)
class Tied(Rule):
    """One tensor that a checkpoint may hold under several names: the first of `source` and those in `also` that is
    there. The others are its copies, or were saved and are never read."""

    to: str
    also: tuple[str, ...] = ()

    def steps(self, names: Iterable[str]) -> list[Step]:
        present = set(names)
        sources = tuple(name for name in (self.source, *self.also) if name in present)
        return [Step(sources, (self.to,), self.run)] if sources else []

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        return tensors[:1]


def is_tied(head: str, embeddings: Iterable[str], tensors: Mapping[str, Tensor]) -> bool:
    """Says whether a head's weights are an embedding's: not stored, or equal to the first of `embeddings` that is, or
    all that is stored of both. A head that is quantized, of which there is but a stand-in, is none."""
    embedding = next((name for name in embeddings if name in tensors), None)
    if head not in tensors or embedding is None:
        return True
    return not tensors[head].is_meta and torch.equal(tensors[head], tensors[embedding])


@dataclass(frozen=True)
class Transpose(Rule):
    """A matrix with its two dimensions exchanged (GPT-2 keeps [in, out])."""

    to: str

    @property
    def transposes(self) -> bool:
        return True

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        if tensors[0].dim() != 2:
            raise ValueError(f"shape {list(tensors[0].shape)} is no matrix")
        return [tensors[0].T]


@dataclass(frozen=True)
class Apply(Rule):
    """One tensor through a pure function, a permutation or an elementwise change; `reason` says why it is needed."""

    to: str
    fn: Callable[[Tensor], Tensor]
    reason: str

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        return [self.fn(tensors[0])]

    def step(self, indices: tuple[str, ...]) -> Step:
        return replace(super().step(indices), is_function=True)


@dataclass(frozen=True)
class Drop(Rule):
    """A tensor the model does not need, and why. `same_as` names the tensor that a tied duplicate must equal."""

    reason: str
    same_as: str | None = None

    def step(self, indices: tuple[str, ...]) -> Step:
        beside = _expand(self.same_as, indices) if self.same_as else ()
        return Step(_expand(self.source, indices), (), self.run, beside)

    def steps(self, names: Iterable[str]) -> list[Step]:
        # of a list of parts only those that exist: there is nothing to fill
        present = set(names)
        steps = super().steps(present)
        return [Step(tuple(s for s in step.sources if s in present), (), step.run, step.beside) for step in steps]

    def run(self, tensors: list[Tensor]) -> list[Tensor]:
        if self.same_as and len(tensors) > 1 and not all(torch.equal(tensors[0], t) for t in tensors[1:]):
            raise ValueError(f"differs from {self.same_as}, but the configuration ties them")
        return []
