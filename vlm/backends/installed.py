"""The backends that are installed, through the entry-point group `vlm.backends`. Nothing that builds or runs is
imported."""

from __future__ import annotations

import contextlib
import functools
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from vlm.backends.base import Backend
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError, listed

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir

GROUP = "vlm.backends"
# what the sentences of a build's errors name
NAMED = ("dtype", "group_size", "pp_size", "quantization", "target", "tp_size")


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    """Returns the entry points of backends by name, the default one first."""
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    return dict(sorted(entries.items(), key=lambda item: (item[0] != BuildConfig.backend, item[0])))


@functools.cache
def _load(name: str) -> Backend:
    try:
        return _entries()[name].load()()
    except (ImportError, AttributeError) as error:
        raise EngineError(f"the backend {name} is installed but does not load ({error}); install it again.") from error


def names() -> tuple[str, ...]:
    """Returns the names of all backends, the default one first."""
    return tuple(_entries())


@functools.cache
def backends() -> tuple[Backend, ...]:
    """Returns all backends, the default one first, but for those that do not load: to name one of them is an error,
    and costs the others nothing."""
    usable = []
    for name in names():
        with contextlib.suppress(EngineError):
            usable.append(_load(name))
    return tuple(usable)


def backend(name: str) -> Backend:
    """Raises ConfigError for a name that no installed package brings, EngineError for one that does not load."""
    if name not in _entries():
        raise ConfigError(f"backend is {name!r}, allowed are {listed(names())}.", settings=("backend",))
    return _load(name)


def backend_of(engine: EngineDir) -> Backend:
    """Returns what an engine was built for. Raises EngineError where it is not installed."""
    if (name := engine.manifest.backend) not in _entries():
        raise EngineError(
            f"the engine {engine.path} was built for the backend {name!r}, which is not installed; installed are"
            f" {listed(names())}: install the package that brings it, or build the engine for one of these."
        )
    return _load(name)


def checked_backend(build: BuildConfig) -> Backend:
    """Returns the backend of a build. Raises ConfigError with every reason why it never builds one like this."""
    choice = backend(build.backend)
    if errors := [*_option_errors(choice, build), *choice.errors(build)]:
        raise ConfigError("; ".join(errors) + ".", settings=NAMED)
    return choice


def quantizations() -> tuple[str, ...]:
    """Returns the names of all quantizations of weights."""
    return tuple(dict.fromkeys(kind for each in backends() for kind in each.quantizations))


def quantizers(kind: str) -> list[str]:
    """Returns the names of the backends that take a quantization."""
    return [each.name for each in backends() if kind in each.quantizations]


def _option_errors(choice: Backend, build: BuildConfig) -> list[str]:
    errors, kind = [], build.quantization
    if build.target and not choice.takes_targets:
        takers = [each.name for each in backends() if each.takes_targets]
        errors.append(f"target is {','.join(build.target)}, only the backend {listed(takers)} takes one")
    if build.num_ranks > 1 and not choice.splits:
        takers = [each.name for each in backends() if each.splits]
        name = "tp_size" if build.tp_size > 1 else "pp_size"
        errors.append(f"{name} is {getattr(build, name)}, only the backend {listed(takers)} splits networks: give that")
    if kind is not None and kind not in quantizations():
        calibrated = (
            "awq, gptq and smoothquant are of vlm quantize --format"  # whose checkpoints are built as any other
        )
        errors.append(f"quantization is {kind!r}, allowed are {listed(quantizations())}, while {calibrated}")
    elif kind is not None and kind not in choice.quantizations:
        errors.append(f"quantization is {kind}, which {choice.name} does not take; {listed(quantizers(kind))} can")
    elif kind is not None and build.group_size is not None and kind not in choice.grouped:
        errors.append(f"group_size is {build.group_size}, quantization {kind} has no groups; leave it out")
    return errors
