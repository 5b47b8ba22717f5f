"""PEFT's LoRA: what of its configuration decides the maths, and what of it is not done here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from vlm.convert.adapters.patterns import first_matches
from vlm.convert.adapters.peft_config import invalid_settings, refuse_settings
from vlm.layers.adapters.dora import DoraWeights
from vlm.layers.adapters.lora import LoraWeights

T = TypeVar("T")
MAGNITUDE = "lora_magnitude_vector"  # of a DoRA: the length of each row

# what changes the maths in ways that are not done -> the values that ask for nothing
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none", "all", "lora_only"),  # those that were trained are among the tensors
    "lora_bias": (False,),
    "layer_replication": ([],),
    "target_parameters": ([],),
    "trainable_token_indices": ([], {}),
    "alora_invocation_tokens": ([],),
    "use_qalora": (False,),
    "use_bdlora": (False,),
    "arrow_config": (),
    "kasa_config": (),
    "monteclora_config": (),
    "velora_config": (),
    # others begin with a change of the base's own weights, which the adapter's are a difference to
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva", "mica"),
}


@dataclass(frozen=True)
class PeftLora:
    """How strongly an adapter's modules count."""

    name: ClassVar[str] = "LoRA"
    tensors: ClassVar[re.Pattern[str]] = re.compile(
        r"(.+)\.(lora_[AB](?=(?:\.default)?\.weight$)|lora_magnitude_vector)(?:\.default)?(?:\.weight)?"
    )
    rank: int
    alpha: float
    ranks: Mapping[str, int]  # of modules that have one of their own, and so below
    alphas: Mapping[str, float]
    use_rslora: bool
    use_dora: bool

    @classmethod
    def read(cls, folder: Path, values: Mapping[str, Any], modules: Iterable[str]) -> PeftLora:
        refuse_settings(folder, values, NEUTRAL)
        with invalid_settings(folder, cls.name):
            return cls(
                _rank(values.get("r", 8)),
                _alpha(values.get("lora_alpha", 8)),
                _by_module(values.get("rank_pattern") or {}, modules, _rank),
                _by_module(values.get("alpha_pattern") or {}, modules, _alpha),
                bool(values.get("use_rslora")),
                bool(values.get("use_dora")),
            )

    def weights(self, module: str, parts: Mapping[str, Tensor]) -> LoraWeights | DoraWeights:
        expected = {"lora_A", "lora_B"} | ({MAGNITUDE} if self.use_dora else set())
        if missing := sorted(expected - parts.keys()):
            raise ValueError(f"lacks its {missing[0]}")
        if parts.keys() - expected:
            raise ValueError(f"has a {MAGNITUDE}, its configuration does not say use_dora")
        a, b, rank = _matrix(parts["lora_A"]), _matrix(parts["lora_B"]), self.rank_of(module)
        if not (a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] == rank):
            raise ValueError(f"has shapes {list(a.shape)} and {list(b.shape)}, its configuration says rank {rank}")
        lora = LoraWeights(a, b * self.scale_of(module))
        if not lora.fits(torch.float32):
            raise ValueError(
                f"has values that its lora_alpha of {self.alphas.get(module, self.alpha):g} makes infinite"
            )
        if not self.use_dora:
            return lora
        magnitude = parts[MAGNITUDE]
        magnitude = magnitude.flatten() if magnitude.ndim > 2 else magnitude  # a convolution's: [1, out, 1, 1]
        if magnitude.shape != (len(b),):
            raise ValueError(f"has a {MAGNITUDE} of shape {list(magnitude.shape)}, its rows are {len(b)}")
        return DoraWeights(lora, magnitude, torch.ones(len(b), dtype=torch.bool))

    def rank_of(self, module: str) -> int:
        return self.ranks.get(module, self.rank)

    def scale_of(self, module: str) -> float:
        """Returns what a module's product is multiplied by."""
        rank = self.rank_of(module)
        return self.alphas.get(module, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _matrix(values: Tensor) -> Tensor:
    """Returns a matrix; the convolution of patches, [out, channels, side, side], as the matrix that it is here."""
    return values.flatten(1) if values.ndim > 2 else values


def _rank(value: Any) -> int:
    """Raises ValueError for what is no rank."""
    if (rank := int(value)) < 1:
        raise ValueError(f"a rank of {rank}")
    return rank


def _alpha(value: Any) -> float:
    """Raises ValueError for what is no finite number."""
    if not math.isfinite(alpha := float(value)):
        raise ValueError(f"an alpha of {alpha}")
    return alpha


def _by_module(patterns: Mapping[str, Any], modules: Iterable[str], read: Callable[[Any], T]) -> dict[str, T]:
    """Returns the value of the first pattern that the end of a module's path matches, as PEFT has it. Raises as
    first_matches."""
    values = [read(value) for value in patterns.values()]
    matches = first_matches([rf"(.*\.)?({key})$" for key in patterns], modules)
    return {module: values[place] for module, place in matches.items()}
