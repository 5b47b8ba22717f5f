"""`vlm export-triton`: a model -> a model repository for Triton Inference Server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command
from vlm_app.cli.options.common import MODEL_HELP
from vlm_app.cli.options.groups import LOADING, takes
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.triton_options import ExportConfig


@command
@takes(options=LOADING)
def export_triton(
    *,
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the repository goes.")],
    name: Annotated[str | None, typer.Option(help="What clients ask for. [default: the model's]")] = None,
    instances: Annotated[int, typer.Option(help="Processes that each load the engine.")] = ExportConfig.instances,
    stream: Annotated[
        bool, typer.Option("--stream", help="Answers come as they are decoded (Triton's decoupled mode).")
    ] = ExportConfig.stream,
    options: LoadOptions,
) -> None:
    """Write a Triton model repository: preprocessing, the engine, postprocessing, and the ensemble of the three.

    A repository that is there takes the model beside its others. Its path goes to stdout. `vlm serve
    --model-repository` serves it, too.

    What says how the engine is run (--threads, the cache's fractions, --max-seq-len, …) is written into the engine's
    configuration, as parameters; Triton and `vlm serve` load it so.

    \b
    Examples:
      vlm export-triton mini-t5 -o repository
      vlm export-triton llava-hf/llava-1.5-7b-hf -o repository --name llava --device cuda:0 --max-batch-size 32
      tritonserver --model-repository repository
    """
    name = Path(model).name.removesuffix(".engine") if name is None else name
    config = ExportConfig(name, options.build.get("max_batch_size", 1), instances, load=options, stream=stream)
    from dataclasses import replace

    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm_app.server.repository import pbtxt
    from vlm_app.triton.export import export

    pbtxt.schema()
    with Progress() as progress:
        engine = EngineDir.open(options.resolve(model, _on(options.device), progress))
        limit = options.build.get("max_batch_size", engine.limits.max_batch_size)
        export(engine, out, replace(config, max_batch_size=limit))
    print(out)


def _on(device: str) -> str:
    """Returns what is built for: of a machine that may be another one; without a GPU here, `auto` means none."""
    import torch

    return "cuda" if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()) else "cpu"
