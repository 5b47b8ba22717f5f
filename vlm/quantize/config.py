"""What `vlm quantize` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vlm.config import BuildConfig
from vlm.errors import InputError
from vlm.options import check_limits, flag_of, option, same_option
from vlm.ranges import Range, at_least, one_of

FORMATS = ("int8", "int4", "fp8", "w8a8", "awq", "gptq", "smoothquant")
GROUPS, ACTIVATIONS = ("int4", "awq", "gptq"), ("fp8", "w8a8", "smoothquant")
SCALED = ("awq", "smoothquant")


@dataclass(frozen=True)
class QuantizeConfig:
    """How weights are quantized. Raises InputError for values and combinations that are not allowed."""

    format: str = option(
        "int8", f"{', '.join(FORMATS)}; awq, gptq and smoothquant need --calibrate.", allowed=one_of(*FORMATS)
    )
    group_size: int | None = same_option(BuildConfig, "group_size")
    asymmetric: bool = option(False, f"Zero points for the groups of {', '.join(GROUPS)}.")
    act_order: bool = option(False, "gptq: columns that see large inputs first.")
    clip: bool = option(True, "awq: search the ranges of the groups, too.", flags=("--clip/--no-clip",))
    alpha: float | None = option(
        None, "smoothquant: how much of the inputs' outliers moves into the weights, 0 to 1.",
        default="the best of a grid for each layer", allowed=Range(0, 1, words="it must lie between 0 and 1"),
    )  # fmt: skip
    scales: str | None = option(
        None, f"{', '.join(SCALED)}: folded, only scales that norms and layers before can take, as compressed-tensors"
        " asks for; separate, all of them in front of their layers.",
        default="folded where that is exact, the others separate", allowed=one_of("folded", "separate"),
    )  # fmt: skip
    static_activations: bool = option(
        False, f"One scale for all inputs of a layer, for {', '.join(ACTIVATIONS)}; needs --calibrate.",
        default="a scale a token, as they come",
    )  # fmt: skip
    per_tensor_weights: bool = option(
        False, "One scale a weight, for int8, fp8, w8a8 and smoothquant.", default="a scale a channel"
    )
    ignore: tuple[str, ...] | None = same_option(BuildConfig, "ignore")
    samples: int = option(128, "Inputs to calibrate with; those beyond are for the report.", allowed=at_least(1))
    seed: int = option(0, "Of the draw of inputs and of their rows.", allowed=at_least(0))

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        only = {"group_size": GROUPS, "asymmetric": GROUPS, "act_order": ("gptq",), "scales": SCALED,
                "alpha": ("smoothquant",), "static_activations": ACTIVATIONS,
                "per_tensor_weights": ("int8", *ACTIVATIONS)}  # fmt: skip
        for name, formats in only.items():
            if getattr(self, name) not in (None, False) and self.format not in formats:
                flag = flag_of(QuantizeConfig, name)
                raise InputError(f"{flag} is for --format {' or '.join(formats)}, not {self.format}; leave it out.")

    @property
    def quantization(self) -> str:
        """Returns what a manifest calls the method that keeps the weights."""
        if self.format in GROUPS:
            return "int4-asymmetric" if self.asymmetric else "int4"
        return "w8a8" if self.format == "smoothquant" else self.format

    @property
    def quantization_options(self) -> dict[str, Any]:
        """Returns what a manifest says of the quantization beside its name."""
        parameters = dict.fromkeys(self.input_parameters, True)
        if self.static_activations:
            parameters["input_scale"] = True
        options = {"group_size": self.group_size, "ignore": None if self.ignore is None else list(self.ignore)}
        return {name: value for name, value in (options | parameters).items() if value is not None}

    @property
    def input_parameters(self) -> list[str]:
        """Returns what stands in front of each layer: parameters by which its inputs are scaled or ordered."""
        scale = ["pre_quant_scale"] if self.format in SCALED else []
        return scale + (["input_order"] if self.act_order else [])

    @property
    def needs_inputs(self) -> bool:
        """Says whether it cannot be done without calibration."""
        return self.format in ("awq", "gptq", "smoothquant") or self.static_activations
