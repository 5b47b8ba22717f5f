"""`vlm convert`: a Hugging Face model -> a checkpoint of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import verb
from app.cli.progress import Progress
from vlm.errors import InputError


@verb
def convert(
    source: Annotated[str, typer.Argument(help="A Hugging Face folder, a Hub id or a packaged name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the checkpoint goes.")],
) -> None:
    """Convert a Hugging Face model into a checkpoint.

    Every tensor must be used or known to be superfluous, and every weight filled with the exact shape; otherwise
    nothing is written. The checkpoint's path goes to stdout.

    \b
    Examples:
      vlm convert facebook/nougat-base -o nougat-base.ckpt
      vlm convert ./my-finetuned-nougat -o nougat.ckpt
    """
    from vlm.compile.builder import convert_folder
    from vlm.resolve import locate

    with Progress() as progress:
        found = locate(source, progress=progress)
        if found.kind != "hf":
            raise InputError(f"{source} is converted already ({found.kind}); give a Hugging Face folder or Hub id.")
        checkpoint = convert_folder(found.path, out, progress=progress)
    print(checkpoint.path)
