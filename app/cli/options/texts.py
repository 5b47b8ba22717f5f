"""What the verbs on texts share: decoding options, reading, writing, reporting."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vlm.errors import InputError, VlmWarning, counted, listed, shown
from vlm.options import option
from vlm.requests.sampling_values import read_ids
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.display.result_file import check_opens
from vlm_app.cli.errors import PARTLY_FAILED, print_error
from vlm_app.cli.options import decoding

if TYPE_CHECKING:
    from vlm.api.capabilities import Capabilities
    from vlm.api.pipeline import Pipeline
    from vlm.registry.spec import FamilySpec
    from vlm_app.core.load_options import LoadOptions
    from vlm_app.text.job import Report
    from vlm_app.text.sources import Item
    from vlm_app.text.tasks import ToInput

DEFAULT_TEXT_MODEL = "mini-t5"
ONE: Mapping[str, Any] = {}  # sampling options that ask for one output

Texts = Annotated[list[str] | None, typer.Argument(help="Texts; - reads stdin, as --file reads a file.")]


@dataclass(frozen=True)
class TextFiles:
    """Where texts come from beside arguments, and where outputs go."""

    file: tuple[Path, ...] = option(
        (),
        "Read this file, a text a line (.tsv: up to the first tab; .jsonl: an object's); repeat it.",
        flags=("--file", "-f"),
    )
    input_ids: Path | None = option(
        None, "Instead of texts: token ids, a row an input, of a .csv, .npy or .jsonl file."
    )
    out: Path | None = option(None, "Write here.", flags=("--out", "-o"), default="stdout")


def read_beginning(text: str) -> tuple[int, ...]:
    """Reads the ids of the tokens that outputs begin with. InputError for anything else."""
    ids = read_ids(text)
    return ids if isinstance(ids, tuple) else (ids,)


@dataclass(frozen=True)
class Framing:
    """What goes with each text."""

    src_lang: str | None = option(None, "Of the texts: en, or a model's own code such as en_XX.")
    tgt_lang: str | None = option(None, "Of the translations.")
    prefix: str | None = option(None, "What is put before each text, in place of T5's own words.")
    suffix: str | None = option(None, 'What is put after each text, as it is: " TL;DR:".')
    truncate: bool = option(
        False, "Cut texts that are too long, at the side that the model's tokenizer says (truncation_side; mostly the"
        " end). A suffix stays; a prompt leaves room for --max-new-tokens.",
    )  # fmt: skip
    decoder_prompt_token_ids: tuple[int, ...] | None = option(
        None, "Where each output of a model with an encoder begins: token ids, the start token first, as 0,20,31"
        " (Hugging Face's decoder_input_ids).", default="the model's start token, or a language's", read=read_beginning,
    )  # fmt: skip

    def begun(self, pipeline: Pipeline, to_input: ToInput) -> ToInput:
        """Returns what makes an input of a text, with the tokens that its output begins with. Raises InputError for a
        model that has no such place."""
        ids = self.decoder_prompt_token_ids
        if ids is None:
            return to_input
        decoding.check_has_encoder(pipeline)
        return lambda text: {**to_input(text), "decoder_prompt_token_ids": ids}

    def translation(self, pipeline: Pipeline) -> ToInput:
        """Returns what makes a translation's input of a text. Raises InputError for languages that do not suit the
        model."""
        from vlm_app.text.tasks import translation

        return translation(
            pipeline, self.src_lang, self.tgt_lang, prefix=self.prefix, truncate=self.truncate, suffix=self.suffix
        )


def items_of(
    texts: list[str] | None,
    files: TextFiles,
    *,
    whole: bool = False,
    of_json: Callable[[Item], Item] | None = None,
) -> Iterator[Item]:
    """Returns the texts of arguments, or of files, whose lines of JSON `of_json` reads. Raises InputError, before a
    model is loaded, unless one of both is given, for a file that is not there, and for an output that cannot be
    written."""
    from vlm_app.text.sources import STDIN, from_arguments, from_file, text_of

    if bool(texts) == bool(files.file):
        raise InputError('give texts or files: "A text.", - for stdin, or --file FILE.')
    for file in files.file:
        _check_readable(file)
    check_output("--out", files.out, files.file, reads_stdin=STDIN in (texts or ()))
    for name in filter(os.path.isfile, texts or ()):
        warnings.warn(
            f"{shown(name)} is taken as a text; --file reads the file of that name.", VlmWarning, stacklevel=2
        )
    if files.file:
        return chain.from_iterable(from_file(file, whole, of_json or text_of) for file in files.file)
    return from_arguments(texts or (), whole)


def ids_of(file: Path, others: Mapping[str, object], out: Path | None = None) -> list[Item]:
    """Returns the token ids of a file. Raises InputError, before a model is loaded, for what is none, and for the
    `others`, options of texts by their names, that were given."""
    from vlm_app.text.token_ids import read_token_ids

    if unsupported := [name for name, value in others.items() if value not in (None, False, [], ())]:
        raise InputError(f"--input-ids stands for the texts as the model reads them; leave {listed(unsupported)} out.")
    check_output("--out", out, [file])
    return read_token_ids(file)


def _check_readable(file: Path) -> None:
    """Raises InputError for a file that is not there or cannot be read; a pipe will do, too."""
    from vlm_app.text.sources import check_ends

    if file.is_dir() or not file.exists():
        remedy = "; give - in place of texts for stdin" if str(file) == "-" else "; give a text file"
        raise InputError(f"--file {file} {'is a folder' if file.is_dir() else 'does not exist'}{remedy}.")
    if not os.access(file, os.R_OK):
        raise InputError(f"--file {file} cannot be read: permission denied.")
    try:
        check_ends(file)
    except OSError as error:
        raise InputError(f"--file {file} cannot be read: {error.strerror}.") from None


def check_output(option: str, out: Path | None, inputs: Sequence[Path] = (), *, reads_stdin: bool = False) -> None:
    """Raises InputError for a file that cannot be written or that is read; leaves nothing behind."""
    if out is None:
        return
    is_read = any(file.exists() and out.samefile(file) for file in inputs) if out.exists() else False
    if is_read or (reads_stdin and _is_stdin(out)):
        raise InputError(f"{option} {out} is the file that is read; give another one.")
    check_opens(out, option)


def _is_stdin(file: Path) -> bool:
    """Says whether stdin is this file, of which a shell has opened one end: to open it anew would empty it."""
    with contextlib.suppress(OSError, ValueError):  # it has none, or there is no such file
        status = os.fstat(sys.stdin.fileno())
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, file.stat())
    return False


def streams(texts: list[str] | None, out: Path | None, as_json: bool, sampling: Mapping[str, Any] = ONE) -> bool:
    """Says whether an output appears as it is decoded: a lone text's only one, on a terminal."""
    several = sampling.get("num_return_sequences", 1) > 1
    return is_alone(texts) and not as_json and not several and _on_terminal(out)


def is_alone(texts: list[str] | None) -> bool:
    """Says whether it is one text, not a file's or stdin's."""
    return texts is not None and len(texts) == 1 and texts != ["-"]


def _on_terminal(out: Path | None) -> bool:
    return out is None and sys.stdout.isatty()


def run_job(
    pipeline: Pipeline,
    items: Iterable[Item],
    to_input: ToInput,
    out: Path | None,
    stream: bool,
    *,
    what: str = "text",
    **options: Any,
) -> None:
    """Writes what a TextJob with these options makes of each item and reports on stderr, where one of them is a `what`;
    exits with 1 if some failed."""
    from vlm_app.text.job import TextJob
    from vlm_app.text.token_ids import without_padding

    items = without_padding(_of_model(items, pipeline.capabilities), pipeline.config.pad_token_id)
    with _opened(out) as file, Progress() as progress:
        if not _on_terminal(out):  # where lines would run through the bar
            options["show"] = lambda report: progress(f"{what.capitalize()}s", report.texts, 0, _rate(report))
        running = TextJob(pipeline, to_input, file, **options)
        report = running.stream(next(iter(items))) if stream else running.run(items)
    texts, tokens = counted(report.texts, what), counted(report.tokens, "token")
    print(f"{texts}, {tokens} in {report.seconds:.2f} s{_rate(report, ', ')}", file=sys.stderr)
    for failure in report.failures:
        print_error(failure)
    if report.failures:
        raise typer.Exit(PARTLY_FAILED)


def _of_model(items: Iterable[Item], capabilities: Capabilities) -> Iterator[Item]:
    """Yields the items without what lines of data sets may say and the model is never told: a task, a question. One
    that has no other words is what a model without tasks is asked."""
    told = {"task": capabilities.tasks, "question": capabilities.takes_question or capabilities.asking_tasks}
    others = {name for name, takes in told.items() if not takes}
    for item in items:
        question = item.fields.get("question") if "question" in others else None
        text = question if isinstance(question, str) and not item.text else item.text
        fields = {name: value for name, value in item.fields.items() if name not in others}
        yield replace(item, text=text, fields=fields)


def _rate(report: Report, before: str = "") -> str:
    if not report.tokens or not report.seconds:
        return ""
    return f"{before}{report.tokens / report.seconds:,.0f} tokens/s"


@contextlib.contextmanager
def _opened(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    try:
        file = out.open("w", encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"--out {out} cannot be written: {error.strerror}.") from None
    with file:
        yield file


def load_text_model(model: str, options: LoadOptions) -> Pipeline:
    """Loads a model. Raises InputError for one that takes no text or writes none."""
    return decoding.load(model, options, partial(_check_text_family, model))


def _check_text_family(model: str, family: FamilySpec) -> None:
    if "decoder" not in family.roles:
        raise InputError(f"{model} is an encoder alone, which writes no text; give vlm encode or a whole model.")
    if not family.takes_text:
        raise InputError(f"{model} takes images, not text; vlm models lists what takes text.")
