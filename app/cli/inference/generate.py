"""`vlm generate`: prompts in, what a language model goes on with out."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from vlm.errors import InputError, listed
from vlm.options import by_flag
from vlm_app.cli.errors import command
from vlm_app.cli.options import decoding, texts
from vlm_app.cli.options.common import MODEL_HELP, Json
from vlm_app.cli.options.extras import LINES_EXTRAS, Extras
from vlm_app.cli.options.groups import LOADING_ADAPTERS, SAMPLING, Group, takes
from vlm_app.cli.options.idle import warn_of_idle
from vlm_app.core.load_options import LoadOptions
from vlm_app.text.prompts import prompt_of


@command
@takes(
    files=Group.making(texts.TextFiles), framing=Group.making(texts.Framing).only("suffix", "truncate"),
    sampling=SAMPLING, extras=LINES_EXTRAS, options=LOADING_ADAPTERS,
)  # fmt: skip
def generate(
    *,
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; - reads stdin, as --file reads a file.")] = None,
    files: texts.TextFiles,
    model: Annotated[str | None, typer.Option("--model", "-m", help=MODEL_HELP)] = None,
    raw_prompt: Annotated[
        bool, typer.Option("--raw-prompt", help="The prompts as they are, not in the model's chat template.")
    ] = False,
    framing: texts.Framing,
    chat: decoding.Chat = False,
    sampling: dict[str, Any],
    extras: Extras,
    as_json: Json = False,
    options: LoadOptions,
) -> None:
    """Go on with prompts, in their order.

    A lone prompt's output is printed as it is, and on a terminal as it is decoded. Of several prompts, and of a file or
    stdin (-), which hold a prompt a line, each output is one line; of several outputs a prompt (--num-return-sequences)
    each is one, best first, and in JSON the others are "alternatives". A prompt that fails is named on stderr and
    leaves an empty line for each output; the others are done and the exit code is 1. An empty line is passed through;
    an empty argument is a prompt, which models go on with whose tokenizers begin it.

    A .jsonl file has "prompt" or "text" in each line, or a conversation in "messages", and for models that take them
    "images" (paths, from the working folder or the file's own) or "image", with "question" for a prompt if it has none.
    Messages may hold images between their texts: {"role": "user", "content": [{"type": "image", "path": "a.png"},
    {"type": "text", "text": "What is it?"}]}. "lora" and "task" name its adapter and its task, of the model's own (with
    "question" beside it, where it answers one) or of --prompt-table.

    \b
    Examples:
      vlm generate "Once upon a time" --model openai-community/gpt2 --max-new-tokens 40
      vlm generate "def add(a, b):" --model openai-community/gpt2 --temperature 0.8 --num-return-sequences 3
      vlm generate --file prompts.txt -o answers.jsonl --json --model facebook/opt-2.7b
      vlm generate --file conversations.jsonl -o answers.txt --model llava-hf/llava-1.5-7b-hf
      vlm generate --chat --model lmsys/vicuna-7b-v1.5
      vlm generate "A review:" "A poem:" --prompt-table tuned.npy --tasks 0,1 --model facebook/opt-2.7b
    """
    extras = extras.among(options.adapters)
    others = {"--raw-prompt": raw_prompt, **by_flag(framing, "suffix", "truncate")}
    if chat:
        several = sampling.get("num_return_sequences", 1) > 1
        _check_chat({"the prompts": prompt, "--file": files.file, "--out": files.out, "--input-ids": files.input_ids,
                     **others, "--num-return-sequences": several})  # fmt: skip
        extras.alone()  # raises before the model is loaded
        items = []
    elif files.input_ids is not None:
        others |= {"prompts": prompt, "--file": files.file}
        items = extras.on_items(texts.ids_of(files.input_ids, others, files.out))
    else:
        items = extras.on_items(texts.items_of(prompt, files, of_json=partial(prompt_of, raw=raw_prompt)))
    name = decoding.packaged_chat_model() if model is None else model
    if name is None:
        raise InputError("--model is missing; name a decoder: --model openai-community/gpt2.")
    check = partial(decoding.check_chat_model, what="vlm generate")
    pipeline, sampling = decoding.load(name, options, check), sampling | options.adapter
    extras.check_fit(pipeline)
    warn_of_idle(pipeline, sampling, options, as_json=as_json)
    if chat:
        from vlm_app.cli.inference.chat import converse

        converse(pipeline, sampling, [], extras=extras, json_lines=as_json, profiling=False)
        return
    fields = {"suffix": framing.suffix, "truncate": framing.truncate}
    key = "raw_prompt" if raw_prompt else "prompt"
    texts.run_job(
        pipeline, items, lambda text: {key: text, **fields}, out=files.out,
        stream=texts.streams(prompt, files.out, as_json, sampling), what="prompt", sampling=sampling, as_json=as_json,
        alone=texts.is_alone(prompt),
    )  # fmt: skip


def _check_chat(others: dict[str, object]) -> None:
    """Raises InputError for options that were given: --chat asks on stdin and answers on stdout."""
    if flags := [name for name, value in others.items() if value not in (None, False, [], ())]:
        raise InputError(f"--chat is a conversation over stdin and stdout; leave {listed(flags)} out.")
