"""app/text: readers, order, tasks, pairs, scores; and what the verbs make of a terminal and of their output paths."""

from __future__ import annotations

import io
import itertools
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlm.api.pipeline import Output
from vlm.errors import InputError, VlmWarning
from vlm.registry.tokenizer_rules import Languages
from vlm_app.cli.options import texts as text_options
from vlm_app.cli.options.texts import TextFiles, load_text_model
from vlm_app.core.load_options import LoadOptions
from vlm_app.text import scores
from vlm_app.text.evaluation import Run, agreement
from vlm_app.text.job import TextJob, in_order
from vlm_app.text.pairs import read_pairs
from vlm_app.text.sources import Item, from_arguments, from_file, one_text
from vlm_app.text.tasks import answer, check_source, summary, translation
from vlm_app.text.token_ids import read_token_ids


class FakePipeline:
    """Answers out of order, `window` inputs at once, none of them late without end; "bad" cannot be answered."""

    tokenizer = SimpleNamespace()

    def __init__(self, window=3):
        self.window = window

    def as_completed(self, inputs, *, on_error, **sampling):
        assert on_error == "yield"
        waiting, numbered, answered = [], enumerate(inputs), 0
        while waiting := [*waiting, *itertools.islice(numbered, self.window - len(waiting))]:
            index, given = waiting.pop(0 if answered % 3 == 2 else -1)
            answered += 1
            yield index, self._answer(given["text"])

    def stream(self, given, **sampling):
        self.last_output = self._answer(given["text"])
        if isinstance(self.last_output, Exception):
            raise self.last_output
        yield from (self.last_output.text[:2], self.last_output.text[2:])

    @staticmethod
    def _answer(text):
        if text == "bad":
            return InputError("it is too long; shorten it.")
        return Output(text.upper(), text, [5, 1], "eos", [-0.1, -0.2], 7)


def as_input(text):
    return {"text": text}


def items(*texts):
    return [Item("f", number, text) for number, text in enumerate(texts, 1)]


# --- reading ---
def test_lines_of_a_file(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"\xef\xbb\xbfone\r\n\n  two\x0bthree\xe2\x80\xa8four \n\xe4\xff\nlast")
    found = list(from_file(file))
    assert [item.text for item in found] == ["one", "", "  two\x0bthree\u2028four ", "", "last"]
    assert [item.error for item in found if item.error] == ["it is not UTF-8 (byte 1 of it)"]
    assert found[3].place == f"{file} line 4"


@pytest.mark.parametrize("whole", [False, True])
def test_what_other_programs_save_as_utf_16_is_no_text(tmp_path, whole):
    file = tmp_path / "lines.txt"
    for encoding in ("utf-16-le", "utf-16-be"):  # as PowerShell writes it
        file.write_bytes("\ufefftwo\nthree\n".encode(encoding))
        [item] = from_file(file, whole)
        assert item.place == str(file) and item.error == "it is UTF-16; save it as UTF-8"
    file.write_bytes("two\n".encode("utf-16-le") + b"th\0ree")
    assert all("has a NUL character" in item.error for item in from_file(file, whole))


def test_texts_of_columns_stand_ahead_of_their_references(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_bytes(b"the house\tdas Haus\r\n\na dog\n\xff\tx\ntwo\ttabs\there\n")
    texts = [(item.line, item.text) for item in from_file(file) if not item.error]
    assert texts == [(1, "the house"), (2, ""), (3, "a dog"), (5, "two")]
    assert [item.line for item in from_file(file) if item.error] == [4]


def test_endings_of_names_may_be_in_capitals(tmp_path):
    contents = {"A.JSONL": '{"text": "a", "reference": "b"}', "A.TSV": "a\tb"}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        assert [item.text for item in from_file(tmp_path / name)] == ["a"]
        assert [pair.reference for pair in read_pairs(tmp_path / name)[0]] == ["b"]
    (tmp_path / "IDS.CSV").write_text("5,6\n")
    assert [item.fields["input_ids"] for item in read_token_ids(tmp_path / "IDS.CSV")] == [[5, 6]]


def test_a_whole_file_and_jsonl(tmp_path):
    file = tmp_path / "whole.txt"
    file.write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    [item] = from_file(file, whole=True)
    assert (item.text, item.place) == ("one\ntwo\n", str(file))
    rows = ['{"text": "a"}', "", '{"document": "b"}', "[1]", '{"text": 3}', '{"text": "\\ud800"}', "[" * 99999, "nul"]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    found = list(from_file(tmp_path / "rows.jsonl", whole=True))
    assert [item.text for item in found if item.error is None] == ["a", "", "b"]
    assert [item.line for item in found if item.error] == [4, 5, 6, 7, 8]
    assert "character 1 of it is not Unicode text" in found[5].error
    words = 'it is no JSON object with "text"'
    assert [found[place].error for place in (3, 6, 7)] == [
        words, f"{words}: it is nested too deeply", f"{words}: Expecting value at column 1"
    ]  # fmt: skip


def test_arguments_and_stdin(monkeypatch):
    def stdin(data):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    stdin(b"x\ny\n")
    assert [(item.text, item.place) for item in from_arguments(["a", "-"])] == [
        ("a", "text 1"), ("x", "stdin line 1"), ("y", "stdin line 2")
    ]  # fmt: skip
    stdin(b"x\ny\n")
    assert [(item.text, item.place) for item in from_arguments(["-"], whole=True)] == [("x\ny\n", "stdin")]
    stdin("\ufeffä\nö".encode())
    assert one_text("-") == "ä\nö"
    stdin(b"\xff")
    for wrong in ("-", "a\udcff"):  # how Python hands over an argument that is not UTF-8
        with pytest.raises(InputError, match=r"not (UTF-8|Unicode)"):
            one_text(wrong)


# --- order ---
@pytest.mark.parametrize("window", [1, 3, 50])
def test_lines_keep_their_order_and_place(window):
    texts = [f"t{i}" if i % 3 else ("" if i % 2 else "bad") for i in range(40)]
    out = io.StringIO()
    report = TextJob(FakePipeline(window), as_input, out, sampling={}).run(items(*texts))
    assert out.getvalue().split("\n")[:-1] == [text.upper() if text.startswith("t") else "" for text in texts]
    assert report.texts == 40 and report.tokens == 2 * sum(text.startswith("t") for text in texts)
    assert len(report.failures) == texts.count("bad")
    assert report.failures[0] == "f line 1: it is too long; shorten it."


def test_few_items_are_read_ahead():
    read = 0

    def source():
        nonlocal read
        for item in items(*[f"t{i}" for i in range(200)]):
            read += 1
            yield item

    for done, _ in enumerate(in_order(FakePipeline(4), source(), as_input, {})):
        assert read - done < 20


def test_an_output_is_one_line_and_json_says_all():
    out = io.StringIO()
    TextJob(FakePipeline(), as_input, out, sampling={}).run(items("a\u2028b\nc"))
    assert out.getvalue() == "A B C\n"
    out = io.StringIO()
    broken = Item("f", 2, error="it is not UTF-8")
    TextJob(FakePipeline(), as_input, out, sampling={}, as_json=True).run([*items("a"), broken, Item("g", None, "b")])
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert first["source"] == "a" and first["text"] == "A" and (first["file"], first["line"]) == ("f", 1)
    assert first["tokens"] == 2 and first["logprobs"] == [-0.1, -0.2] and "score" not in first
    assert second["error"] == "it is not UTF-8" and "line" not in third and third["file"] == "g"


def test_a_lone_text_on_a_terminal_is_streamed(monkeypatch):
    monkeypatch.setattr(text_options, "_on_terminal", lambda out: out is None)
    assert text_options.streams(["a"], None, False) and not text_options.streams(["a"], None, True)
    for texts, out in ((["a", "b"], None), (["-"], None), (None, None), (["a"], "file")):
        assert not text_options.streams(texts, out, False)
    for text, written, failures in (("hello", "HELLO\n", 0), ("bad", "\n", 1), (" ", " \n", 0)):
        out = io.StringIO()
        report = TextJob(FakePipeline(), as_input, out, sampling={}).stream(Item("", 1, text))
        assert out.getvalue() == written and len(report.failures) == failures and report.texts == 1


def test_an_output_path_is_tried_and_left_alone(tmp_path, monkeypatch):
    source, new = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("kept")
    text_options.check_output("--out", new, [source])
    assert not new.exists()
    text_options.check_output("--out", source)
    with pytest.raises(InputError, match="is the file that is read"):
        text_options.check_output("--out", tmp_path / "." / "in.txt", [source])
    with pytest.raises(InputError, match="directory"):
        text_options.check_output("--out", tmp_path)
    with source.open() as stdin:  # as a shell opens it: translate - -o in.txt < in.txt
        monkeypatch.setattr("sys.stdin", stdin)
        text_options.check_output("--out", source)
        text_options.check_output("--out", new, reads_stdin=True)
        with pytest.raises(InputError, match="is the file that is read"):
            text_options.items_of(["-"], TextFiles(out=source))
    assert source.read_text() == "kept"


def test_a_text_that_is_the_name_of_a_file_is_told_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("a")
    with pytest.warns(VlmWarning, match=r"^'notes\.txt' is taken as a text; --file reads the file of that name\.$"):
        [item] = text_options.items_of(["notes.txt"], TextFiles())
    assert item.text == "notes.txt"
    with pytest.raises(InputError, match=r"^--file - does not exist; give - in place of texts for stdin\.$"):
        text_options.items_of([], TextFiles((Path("-"),)))


# --- tasks ---
def pipeline_of(family, codes=None, pair=None, **generation):
    languages = codes and Languages(dict.fromkeys(codes, 1), end_id=2, source_first=True, starts_output=False)
    return SimpleNamespace(
        family=SimpleNamespace(name=family), tokenizer=SimpleNamespace(languages=languages, pair=pair),
        engine=SimpleNamespace(generation=generation),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target", "prefix", "text"),
    [
        ("en", "de", None, "translate English to German: a"),
        ("EN", "Romanian", None, "translate English to Romanian: a"),
        ("french", "en", None, "translate French to English: a"),
        (None, None, "fix: ", "fix: a"),
        (None, None, "", "a"),
    ],
)
def test_prefixes_of_t5(source, target, prefix, text):
    assert translation(pipeline_of("t5"), source, target, prefix, True)("a") == {"text": text, "truncate": True}


def test_prefixes_and_codes_of_others():
    assert translation(pipeline_of("bart"), None, None, None, False)("a")["text"] == "a"
    coded = translation(pipeline_of("bart", ["en_XX", "ro_RO"]), "en_XX", "ro_RO", None, False)
    assert coded("a") == {"text": "a", "src_lang": "en_XX", "tgt_lang": "ro_RO", "truncate": False}
    pair = pipeline_of("marian", pair=("en", "de"))
    for codes in (("en", "de"), ("en", None), (None, "de")):
        assert translation(pair, *codes, None, False)("a") == {"text": "a", "truncate": False}
    assert summary(pipeline_of("t5"), None, False)("a")["text"] == "summarize: a"
    assert summary(pipeline_of("bart"), None, False)("a")["text"] == "a"
    assert summary(pipeline_of("t5"), "", False)("a")["text"] == "a"
    assert summary(pipeline_of("t5"), None, False)(" ")["text"] == " "


def test_a_target_that_the_models_own_settings_name_need_not_be_given():
    """facebook/mbart-large-50-many-to-one-mmt forces the first token, facebook/mbart-large-en-ro begins with it."""
    for name in ("forced_bos_token_id", "decoder_start_token_id"):
        to_input = translation(pipeline_of("bart", ["en_XX"], **{name: 1}), "en_XX", None, None, False)
        assert to_input("a") == {"text": "a", "src_lang": "en_XX", "tgt_lang": None, "truncate": False}
    with pytest.raises(InputError, match="--tgt-lang is missing"):
        translation(pipeline_of("bart", ["en_XX"], decoder_start_token_id=2), "en_XX", None, None, False)


def test_the_language_of_what_is_summarized():
    assert summary(pipeline_of("bart", ["en_XX"]), None, False, source="en_XX")("a")["src_lang"] == "en_XX"
    check_source(pipeline_of("bart", ["en_XX"]), "en_XX")
    check_source(pipeline_of("t5"), None)
    for pipeline, code, says in (
        (pipeline_of("t5"), "en", "takes no language codes; leave --src-lang out"),
        (pipeline_of("bart", ["en_XX"]), "xx", "'xx' is unknown; this model knows en_XX"),
        (pipeline_of("bart", ["en_XX"]), None, "the source's language is missing; give src_lang"),
        (SimpleNamespace(tokenizer=None), None, "this engine has no tokenizer"),
    ):
        with pytest.raises(InputError, match=says):
            check_source(pipeline, code)


def test_questions_go_where_a_model_takes_them():
    def model(**takes):
        able = {name: takes.get(name, False) for name in ("takes_prompt", "takes_text", "takes_question")}
        family = SimpleNamespace(name="some")
        return SimpleNamespace(family=family, capabilities=SimpleNamespace(**able, asking_tasks=()))

    prompted, drawn = model(takes_prompt=True, takes_text=True), model(takes_question=True)
    assert answer(prompted, "Q: ", False, " A:")("a") == {"prompt": "Q: a", "truncate": False, "suffix": " A:"}
    assert answer(model(takes_text=True), None, True)("a") == {"text": "a", "truncate": True}
    assert answer(drawn, None, False)("a") == {"question": "a"}
    for pipeline, suffix, says in ((model(), None, "some answers no questions"), (drawn, "x", "leave them out")):
        with pytest.raises(InputError, match=says):
            answer(pipeline, None, False, suffix)


@pytest.mark.parametrize(
    ("pipeline", "asked", "says"),
    [
        (pipeline_of("t5"), ("en", None, None), "give --src-lang en --tgt-lang de"),
        (pipeline_of("t5"), ("en", "xx", None), "'xx' is unknown to T5"),
        (pipeline_of("t5"), ("en", "de", "p: "), "--prefix says the task"),
        (pipeline_of("bart"), ("en", "de", None), "this model knows no languages; leave --src-lang"),
        (pipeline_of("fairseq", pair=("", "")), ("en", "de", None), "this model knows one pair of languages; leave"),
        (pipeline_of("marian", pair=("en", "de")), ("de", "en", None), "this model translates en to de; give these"),
        (pipeline_of("marian", pair=("en", "de")), ("en", "de", "p: "), "--prefix says the task"),
        (pipeline_of("bart", ["en_XX"]), ("en_XX", None, None), "--tgt-lang is missing"),
        (pipeline_of("bart", ["en_XX"]), ("en_XX", "de", None), "'de' is unknown; this model knows en_XX"),
        (pipeline_of("bart", ["en_XX"]), (None, "en_XX", "p: "), "instead of --prefix"),
    ],
)
def test_wrong_languages(pipeline, asked, says):
    with pytest.raises(InputError, match=says):
        translation(pipeline, *asked, False)


def test_an_encoder_alone_is_refused_before_its_languages(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "t5", "architectures": ["T5EncoderModel"]}')
    with pytest.raises(InputError, match=r"is an encoder alone, which writes no text; give vlm encode"):
        load_text_model(str(tmp_path), LoadOptions())


# --- pairs and scores ---
def test_pairs_with_what_is_wrong_named(tmp_path):
    tsv = tmp_path / "a.tsv"
    tsv.write_bytes(b"\xef\xbb\xbfa\tb\r\n\nno tab\na\tb\tc\n\xff\tb\n \tb\nc\td\ne\tf\nno tab")
    pairs, wrong = read_pairs(tsv, limit=2)
    assert [(p.text, p.reference, p.place) for p in pairs] == [("a", "b", f"{tsv} line 1"), ("c", "d", f"{tsv} line 7")]
    assert [reason.split(":")[0].rpartition(" ")[2] for reason in wrong] == ["3", "4", "5", "6"]
    rows = tmp_path / "a.jsonl"
    rows.write_text('{"source": "a", "target": "b"}\n{"text": "a"}\n{"text": 1, "reference": "b"}\n' + "[" * 99999)
    pairs, wrong = read_pairs(rows)
    assert [(p.text, p.reference) for p in pairs] == [("a", "b")] and len(wrong) == 3


@pytest.mark.parametrize(("name", "says"), [("a.txt", "must be"), ("none.tsv", "cannot be read"), ("e.tsv", "no pair")])
def test_no_pairs(tmp_path, name, says):
    (tmp_path / "e.tsv").touch()
    with pytest.raises(InputError, match=says):
        read_pairs(tmp_path / name)


def test_scores():
    outputs, references = ["the cat sat on the mat", "a b c d"], ["the cat sat on the mat", "w x y z"]
    found = scores.scores(("exact", "bleu", "rouge"), outputs, references)
    assert list(found) == ["exact", "bleu", "chrf", "rouge1", "rouge2", "rougeL"]
    assert found["exact"] == 50 and found["rouge1"] == found["rougeL"] == 50 and 0 < found["bleu"] < 100
    same = scores.scores(("bleu", "rouge"), references, references)
    assert all(value == pytest.approx(100) for value in same.values())


def test_split_words_are_told_of_in_our_words_alone(caplog):
    split = ["the house ."] * 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores.scores(("bleu",), split, split)
        scores.warn_of_split_words(("bleu",), split[1:])
        scores.warn_of_split_words(("rouge", "exact"), split)
    assert not caplog.records
    with pytest.warns(VlmWarning, match="100 outputs or more end in a period that stands apart"):
        scores.warn_of_split_words(("bleu",), split)


@pytest.mark.parametrize(("metric", "module", "package"), [
    ("bleu", "sacrebleu", "sacrebleu"), ("rouge", "rouge_score.rouge_scorer", "rouge-score"),
])  # fmt: skip
def test_a_missing_library_is_said(monkeypatch, metric, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"^{package} is not installed; pip install 'vlm-runtime\[eval\]'"):
        scores.check_installed(("exact", metric))
    scores.check_installed(("exact",))


def test_agreement_counts_texts_and_tokens():
    ours, theirs = Run([], [[1, 2, 3], [4, 5]], 1.0), Run([], [[1, 2, 3], [4, 6, 7, 8]], 1.0)
    assert agreement(ours, theirs) == {"texts": 50.0, "tokens": pytest.approx(100 * 4 / 7)}


@pytest.mark.parametrize(
    ("found", "asked", "says"),
    [({"bleu": 40.0}, {"bleu": 40.0}, None), ({"bleu": 39.9}, {"bleu": 40.0}, "vlm: bleu 39.90 is below 40.\n"),
     ({"exact": 1.0, "rouge1": 2.0}, {"rouge1": 3.0, "exact": None}, "vlm: rouge1 2.00 is below 3.\n")],
)  # fmt: skip
def test_thresholds(capsys, found, asked, says):
    import typer

    from vlm_app.cli.evaluation.eval_texts import _judge

    if says is None:
        _judge(found, asked)
    else:
        with pytest.raises(typer.Exit) as done:
            _judge(found, asked)
        assert done.value.exit_code == 1
    assert capsys.readouterr().err == (says or "")
