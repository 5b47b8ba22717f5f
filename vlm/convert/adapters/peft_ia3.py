"""PEFT's (IA)³: which of its modules have scales for what goes in, and which for what comes out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vlm.convert.adapters.patterns import first_matches
from vlm.convert.adapters.peft_config import invalid_settings, names_of
from vlm.layers.adapters.ia3 import Ia3Weights


@dataclass(frozen=True)
class PeftIa3:
    """Which modules are a feed-forward layer's, whose inputs are scaled, in PEFT's words."""

    name: ClassVar[str] = "IA3"
    tensors: ClassVar[re.Pattern[str]] = re.compile(r"(.+)\.(ia3_l)(?:\.default)?")
    feedforward: Set[str]

    @classmethod
    def read(cls, folder: Path, values: Mapping[str, Any], modules: Iterable[str]) -> PeftIa3:
        named = values.get("feedforward_modules") or []
        with invalid_settings(folder, cls.name):
            if isinstance(named, str):
                return cls(first_matches([named], modules).keys())
            ends = names_of(named, "feedforward_modules")
        return cls({module for module in modules if module.endswith(ends)})

    def weights(self, module: str, parts: Mapping[str, Tensor]) -> Ia3Weights:
        shape, of_inputs = list(parts["ia3_l"].shape), module in self.feedforward
        if len(shape) != 2 or shape[not of_inputs] != 1:
            # as PEFT keeps them: [1, in] or [out, 1]
            what = "inputs, [1, n]" if of_inputs else "outputs, [n, 1]"
            raise ValueError(f"has a vector of shape {shape}, its configuration says that it scales {what}")
        return Ia3Weights(parts["ia3_l"].flatten(), of_inputs=of_inputs)
