"""PEFT's adapter_config.json of a LoRA: what of it decides the maths, and what of it is not done here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from vlm.artifacts.files import read_json
from vlm.errors import ConfigError, listed

T = TypeVar("T")

FILE = "adapter_config.json"
WHAT = "folder of a PEFT adapter"
# what changes the maths in ways that are not done -> the values that ask for nothing
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "use_dora": (False,),
    "bias": ("none",),
    "lora_bias": (False,),
    "modules_to_save": ([],),
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
    "init_lora_weights": (True, False, "gaussian", "orthogonal", "eva"),
}


@dataclass(frozen=True)
class PeftConfig:
    """How strongly an adapter's modules count, and what it was made for."""

    rank: int
    alpha: float
    rank_pattern: Mapping[re.Pattern[str], int]
    alpha_pattern: Mapping[re.Pattern[str], float]
    use_rslora: bool
    base: str  # the model's name, as the folder has it; may be empty

    @classmethod
    def read(cls, folder: Path) -> PeftConfig:
        """Raises ConfigError for what is no LoRA, or one of a kind that is not done; it names each reason."""
        values = read_json(folder / FILE, ConfigError, WHAT)
        if (kind := values.get("peft_type")) != "LORA":
            raise ConfigError(f"{folder} is a PEFT adapter of type {kind}; LORA is what can be loaded.")
        settings = [f"{key} {values[key]}" for key, neutral in NEUTRAL.items() if _matters(values.get(key), neutral)]
        if settings:
            raise ConfigError(
                f"the adapter {folder} has {listed(settings)}, which is not done here; merge it into its model with"
                " PEFT (merge_and_unload(), save_pretrained()) and load that."
            )
        try:
            return cls(
                _rank(values.get("r", 8)),
                float(values.get("lora_alpha", 8)),
                _patterns(values.get("rank_pattern") or {}, _rank),
                _patterns(values.get("alpha_pattern") or {}, float),
                bool(values.get("use_rslora")),
                str(values.get("base_model_name_or_path") or ""),
            )
        except (TypeError, ValueError, AttributeError, re.error) as error:
            raise ConfigError(f"{folder / FILE} holds a value that no LoRA has ({error}); fetch it again.") from None

    def rank_of(self, module: str) -> int:
        return _by_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Returns what a module's product is multiplied by."""
        rank = self.rank_of(module)
        return _by_pattern(self.alpha_pattern, module, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def _matters(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is not None and not any(value == each and type(value) is type(each) for each in neutral)


def _rank(value: Any) -> int:
    """Raises ValueError for what is no rank."""
    if (rank := int(value)) < 1:
        raise ValueError(f"a rank of {rank}")
    return rank


def _patterns(values: Mapping[str, Any], read: Callable[[Any], T]) -> dict[re.Pattern[str], T]:
    """Returns values by what the end of a module's path matches, as PEFT has it. Raises re.error for what is no
    pattern."""
    return {re.compile(rf"(.*\.)?({key})$"): read(value) for key, value in values.items()}


def _by_pattern(patterns: Mapping[re.Pattern[str], T], module: str, default: T) -> T:
    """Returns the value of the first pattern that matches."""
    return next((value for pattern, value in patterns.items() if pattern.match(module)), default)
