"""The tensors of a NeMo archive: one file, or one a rank of the tensor parallelism it was trained with.

Megatron-LM (Shoeybi et al., arXiv:1909.08053): a layer's first projections are cut by their outputs, its second ones by
their inputs, the embedding by its vocabulary; all else every rank has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vlm.artifacts.hf_folder import read_pickle
from vlm.errors import CheckpointError, listed

WEIGHTS = "model_weights.ckpt"
EMBEDDING = "model.language_model.embedding.word_embeddings.weight"
HEAD = "model.language_model.output_layer.weight"
CUT = (
    (re.compile(r".*\.(word_embeddings|output_layer)\.weight"), 0),
    (re.compile(r".*\.(query_key_value|dense_h_to_4h|dense_h_to_4h_2)\.(weight|bias)"), 0),
    (re.compile(r".*\.(self_attention\.dense|dense_4h_to_h)\.weight"), 1),
)


class RankFiles(Mapping[str, Tensor]):
    """The tensors of all ranks under one set of names, put together when they are looked up.

    Raises CheckpointError for files that are missing, damaged, unsafe, or not of one model.
    """

    def __init__(self, folder: Path, joined_gate: bool = False, size: int | None = None):
        """`joined_gate`: `dense_h_to_4h` holds a gate and what it gates, a rank's half of each; `size`: of the ranks,
        as the configuration has it"""
        self.folder, self.joined_gate = folder, joined_gate
        files = weight_files(folder)
        if files[0].parent != folder and size not in (None, len(files)):
            raise CheckpointError(
                f"{folder}: tensor_model_parallel_size is {size}, but there are weights of {len(files)}."
            )
        self._ranks = [_named_alike(read_pickle(path)) for path in files]
        for number, rank in enumerate(self._ranks):
            if other := sorted(set(rank) ^ set(self._ranks[0])):
                raise CheckpointError(f"{folder}: ranks 0 and {number} differ in their tensors {listed(other)}.")

    def __getitem__(self, name: str) -> Tensor:
        parts = [rank[name] for rank in self._ranks]
        dim = next((dim for pattern, dim in CUT if pattern.fullmatch(name)), None)
        if dim is None or len(parts) == 1:
            return parts[0]
        if self.joined_gate and ".dense_h_to_4h." in name:
            parts = [half for halves in zip(*(part.chunk(2) for part in parts), strict=True) for half in halves]
        return self._together(name, parts, dim)

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks[0])

    def __len__(self) -> int:
        return len(self._ranks[0])

    def __contains__(self, name: object) -> bool:
        return name in self._ranks[0]

    def _together(self, name: str, parts: Sequence[Tensor], dim: int) -> Tensor:
        try:
            return torch.cat(list(parts), dim)
        except (RuntimeError, IndexError):
            shapes = listed(list(part.shape) for part in parts)
            raise CheckpointError(f"{self.folder}: the ranks' parts of {name} do not fit ({shapes}).") from None


def weight_files(folder: Path) -> list[Path]:
    """Returns one file, or one a rank in their order; CheckpointError where they are not there or not of a kind that is
    read."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if any(folder.glob("tp_rank_*_pp_rank_*")):
        raise CheckpointError(
            f"{folder} was trained in a pipeline (tp_rank_…_pp_rank_…); bring it to one stage with NeMo's"
            " megatron_change_num_partitions.py."
        )
    if (folder / "model_weights").is_dir():
        raise CheckpointError(
            f"{folder} keeps its weights as a distributed checkpoint (model_weights/), which is not read; supported are"
            f" {WEIGHTS} and mp_rank_00/{WEIGHTS}."
        )
    ranks = sorted(folder.glob("mp_rank_*"))
    if not ranks:
        raise CheckpointError(f"{folder} holds no weights; expected are {WEIGHTS} or mp_rank_00/{WEIGHTS} and so on.")
    paths = [folder / f"mp_rank_{number:02d}" / WEIGHTS for number in range(len(ranks))]
    if absent := [path.relative_to(folder) for path in paths if not path.is_file()]:
        raise CheckpointError(f"{folder} lacks {listed(absent)} of its {len(ranks)} ranks.")
    return paths


def _named_alike(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Models of half precision (`megatron_amp_O2`) lie in a module more."""
    return {re.sub(r"^model\.module\.", "model.", name): tensor for name, tensor in state.items()}
