"""Frequencies of rotary positions, plain or stretched to longer contexts, from what a configuration says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlm.errors import ConfigError, listed

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RotaryConfig:
    """As Hugging Face's `rope_parameters` name it. `yarn`: Peng et al., arXiv:2309.00071; `llama3`: Llama 3.1's."""

    theta: float
    dims: int  # values of a head that are turned
    kind: str = "default"
    factor: float = 1.0
    original_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    @classmethod
    def parse(cls, hf: dict[str, Any], head_dim: int, max_positions: int, theta: float = 10000.0) -> RotaryConfig:
        """From `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (before); ConfigError for a kind
        or field that is not known."""
        said = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
        kind = said.pop("rope_type", None) or said.pop("type", None) or "default"
        said.pop("type", None)
        base = said.pop("rope_theta", None) or hf.get("rope_theta") or theta
        share = said.pop("partial_rotary_factor", None) or hf.get("partial_rotary_factor") or 1.0
        if kind not in KINDS:
            raise ConfigError(f"rope_type is {kind!r}, supported are {listed(KINDS)}.")
        original = said.pop("original_max_position_embeddings", None) or max_positions
        if unknown := sorted(set(said) - set(cls.__dataclass_fields__)):
            raise ConfigError(f"rope_parameters holds {listed(unknown)}, which {kind} does not take.")
        return cls(float(base), int(head_dim * share), kind, original_positions=original, **said)

    def frequencies(self) -> tuple[Tensor, float]:
        """[dims / 2] float32, and what cosines and sines are multiplied by."""
        plain = 1.0 / self.theta ** (torch.arange(0, self.dims, 2).float() / self.dims)
        # `dynamic` stretches beyond the positions of the training alone, and a context is not allowed to go there
        if self.kind in ("default", "dynamic"):
            return plain, 1.0
        if self.kind == "linear":
            return plain / self.factor, 1.0
        return (self._llama3(plain), 1.0) if self.kind == "llama3" else self._yarn(plain)

    def _llama3(self, plain: Tensor) -> Tensor:
        wavelength = 2 * math.pi / plain
        turns = self.original_positions / wavelength
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        blend = blend.clamp(0, 1)
        return (1 - blend) * plain / self.factor + blend * plain

    def _yarn(self, plain: Tensor) -> tuple[Tensor, float]:
        def place(turns: float) -> float:
            """The frequency that makes so many turns over the original context."""
            return self.dims * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = place(self.beta_fast), place(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dims - 1)
        ramp = (torch.arange(self.dims // 2).float() - low) / max(high - low, 0.001)
        kept = 1 - ramp.clamp(0, 1)
        scale = 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0
        stretched = plain / self.factor * (1 - kept) + plain * kept
        return stretched, scale if self.attention_factor is None else self.attention_factor


class Rotary(nn.Module):
    """Positions -> cosines and sines, once a pass for all layers. Call `init_buffers` before."""

    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.config = config

    def init_buffers(self, device: torch.device) -> None:
        frequencies, self.scale = self.config.frequencies()
        self.inverse = frequencies.to(device)

    def forward(self, positions: Tensor) -> Tensor:
        """positions [R] -> [R, 2, dims / 2] float32"""
        angles = positions[:, None].float() * self.inverse
        found = torch.stack((angles.cos(), angles.sin()), 1)
        return found if self.scale == 1.0 else found * self.scale
