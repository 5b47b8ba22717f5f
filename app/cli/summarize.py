"""`vlm summarize`: documents in, summaries out."""

from __future__ import annotations

from typing import Annotated

import typer
from vlm_app.cli import text_options as texts
from vlm_app.cli.errors import verb
from vlm_app.cli.options import Device, DType, Json, MaxBatchSize, MaxNewTokens, Model
from vlm_app.cli.tuned import TableFile, TaskNumbers, TunedPrompts, with_rows


@verb
def summarize(
    text: texts.Texts = None,
    file: texts.Files = None,
    out: texts.OutFile = None,
    model: Model = texts.DEFAULT_TEXT_MODEL,
    by_line: Annotated[bool, typer.Option("--lines", help="A document a line, not one a file.")] = False,
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
    """Summarize documents, a line each, in their order.

    A file, and stdin (-), is one document, or with --lines one a line; a .jsonl file holds one in the field "text" of
    each line. T5 models get "summarize: " before it. A document that fails (not UTF-8, too long) is named on stderr and
    leaves an empty line; the others are done and the exit code is 1.

    \b
    Examples:
      vlm summarize "The meeting on Monday is moved to room 12. It starts at 3:00 p.m."
      vlm summarize --file notices.jsonl -o summaries.txt
      vlm summarize --file article.txt --model facebook/bart-large-cnn --truncate
      vlm summarize --file notices.jsonl --prompt-table tuned.npy --tasks 0 --model ./tuned-t5
    """
    sampling = texts.sampling_of(
        num_beams=num_beams, length_penalty=length_penalty, max_new_tokens=max_new_tokens, temperature=temperature,
        top_k=top_k, top_p=top_p, seed=seed, repetition_penalty=repetition_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size, stop=stop,
    )  # fmt: skip
    items = texts.items_of(text, file, out, whole=not by_line)
    items = with_rows(TunedPrompts.read(prompt_table, tasks), items)
    pipeline = texts.load_text_model(model, device, dtype, max_batch_size)
    from vlm_app.text.tasks import summary

    to_input = summary(pipeline, prefix, truncate)
    stream = texts.streams(text, out, as_json)
    texts.run_job(pipeline, items, to_input, out, stream, sampling=sampling, as_json=as_json)
