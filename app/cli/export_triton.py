"""`vlm export-triton`: a model -> a model repository for Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from vlm_app.cli.errors import verb
from vlm_app.cli.options import MODEL_HELP, Device, DType, MaxBatchSize
from vlm_app.cli.progress import Progress
from vlm_app.triton.options import ExportConfig


@verb
def export_triton(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the repository goes.")],
    name: Annotated[str | None, typer.Option(help="What clients ask for. [default: the model's]")] = None,
    max_batch_size: MaxBatchSize = None,
    instances: Annotated[int, typer.Option(help="Processes that each load the engine.")] = ExportConfig.instances,
    device: Device = ExportConfig.device,
    dtype: DType = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Answers come as they are decoded (Triton's decoupled mode).")
    ] = ExportConfig.stream,
) -> None:
    """Write a Triton model repository: preprocessing, the engine, postprocessing, and the ensemble of the three.

    A repository that is there takes the model beside its others. Its path goes to stdout. `vlm serve
    --model-repository` serves it, too.

    \b
    Examples:
      vlm export-triton mini-t5 -o repository
      vlm export-triton llava-hf/llava-1.5-7b-hf -o repository --name llava --device cuda:0 --max-batch-size 32
      tritonserver --model-repository repository
    """
    name = Path(model).name.removesuffix(".engine") if name is None else name
    config = ExportConfig(name, max_batch_size or 1, instances, device, stream)
    from dataclasses import replace

    from vlm_app.triton import pbtxt
    from vlm_app.triton.export import export

    from vlm.compile.engine_dir import EngineDir
    from vlm.resolve import resolve

    pbtxt.schema()
    with Progress() as progress:
        options = {"dtype": dtype, "default_dtype": _default_dtype(device), "max_batch_size": max_batch_size}
        engine = EngineDir.open(resolve(model, progress=progress, **options))
        export(engine, out, replace(config, max_batch_size=max_batch_size or engine.build.max_batch_size))
    print(out)


def _default_dtype(device: str) -> str:
    """As `vlm run` has it there; without a GPU here, `auto` means none."""
    import torch

    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    return "bfloat16" if on_gpu else "float32"
