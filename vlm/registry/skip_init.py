"""Networks without first values, which loaded weights replace (torch.nn.utils.skip_init for whole networks)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def skeleton(make: Callable[[], nn.Module]) -> nn.Module:
    """Makes a network on the meta device: shapes and types alone."""
    with torch.device("meta"), _SkipInit():
        return make()


class _SkipInit(TorchFunctionMode):
    """Skips torch.nn.init: on the meta device its first random number imports torch's compiler, 2 s of a start."""

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
