"""`vlm translate`: texts in one language in, in another out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vlm_app.cli import text_options as texts
from vlm_app.cli.errors import command
from vlm_app.cli.option_groups import LOADING, SAMPLING, takes
from vlm_app.cli.options import Json, Model
from vlm_app.cli.soft_prompts import SoftPrompts, TableFile, TaskNumbers, attach_prompt_tables
from vlm_app.core.load_options import LoadOptions


@command
@takes(sampling=SAMPLING, options=LOADING)
def translate(
    *,
    text: texts.Texts = None,
    file: texts.Files = None,
    input_ids: texts.InputIds = None,
    out: texts.OutFile = None,
    model: Model = texts.DEFAULT_TEXT_MODEL,
    src_lang: Annotated[str | None, typer.Option(help="Of the texts: en, or a model's own code such as en_XX.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Of the translations.")] = None,
    prefix: texts.Prefix = None,
    suffix: texts.Suffix = None,
    truncate: texts.Truncate = False,
    sampling: dict[str, Any],
    prompt_table: TableFile = None,
    tasks: TaskNumbers = None,
    as_json: Json = False,
    options: LoadOptions,
) -> None:
    """Translate texts, a line each, in their order.

    A file, and stdin (-), holds a text a line; a .jsonl file has it in the field "text" of each line. T5 models are
    told the languages in words ("translate English to German: "), multilingual ones by code. A line that fails (not
    UTF-8, too long) is named on stderr and leaves an empty line; the others are done and the exit code is 1. Of several
    outputs a text (--num-return-sequences) each is a line, best first; in JSON the others are "alternatives".

    \b
    Examples:
      vlm translate --src-lang en --tgt-lang de "The small house is old."
      vlm translate --src-lang de --tgt-lang en --file saetze.txt -o sentences.txt --num-beams 4
      cat lines.txt | vlm translate - --model facebook/mbart-large-50-many-to-many-mmt --src-lang en_XX --tgt-lang ro_RO
      vlm translate --input-ids ids.npy --model facebook/bart-base --early-stopping never --num-beams 6
      vlm translate --file lines.txt --prompt-table tuned.npy --tasks 2 --model ./tuned-t5 --prefix ""
    """
    if input_ids is not None:
        others = {"--src-lang": src_lang, "--prefix": prefix, "--suffix": suffix, "--truncate": truncate}
        items = texts.ids_of(input_ids, out, {"texts": text, "--file": file, **others})
    else:
        items = texts.items_of(text, file, out)
    items = attach_prompt_tables(SoftPrompts.read(prompt_table, tasks), items)
    pipeline = texts.load_text_model(model, options)
    from vlm_app.text.tasks import translation, translation_of_ids

    if input_ids is None:
        to_input = translation(pipeline, src_lang, tgt_lang, prefix, truncate, suffix)
    else:
        to_input = translation_of_ids(pipeline, tgt_lang)
    stream = texts.streams(text, out, as_json, sampling)
    texts.run_job(pipeline, items, to_input, out, stream, sampling=sampling, as_json=as_json)
