"""`vlm translate`: texts in one language in, in another out."""

from __future__ import annotations

from typing import Annotated

import typer
from vlm_app.cli import text_options as texts
from vlm_app.cli.errors import verb
from vlm_app.cli.options import Device, DType, Json, MaxBatchSize, MaxNewTokens, Model
from vlm_app.cli.tuned import TableFile, TaskNumbers, TunedPrompts, with_rows


@verb
def translate(
    text: texts.Texts = None,
    file: texts.Files = None,
    out: texts.OutFile = None,
    model: Model = texts.DEFAULT_TEXT_MODEL,
    src_lang: Annotated[str | None, typer.Option(help="Of the texts: en, or a model's own code such as en_XX.")] = None,
    tgt_lang: Annotated[str | None, typer.Option(help="Of the translations.")] = None,
    prefix: texts.Prefix = None,
    truncate: texts.Truncate = False,
    num_beams: texts.NumBeams = None,
    length_penalty: texts.LengthPenalty = None,
    max_new_tokens: MaxNewTokens = None,
    temperature: texts.Temperature = None,
    top_k: texts.TopK = None,
    top_p: texts.TopP = None,
    seed: texts.Seed = None,
    repetition_penalty: texts.RepetitionPenalty = None,
    no_repeat_ngram_size: texts.NoRepeatNgramSize = None,
    stop: texts.Stop = None,
    prompt_table: TableFile = None,
    tasks: TaskNumbers = None,
    as_json: Json = False,
    device: Device = "auto",
    dtype: DType = None,
    max_batch_size: MaxBatchSize = None,
) -> None:
    """Translate texts, a line each, in their order.

    A file, and stdin (-), holds a text a line; a .jsonl file has it in the field "text" of each line. T5 models are
    told the languages in words ("translate English to German: "), multilingual ones by code. A line that fails (not
    UTF-8, too long) is named on stderr and leaves an empty line; the others are done and the exit code is 1.

    \b
    Examples:
      vlm translate --src-lang en --tgt-lang de "The small house is old."
      vlm translate --src-lang de --tgt-lang en --file saetze.txt -o sentences.txt --num-beams 4
      cat lines.txt | vlm translate - --model facebook/mbart-large-50-many-to-many-mmt --src-lang en_XX --tgt-lang ro_RO
      vlm translate --file lines.txt --prompt-table tuned.npy --tasks 2 --model ./tuned-t5 --prefix ""
    """
    sampling = texts.sampling_of(
        num_beams=num_beams, length_penalty=length_penalty, max_new_tokens=max_new_tokens, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size, stop=stop,
    )  # fmt: skip
    items = texts.items_of(text, file, out)
    items = with_rows(TunedPrompts.read(prompt_table, tasks), items)
    pipeline = texts.load_text_model(model, device, dtype, max_batch_size)
    from vlm_app.text.tasks import translation

    to_input = translation(pipeline, src_lang, tgt_lang, prefix, truncate)
    stream = texts.streams(text, out, as_json)
    texts.run_job(pipeline, items, to_input, out, stream, sampling=sampling, as_json=as_json)
