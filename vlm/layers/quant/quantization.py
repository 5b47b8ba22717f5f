"""Which method keeps the weight of which Linear of a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from vlm.layers.quant.base import LinearMethod
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.inputs import Inputs, QuantizedMethod


@dataclass(frozen=True)
class Quantization:
    """One method for all Linear layers but those whose names match a pattern.

    A name is the role's and the path below it: `decoder.blocks.0.ffn.up`. A pattern matches a whole name or some of its
    components that follow each other, as shells match files: `head`, `visual`, `blocks.0.*`, `ffn.down`. `inputs`: by
    the parameters of Inputs, patterns of the layers that have them.
    """

    method: LinearMethod = field(default_factory=Dense)
    ignore: tuple[str, ...] = ()
    role: str = ""
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def of_role(self, role: str) -> Quantization:
        """Returns the same for one network of a model."""
        return replace(self, role=role)

    def method_for(self, path: str) -> LinearMethod:
        """Returns what keeps the Linear at a path of the network."""
        name = f"{self.role}.{path}"
        if _matches(name, self.ignore):
            return Dense()
        if not isinstance(self.method, QuantizedMethod):
            return self.method
        return self.method.with_inputs(
            Inputs(**{parameter: _matches(name, patterns) for parameter, patterns in self.inputs.items()})
        )


def unmatched(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Returns the patterns that match none of the names of layers."""
    names = list(names)
    return [pattern for pattern in patterns if not any(_matches(name, (pattern,)) for name in names)]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(
        fnmatchcase(name, form)
        for pattern in patterns
        for form in (pattern, f"*.{pattern}", f"{pattern}.*", f"*.{pattern}.*")
    )
