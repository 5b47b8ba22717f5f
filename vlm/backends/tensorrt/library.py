"""Which TensorRT is here: the full `tensorrt`, or `tensorrt_rtx`, which also builds on a machine without a GPU.

Both have one Python interface; all that knows of a difference between them is in this file and in `trt_targets`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from vlm.errors import EngineError

FULL, RTX = "tensorrt", "tensorrt_rtx"
MODULES = {FULL: ("tensorrt",), RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}
NEEDED = ("IKVCacheUpdateLayer", "CausalMaskKind")  # since TensorRT 11.0, and RTX 1.7 at the latest
PIP = {FULL: "pip install 'vlm-runtime[tensorrt]'", RTX: "pip install 'vlm-runtime[tensorrt-rtx]'"}


@dataclass(frozen=True)
class Library:
    """One installed TensorRT."""

    name: str  # FULL or RTX
    module: ModuleType

    @property
    def version(self) -> str:
        return self.module.__version__

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The compute capabilities that it builds for wherever it runs; () where it needs the GPU itself."""
        if self.name == FULL:
            return ()
        names = (name.lower() for name in dir(self.module.ComputeCapability) if name.startswith("SM"))
        return tuple(sorted(names, key=lambda name: int(name[2:])))

    @property
    def keeps_timings(self) -> bool:
        """Says whether kernels are timed at build. RTX chooses them when it loads a plan."""
        return self.name == FULL

    def create_network(self, builder: Any) -> Any:
        """Returns an empty network whose types are those of the graph (the only kind since TensorRT 11)."""
        flags = self.module.NetworkDefinitionCreationFlag
        return builder.create_network(1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0)


def installed() -> dict[str, Library]:
    """Returns the libraries that can be imported, by name, the full one first. Raises EngineError for one that is
    broken or too old."""
    modules = {name: _imported(name) for name in MODULES}
    libraries = {name: Library(name, module) for name, module in modules.items() if module is not None}
    for name, library in libraries.items():
        if not all(hasattr(library.module, attribute) for attribute in NEEDED):
            upgrade = PIP[name].replace("install", "install --upgrade")
            raise EngineError(f"{name} {library.version} is too old: it cannot update caches in place; {upgrade}.")
    return libraries


def versions() -> dict[str, str]:
    """Returns the versions of the installed libraries, by name."""
    return {name: library.version for name, library in installed().items()}


def named(name: str, libraries: Mapping[str, Library]) -> Library:
    """Returns the library of a name. Raises EngineError with the pip command where it is not installed."""
    if name not in libraries:
        raise EngineError(f"{name} is not installed; {PIP[name]}.")
    return libraries[name]


def _imported(name: str) -> ModuleType | None:
    for module in MODULES[name]:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != module:
                raise _broken(name, error) from error
        except (ImportError, OSError) as error:
            raise _broken(name, error) from error
    return None


def _broken(name: str, error: Exception) -> EngineError:
    return EngineError(f"{name} is installed but does not load ({error}); install it again: {PIP[name]}.")
