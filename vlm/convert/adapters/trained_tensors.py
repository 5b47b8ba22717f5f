"""Tensors that an adapter's folder holds as a whole, in place of the model's own -> what they replace of a network's.

PEFT saves those of `modules_to_save`, and biases that were trained (`bias`); LLaVA's scripts save a projector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.convert.rules import Rule, Step, Tied

ADDED = re.compile(r"(?:^|\.)(?:lora_|ia3_|trainable_tokens_|token_adapter\b)")  # what PEFT calls its own tensors
UNREAD = re.compile(r"\.original_module\.")  # what it saves of a module that another one stands for
COPY = re.compile(r"(.+)\.base_layer\.weight")  # what is beneath an adapter, frozen: PEFT saves that of heads
WRAPPER = re.compile(r"\.(?:base_layer|modules_to_save(?:\.default)?)(?=\.[^.]+$)")
VOCABULARIES = ("embedding.weight", "head.weight", "logits_bias")  # what has a row for each token


@dataclass(frozen=True)
class Replacement:
    """What takes the place of one tensor of a network, or of a part of it."""

    values: Tensor
    is_own: Tensor  # bool, of the same shape

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the tensor with these values in it, in its type."""
        return self.values.to(tensor.dtype).where(self.is_own, tensor)


def trained_name(name: str) -> str | None:
    """Returns the name in the model of a tensor that was trained as a whole; None for what an adapter adds."""
    return None if ADDED.search(name) else WRAPPER.sub("", name)


def is_tied(rule: Rule, step: Step) -> bool:
    """Says whether a step takes tensors that are one with others."""
    return isinstance(rule, Tied) or bool(step.beside)


def replacements(
    step: Step, trained: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, int]
) -> dict[str, Replacement]:
    """Returns what a step makes of tensors that were trained as a whole, by its targets; `shapes`: those of the
    network's tensors; `sizes`: the rows of each source. Raises ValueError where that cannot be done."""
    values, zeros, ones = (step.run(_sources(step, trained, sizes, fill)) for fill in (None, 0.0, 1.0))
    for target, found in zip(step.targets, values, strict=True):
        if tuple(found.shape) != tuple(shapes[target]):
            resized = "; vocabularies that were resized are merged with PEFT" if target in VOCABULARIES else ""
            raise ValueError(f"becomes {list(found.shape)} and should be {list(shapes[target])}{resized}")
    own = [one != zero for one, zero in zip(ones, zeros, strict=True)]
    return {name: Replacement(*each) for name, *each in zip(step.targets, values, own, strict=True)}


def _sources(step: Step, trained: Mapping[str, Tensor], sizes: Mapping[str, int], fill: float | None) -> list[Tensor]:
    """Returns a step's sources, those that were not trained as zeros; `fill`: what the others are full of instead."""
    like = next(iter(trained.values()))
    rows = 1 if step.transposes and like.ndim == 2 else 0
    if absent := set(step.sources) - trained.keys() - sizes.keys():
        raise ValueError(f"is joined with {min(absent)}, of which the adapter has none")
    shape = lambda name: [*like.shape[:rows], sizes[name], *like.shape[rows + 1 :]]  # noqa: E731
    own = {name: x.float() if fill is None else torch.full(x.shape, fill) for name, x in trained.items()}
    return [own[name] if name in own else torch.zeros(shape(name)) for name in step.sources]
