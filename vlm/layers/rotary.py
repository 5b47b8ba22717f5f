"""Frequencies of rotary positions, plain or stretched to longer contexts, from what a configuration says of them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlm.errors import ConfigError, cut, listed, shown
from vlm.ops.rotary_angles import rotary_angles

# kinds -> the keys that each reads, and those that it cannot do without
READ = {
    "default": (),
    "linear": ("factor",),
    "dynamic": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
}
KINDS = tuple(READ)
AXES = 3  # of positions, where frequencies are shared among several: time, rows, columns
SMALL_HEAD = 16  # values
NEEDED = {"linear": {"factor"}, "llama3": set(READ["llama3"])}


@dataclass(frozen=True)
class RotaryConfig:
    """Holds what Hugging Face's `rope_parameters` say, under their names.

    `yarn`: Peng et al., arXiv:2309.00071; `llama3`: Llama 3.1's.
    """

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
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    sections: tuple[int, ...] = ()  # frequencies by time, rows, columns, time, …; (): positions of one axis

    @classmethod
    def parse(cls, hf: dict[str, Any], head_dim: int, max_positions: int, theta: float = 10000.0) -> RotaryConfig:
        """Returns what `rope_scaling` (which prevails) or `rope_parameters` says, with `rope_theta` beside or within;
        ConfigError for a kind that is not supported. Keys that a kind does not read change nothing."""
        settings = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
        kind = settings.get("rope_type") or settings.get("type") or "default"
        if kind not in KINDS:
            raise ConfigError(f"rope_type is {shown(kind)}, supported are {listed(KINDS)}.")
        share = settings.get("partial_rotary_factor") or hf.get("partial_rotary_factor") or 1
        if kind != "default" and share != 1:
            raise ConfigError(f"partial_rotary_factor is {cut(share)} beside rope_type {shown(kind)}, supported is 1.")
        base = settings.get("rope_theta") or hf.get("rope_theta") or theta
        original = settings.get("original_max_position_embeddings") or max_positions
        options = {name: settings[name] for name in READ[kind] if settings.get(name) is not None}
        if kind == "yarn":
            options.setdefault("factor", max_positions / original)
        if absent := sorted(NEEDED.get(kind, set()) - set(options)):
            raise ConfigError(f"rope_type is {shown(kind)}, which needs {listed(absent)} in rope_parameters.")
        config = cls(float(base), head_dim, kind, original_positions=original, **options)
        if not config._is_finite():
            raise ConfigError(f"rope_parameters are {shown(settings)}, of which no rotary positions can be made.")
        return config

    def _is_finite(self) -> bool:
        """Says whether frequencies are numbers: those of a small head, as one that is not checked yet may be of any
        size."""
        try:
            frequencies, scale = dataclasses.replace(self, dims=SMALL_HEAD).frequencies()
        except (ArithmeticError, TypeError, ValueError):
            return False
        return math.isfinite(scale) and bool(frequencies.isfinite().all())

    def frequencies(self) -> tuple[Tensor, float]:
        """Returns the frequencies [dims / 2] float32, and what cosines and sines are multiplied by."""
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
            """Returns the frequency that makes so many turns over the original context."""
            return self.dims * math.log(self.original_positions / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = place(self.beta_fast), place(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dims - 1)
        ramp = (torch.arange(self.dims // 2).float() - low) / (high - low or 0.001)
        extrapolation = 1 - ramp.clamp(0, 1)
        return plain / self.factor * (1 - extrapolation) + plain * extrapolation, self._yarn_scale()

    def _yarn_scale(self) -> float:
        def scale(mscale: float) -> float:
            return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        both = self.mscale and self.mscale_all_dim
        return scale(self.mscale) / scale(self.mscale_all_dim) if both else scale(1.0)


class Rotary(nn.Module):
    """Turns positions into cosines and sines, once a pass for all layers. Call `init_buffers` before."""

    def __init__(self, config: RotaryConfig):
        super().__init__()
        self.config = config

    def init_buffers(self, device: torch.device) -> None:
        frequencies, self.scale = self.config.frequencies()
        self.inverse = frequencies.to(device)
        axes = [i % AXES for i, size in enumerate(self.config.sections) for _ in range(size)]
        self.axes = torch.tensor(axes, device=device)  # of each frequency

    def forward(self, positions: Tensor) -> Tensor:
        """Returns the cosines and sines [R, 2, dims / 2] float32 of positions [R], or [3, R] with sections."""
        return rotary_angles(positions, self.inverse, self.axes, self.scale)
