"""`vlm summarize`: documents in, summaries out."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vlm.options import by_flag
from vlm_app.cli.errors import command
from vlm_app.cli.options import texts
from vlm_app.cli.options.common import Json, Model
from vlm_app.cli.options.extras import LINES_EXTRAS, Extras
from vlm_app.cli.options.groups import LOADING_ADAPTERS, SAMPLING, Group, takes
from vlm_app.cli.options.idle import warn_of_idle
from vlm_app.core.load_options import LoadOptions


@command
@takes(
    files=Group.making(texts.TextFiles), framing=Group.making(texts.Framing).without("tgt_lang"),
    sampling=SAMPLING, extras=LINES_EXTRAS, options=LOADING_ADAPTERS,
)  # fmt: skip
def summarize(
    *,
    text: texts.Texts = None,
    files: texts.TextFiles,
    model: Model = texts.DEFAULT_TEXT_MODEL,
    by_line: Annotated[bool, typer.Option("--lines", help="A document a line, not one a file.")] = False,
    framing: texts.Framing,
    sampling: dict[str, Any],
    extras: Extras,
    as_json: Json = False,
    options: LoadOptions,
) -> None:
    """Summarize documents, a line each, in their order.

    A file, and stdin (-), is one document, or with --lines one a line; a .jsonl file holds one in the field "text" of
    each line. T5 models get "summarize: " before it, multilingual ones are told its language by code. A document that
    fails (not UTF-8, too long) is named on stderr and leaves an empty line; the others are done and the exit code is 1.
    Of several outputs a document (--num-return-sequences) each is a line, best first; in JSON the others are
    "alternatives".

    \b
    Examples:
      vlm summarize "The meeting on Monday is moved to room 12. It starts at 3:00 p.m."
      vlm summarize --file notices.jsonl -o summaries.txt
      vlm summarize --file article.txt --model facebook/bart-large-cnn --truncate
      vlm summarize --file article.txt --model openai-community/gpt2 --truncate --suffix " TL;DR:" --max-new-tokens 60
      vlm summarize --file artikel.txt --src-lang de_DE --model ./mbart-tuned-to-summarize
      vlm summarize --file notices.jsonl --prompt-table tuned.npy --tasks 0 --model ./tuned-t5
    """
    if files.input_ids is not None:
        others = {"--lines": by_line, **by_flag(framing, "src_lang", "prefix", "suffix", "truncate")}
        items = texts.ids_of(files.input_ids, {"texts": text, "--file": files.file, **others}, files.out)
    else:
        items = texts.items_of(text, files, whole=not by_line)
    items = extras.among(options.adapters).on_items(items)
    pipeline, sampling = texts.load_text_model(model, options), sampling | options.adapter
    extras.check_fit(pipeline)
    warn_of_idle(pipeline, sampling, options, as_json=as_json)
    from vlm_app.text.tasks import check_source, summary

    if files.input_ids is None:
        check_source(pipeline, framing.src_lang)
    to_input = summary(pipeline, framing.prefix, framing.truncate, framing.suffix, framing.src_lang)
    to_input = framing.begun(pipeline, to_input)
    stream = texts.streams(text, files.out, as_json, sampling)
    texts.run_job(pipeline, items, to_input, out=files.out, stream=stream, sampling=sampling, as_json=as_json)
