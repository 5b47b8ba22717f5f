"""`vlm convert`: a Hugging Face, FairSeq or NeMo model -> a checkpoint of ours."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from vlm.artifacts.native.checkpoint import Checkpoint, is_checkpoint
from vlm.artifacts.prompt_tables import PromptTables, is_tables
from vlm.config import BuildConfig
from vlm.errors import VlmWarning, counted
from vlm.parallel.environment import check_alone
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command
from vlm_app.cli.options.groups import Group, takes

SPLIT = Group.making(BuildConfig).only("tp_size", "encoder_tp_size", "pp_size").changed(
    tp_size={"help": "Split it for so many GPUs that split each layer, a file each."},
    pp_size={"help": "Split it for so many pipeline stages that share the layers, each of tp_size GPUs."},
)  # fmt: skip


@command
@takes(split=SPLIT)
def convert(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face or FairSeq folder, a FairSeq or .nemo archive, a Hub id or a packaged name; to split"
            " or to merge, a checkpoint, too."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the checkpoint goes.")],
    tokenizer: Annotated[
        str | None,
        typer.Option(help="FairSeq: what splits texts before BPE, moses or none. [default: as the model was trained]"),
    ] = None,
    merge_lora: Annotated[
        Path | None,
        typer.Option(
            "--merge-lora", help="An adapter (LoRA, DoRA or IA3, a folder of PEFT's) to merge into the weights."
        ),
    ] = None,
    split: BuildConfig,
) -> None:
    """Convert a model into a checkpoint; NeMo's tuned prompts into a folder for --prompt-table, its IA3 into PEFT's.

    Every tensor must be used or known to be superfluous, and every weight filled with the exact shape; otherwise
    nothing is written. With --tp-size or --pp-size each rank's weights lie in a file of their own, and vlm build takes
    them with the same options. The path goes to stdout, the tasks of tuned prompts to stderr.

    \b
    Examples:
      vlm convert facebook/nougat-base -o nougat-base.ckpt
      vlm convert ./my-finetuned-nougat -o nougat.ckpt
      vlm convert wmt14.en-fr.joined-dict.transformer.tar.bz2 -o en-fr.ckpt
      vlm convert GPT-2B-001_bf16_tp1.nemo -o gpt-next.ckpt
      vlm convert p_tuning_squad.nemo -o tables
      vlm convert google/flan-t5-xxl -o flan-t5-xxl-tp2.ckpt --tp-size 2
      vlm convert google/flan-t5-base -o notices.ckpt --merge-lora ./notices-lora
    """
    check_alone("vlm convert")
    from vlm.build.from_model import convert_model

    with Progress() as progress:
        sizes = {name: getattr(split, name) for name in SPLIT.options}
        path = convert_model(source, out, tokenizer=tokenizer, merge_lora=merge_lora, progress=progress, **sizes)
    _check_tokenizer(path)
    if is_tables(path):
        print("\n".join(tasks_of(PromptTables.open(path))), file=sys.stderr)
    print(path)


def tasks_of(tables: PromptTables) -> list[str]:
    """Returns a line of each task of tuned prompts: its number, its name and its rows."""
    return [
        f"task {number}: {prompt.name}, {counted(len(prompt.rows), 'row')}"
        for number, prompt in enumerate(tables.prompts)
    ]


def _check_tokenizer(path: Path) -> None:
    """Warns of a checkpoint that has no tokenizer; what was tuned beside a model needs none."""
    if is_checkpoint(path) and "tokenizer.json" not in {file.name for file in Checkpoint.open(path).processor_files}:
        warnings.warn(
            f"{path} has no tokenizer, so it reads and writes token ids (--input-ids) in place of texts; for texts put"
            " the tokenizer's files beside the model's config.json and convert it again.",
            VlmWarning,
            stacklevel=2,
        )
