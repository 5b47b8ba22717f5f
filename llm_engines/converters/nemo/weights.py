"""The tensors of a NeMo archive: one file, or one for each rank of the tensor and pipeline parallelism that it was
trained with.

Megatron-LM (Shoeybi et al., arXiv:1909.08053): a layer's first projections are cut by their outputs, its second ones by
their inputs, the embedding by its vocabulary; all else every rank has. Stages of a pipeline count their layers from 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.hugging_face.hf_folder import read_nested_pickle
from vlm.errors import CheckpointError, listed

WEIGHTS = "model_weights.ckpt"
CUT = (
    (re.compile(r".*\.(word_embeddings|output_layer|tokens_head)\.(weight|bias)"), 0),
    (re.compile(r".*\.(query_key_value|query|key_value|dense_h_to_4h|dense_h_to_4h_2)\.(weight|bias)"), 0),
    (re.compile(r".*_infused_adapter\.scalers"), 0),
    (re.compile(r".*\.ptuning_adapter\.first\.(weight|bias)"), 0),
    (re.compile(r".*\.ptuning_adapter\.second\.weight"), 1),
    (re.compile(r".*\.(self_attention\.dense|inter_attention\.dense|dense_4h_to_h)\.weight"), 1),
)
COPIES = {"model.word_embeddings.weight", "enc_dec_model.word_embeddings.weight"}
LAYER = re.compile(r"(.*\.layers\.)(\d+)(\..+)")
RANK = re.compile(r"mp_rank_(\d+)|tp_rank_(\d+)_pp_rank_(\d+)")


def read_weights(folder: Path, config: Mapping[str, Any], pieces: Callable[[str], int]) -> Mapping[str, Tensor]:
    """Returns the tensors of all ranks under the names of the whole model, put together when they are looked up.

    `pieces`: of how many parts, one after the other, a tensor is, of each of which a rank has its part. Raises
    CheckpointError for files that are missing, damaged, unsafe, or not of one model.
    """
    files = weight_files(folder)
    if files[0][0].parent != folder:
        sizes = {"tensor_model_parallel_size": len(files[0]), "pipeline_model_parallel_size": len(files)}
        for name, count in sizes.items():
            if config.get(name) not in (None, count):
                raise CheckpointError(f"{folder}: {name} is {config[name]}, but there are weights of {count}.")
    stages = [Stage(folder, ranks, pieces) for ranks in files]
    return stages[0] if len(stages) == 1 else Pipeline(stages)


def weight_files(folder: Path) -> list[list[Path]]:
    """Returns for each stage of the pipeline a file a rank, in their order; CheckpointError where they are not there or
    not of a kind that is read."""
    if (folder / WEIGHTS).is_file():
        return [[folder / WEIGHTS]]
    ranks = [match for path in folder.iterdir() if (match := RANK.fullmatch(path.name))]
    if not ranks:
        raise CheckpointError(f"{folder} holds no weights; expected are {WEIGHTS} or mp_rank_00/{WEIGHTS} and so on.")
    staged = any(match[3] for match in ranks)
    stages = min(1 + max(int(match[3] or 0) for match in ranks), len(ranks))
    size = -(-len(ranks) // stages)
    name = "tp_rank_{:02d}_pp_rank_{:03d}" if staged else "mp_rank_{:02d}"
    paths = [[folder / name.format(rank, stage) / WEIGHTS for rank in range(size)] for stage in range(stages)]
    if absent := [path.relative_to(folder) for row in paths for path in row if not path.is_file()]:
        raise CheckpointError(f"{folder} lacks {listed(absent)} of its {len(ranks)} ranks.")
    return paths


class Stage(Mapping[str, Tensor]):
    """The tensors of the ranks of one stage of a pipeline, under one set of names."""

    def __init__(self, folder: Path, files: Sequence[Path], pieces: Callable[[str], int]):
        self.folder, self.pieces = folder, pieces
        self._ranks = [_named_alike(read_nested_pickle(path)) for path in files]
        for number, rank in enumerate(self._ranks):
            if other := sorted(set(rank) ^ set(self._ranks[0])):
                raise CheckpointError(f"{folder}: ranks 0 and {number} differ in their tensors {listed(other)}.")

    def __getitem__(self, name: str) -> Tensor:
        parts = [rank[name] for rank in self._ranks]
        dim = next((dim for pattern, dim in CUT if pattern.fullmatch(name)), None)
        if dim is None or len(parts) == 1:
            return parts[0]
        count = self.pieces(name)
        try:
            ordered = [x for piece in zip(*(part.chunk(count) for part in parts), strict=True) for x in piece]
            return torch.cat(ordered, dim)
        except (RuntimeError, IndexError, ValueError):
            shapes = listed(list(part.shape) for part in parts)
            raise CheckpointError(f"{self.folder}: the ranks' parts of {name} do not fit ({shapes}).") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._ranks[0])

    def __len__(self) -> int:
        return len(self._ranks[0])

    def __contains__(self, name: object) -> bool:
        return name in self._ranks[0]


class Pipeline(Mapping[str, Tensor]):
    """The tensors of all stages, their layers numbered through. Of one that several stages have, the first one's; the
    last stage's copy of an embedding, for its head, is none."""

    def __init__(self, stages: Sequence[Stage]):
        self._places: dict[str, tuple[Stage, str]] = {}
        before: Counter[str] = Counter()
        for stage in stages:
            for name in (name for name in stage if name not in COPIES):
                self._places.setdefault(_renumbered(name, before), (stage, name))
            layers = {match.groups()[:2] for name in stage if (match := LAYER.fullmatch(name))}
            before.update(stack for stack, _ in layers)

    def __getitem__(self, name: str) -> Tensor:
        stage, own = self._places[name]
        return stage[own]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places


def _renumbered(name: str, before: Counter[str]) -> str:
    """Returns a layer's tensor under its number in the whole model; `before`: layers of earlier stages by stack."""
    match = LAYER.fullmatch(name)
    return f"{match[1]}{int(match[2]) + before[match[1]]}{match[3]}" if match else name


def _named_alike(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Models of half precision (`megatron_amp_O2`) lie in a module more."""
    return {re.sub(r"^(model|enc_dec_model)\.module\.", r"\1.", name): tensor for name, tensor in state.items()}
