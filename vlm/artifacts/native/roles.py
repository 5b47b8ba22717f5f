"""The weights of an engine's networks by role and rank, as checkpoints and engines are written of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vlm.artifacts.progress import Progress

if TYPE_CHECKING:
    import torch

    from vlm.artifacts.weights import TensorSource

REPLICATED = ("visual",)  # roles that each rank runs whole
T = TypeVar("T")


@dataclass(frozen=True)
class RoleWeights:
    """One network of a checkpoint or engine about to be written."""

    model: str  # a ModelRef's name
    config: dict[str, Any]
    source: TensorSource
    quantized: frozenset[str] = frozenset()  # names of what a quantization keeps in types of its own

    @property
    def dtype(self) -> torch.dtype:
        """Returns the narrowest type that holds every floating tensor, but for what is quantized."""
        layout = {name: entry for name, entry in self.source.layout.items() if name not in self.quantized}
        return replace(self.source, layout=layout).dtype


def dtype_of(roles: Mapping[str, RoleWeights]) -> str:
    """Returns the narrowest type that holds every role's floating weights."""
    import functools

    import torch

    dtypes = [weights.dtype for weights in roles.values()]
    return str(functools.reduce(torch.promote_types, dtypes)).removeprefix("torch.")


def parts_of(roles: Collection[str], mapping: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns role and part of everything that the ranks of a mapping load; vlm.parallel.mapping.Mapping.of_role says
    which rank loads which part."""
    parts = range(mapping["tp"] * mapping["pp"])
    return [(role, part) for part in parts for role in roles if part < _num_parts(role, mapping)]


def _num_parts(role: str, mapping: Mapping[str, int]) -> int:
    """Returns how many parts of a role's weights there are."""
    if role in REPLICATED:
        return 1
    return mapping["pp"] * (mapping.get("encoder_tp", mapping["tp"]) if role == "encoder" else mapping["tp"])


def write_roles(
    draft: Path,
    parts: Mapping[tuple[str, int], RoleWeights],
    description: str,
    progress: Progress | None,
    workers: int = 1,
    *,
    write: Callable[..., T],
) -> dict[str, T]:
    """Writes `<role>/rank<rank>.safetensors` for every (role, rank), `workers` of them at the same time -> relative
    path to what `write` returns (vlm.artifacts.weights.write_files). Progress counts bytes."""
    from vlm.artifacts.weights import write_files

    num_bytes, total = 0, sum(weights.source.nbytes for weights in parts.values())

    def advance(count: int) -> None:
        nonlocal num_bytes
        num_bytes += count
        if progress:
            progress(description, num_bytes, total)

    for role, _ in parts:
        (draft / role).mkdir(exist_ok=True)
    sources = {f"{role}/rank{rank}.safetensors": weights.source for (role, rank), weights in parts.items()}
    return write_files(draft, sources, advance, workers=workers, write=write)


def copy_processor(files: Sequence[Path], draft: Path) -> list[Path]:
    """Copies them to `processor/`; no file, no directory."""
    copies = [draft / "processor" / file.name for file in files]
    if copies:
        (draft / "processor").mkdir()
    for file, copy in zip(files, copies, strict=True):
        shutil.copyfile(file, copy)
    return copies
