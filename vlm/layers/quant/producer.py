"""Where a scale of a layer's inputs can be folded: into the norm or the product that they come from."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

# of the options of a manifest's quantization: the layers whose scales are folded, by their whole names; or in words the
# format of the folder that a model comes from, whose program folds them without saying where
FOLDED = "folded_scales"


@dataclass(frozen=True)
class Producer:
    """Names a norm, or a part of a Linear's outputs, that a layer's inputs are linear in, channel by channel.

    A module declares such pairs in its attribute `producers`, by the layer's path: {"ffn.up": Producer("ffn_norm")}.
    Nothing but that layer may read what is produced: outputs times a positive scale and a weight divided by it must
    give the same network.
    """

    path: str
    part: str | None = None  # of a Linear's outputs; None: a norm


def producers_of(network: nn.Module) -> dict[str, Producer]:
    """Returns what the modules of a network declare, by the layers' paths in it."""
    return {
        f"{path}.{layer}".lstrip("."): replace(producer, path=f"{path}.{producer.path}".lstrip("."))
        for path, module in network.named_modules()
        for layer, producer in getattr(module, "producers", {}).items()
    }
