"""`vlm translate`: texts in one language in, in another out."""

from __future__ import annotations

from typing import Any

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
    files=Group.making(texts.TextFiles), framing=Group.making(texts.Framing), sampling=SAMPLING,
    extras=LINES_EXTRAS, options=LOADING_ADAPTERS,
)  # fmt: skip
def translate(
    *,
    text: texts.Texts = None,
    files: texts.TextFiles,
    model: Model = texts.DEFAULT_TEXT_MODEL,
    framing: texts.Framing,
    sampling: dict[str, Any],
    extras: Extras,
    as_json: Json = False,
    options: LoadOptions,
) -> None:
    """Translate texts, a line each, in their order.

    A file, and stdin (-), holds a text a line; a .jsonl file has it in the field "text" of each line. T5 models are
    told the languages in words ("translate English to German: "), multilingual ones by code: those of several targets
    alone (OPUS-MT, MADLAD-400) need --tgt-lang only, or have it in the text; those whose own settings name the target
    (mBART-50 many to one) need --src-lang only. A line that fails (not UTF-8, too long) is named on stderr and leaves
    an empty line; the others are done and the exit code is 1. Of several outputs a text (--num-return-sequences) each
    is a line, best first; in JSON the others are "alternatives".

    \b
    Examples:
      vlm translate --src-lang en --tgt-lang de "The small house is old."
      vlm translate --src-lang de --tgt-lang en --file saetze.txt -o sentences.txt --num-beams 4
      cat lines.txt | vlm translate - --model facebook/mbart-large-50-many-to-many-mmt --src-lang en_XX --tgt-lang ro_RO
      vlm translate --model facebook/nllb-200-distilled-600M --src-lang eng_Latn --tgt-lang fra_Latn "The sea is calm."
      vlm translate --model Helsinki-NLP/opus-mt-en-ROMANCE --tgt-lang fr "The sea is calm."
      vlm translate --input-ids ids.npy --model facebook/bart-base --early-stopping never --num-beams 6
      vlm translate --file lines.txt --prompt-table tuned.npy --tasks 2 --model ./tuned-t5 --prefix ""
    """
    if files.input_ids is not None:
        others = by_flag(framing, "src_lang", "prefix", "suffix", "truncate")
        items = texts.ids_of(files.input_ids, {"texts": text, "--file": files.file, **others}, files.out)
    else:
        items = texts.items_of(text, files)
    items = extras.among(options.adapters).on_items(items)
    pipeline, sampling = texts.load_text_model(model, options), sampling | options.adapter
    extras.check_fit(pipeline)
    warn_of_idle(pipeline, sampling, options, as_json=as_json)
    from vlm_app.text.tasks import translation_of_ids

    if files.input_ids is None:
        to_input = framing.translation(pipeline)
    else:
        to_input = translation_of_ids(pipeline, framing.tgt_lang)
    to_input = framing.begun(pipeline, to_input)
    stream = texts.streams(text, files.out, as_json, sampling)
    texts.run_job(pipeline, items, to_input, out=files.out, stream=stream, sampling=sampling, as_json=as_json)
