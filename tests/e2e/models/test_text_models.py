"""The verbs on texts with other models than the packaged one: tiny random ones, with language codes and without."""

from __future__ import annotations

import json
import os

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import tiny

pytestmark = pytest.mark.usefixtures("cache_of_module")

WORDS = [f"w{i}" for i in range(50)]
CODES = ["de_DE", "en_XX", "fr_XX", "ro_RO"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
LINES = ["w1 w2 w3", "w40", "", "w7 w7 w9 w30 w2 w11 w12", "w5 w6 w33 w2"]
SHORT = ("--device", "cpu", "--max-new-tokens", "12")


def saved(folder, tokenizer_class):
    """A BART (or mBART-50) of 50 words."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS, *CODES])}
    fast = FastTokenizer(models.WordLevel(vocabulary, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    coded = tokenizer_class == "MBart50Tokenizer"
    fast.add_special_tokens([*SPECIAL, *(CODES if coded else ())])
    if not coded:
        fast.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tiny.bart(seed=4, multilingual=coded, vocab_size=len(vocabulary)).save_pretrained(folder)
    fast.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    return folder


@pytest.fixture(scope="module")
def mbart(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("mbart"), "MBart50Tokenizer")


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("bart"), "BartTokenizer")


def test_languages_by_code(mbart, tmp_path):
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    asked = ("translate", "--file", tmp_path / "lines.txt", "--model", mbart, "--src-lang", "de_DE", *SHORT)
    french, romanian = (call(*asked, "--tgt-lang", code) for code in ("fr_XX", "ro_RO"))
    assert french.exit_code == romanian.exit_code == 0, french.stderr
    pipe = vlm.load(mbart, device="cpu")
    for code, result in (("fr_XX", french), ("ro_RO", romanian)):
        inputs = [{"text": line, "src_lang": "de_DE", "tgt_lang": code} for line in LINES if line]
        want = iter(out.text for out in pipe.generate(inputs, max_new_tokens=12))
        assert result.stdout.split("\n") == [*(next(want) if line else "" for line in LINES), ""]
    assert french.stdout != romanian.stdout


@pytest.mark.parametrize(("asked", "says"), [
    (("--tgt-lang", "fr"), "language 'fr' is unknown; this model knows de_DE, en_XX, fr_XX, ro_RO"),
    (("--src-lang", "de_DE"), "--tgt-lang is missing"),
    (("--tgt-lang", "fr_XX", "--prefix", "p: "), "instead of --prefix"),
])  # fmt: skip
def test_wrong_codes(mbart, asked, says):
    result = call("translate", "w1", "--model", mbart, *asked, *SHORT)
    assert result.exit_code == 2 and says in result.stderr and not result.stdout


def test_documents_of_a_language_are_summarized(mbart):
    want = vlm.load(mbart, device="cpu").generate({"text": "w1 w2", "src_lang": "de_DE"}, max_new_tokens=12).text
    result = call("summarize", "w1 w2", "--model", mbart, "--src-lang", "de_DE", *SHORT)
    assert result.exit_code == 0 and result.stdout.rstrip("\n") == want
    result = call("summarize", "w1 w2", "--model", mbart, *SHORT)
    assert result.exit_code == 2 and "give --src-lang, which vlm translate" in result.stderr and not result.stdout


@pytest.mark.parametrize("beams", [1, 3])
def test_hugging_faces_tokens_in_float32(mbart, bart, tmp_path, beams):
    """Random weights: no score is good, all are the same."""
    pairs, out = tmp_path / "pairs.tsv", tmp_path / "eval.json"
    pairs.write_text("".join(f"{line}\tw1 w2\n" for line in LINES if line))
    options = ("--compare-hf", "--dtype", "float32", "--num-beams", beams, "--json", out, *SHORT)
    for asked in (
        ("--model", mbart, "--src-lang", "de_DE", "--tgt-lang", "fr_XX", "--metric", "bleu", "--metric", "rouge"),
        ("--model", bart, "--task", "summarize", "--repetition-penalty", "1.3"),
    ):
        result = call("eval", pairs, *asked, *options)
        assert result.exit_code == 0, result.stderr
        assert "token agreement 100.00%, texts with the same tokens 100.00%" in result.stdout
        assert "one measurement" in result.stdout and "Hugging Face, batch 8" in result.stdout
        found = json.loads(out.read_text())
        assert found["vlm"]["scores"] == found["hf"]["scores"] and found["pairs"] == 4
        assert all(row["vlm"] == row["hf"] for row in found["outputs"])
    assert set(found["hf"]["scores"]) == {"exact", "rouge1", "rouge2", "rougeL"}


@pytest.mark.parametrize("settings", [
    ("--max-new-tokens", "12"), ("--max-length", "30", "--num-beams", "3", "--repetition-penalty", "1.3"),
])  # fmt: skip
@pytest.mark.parametrize("kind", [tiny.gpt2, tiny.opt])
def test_a_decoder_beside_hugging_face(kind, settings, tmp_path):
    """Prompts of several lengths: padded in front, or in batches of one length where padding would be counted."""
    pairs, out, folder = tmp_path / "pairs.tsv", tmp_path / "eval.json", tmp_path / "model"
    pairs.write_text("".join(f"{line}\tw1 w2\n" for line in LINES if line))
    tiny.save_with_words(kind(seed=4), folder)
    asked = ("--model", folder, "--task", "summarize", "--suffix", " w3", "--dtype", "float32", "--device", "cpu")
    result = call("eval", pairs, *asked, *settings, "--compare-hf", "--json", out)
    assert result.exit_code == 0, result.stderr
    assert "token agreement 100.00%, texts with the same tokens 100.00%" in result.stdout
    rows = json.loads(out.read_text())["outputs"]
    assert all(row["vlm"] == row["hf"] for row in rows) and len({row["vlm"] for row in rows}) > 1


def test_eval_leaves_out_what_the_model_cannot_take(bart, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"text": text, "reference": "w1"} for text in ("w1 w2", "w3 " * 400, "w4")]
    pairs.write_text("\n".join([*map(json.dumps, rows), "{"]))
    result = call("eval", pairs, "--model", bart, *SHORT, "--compare-hf")
    assert result.exit_code == 0 and "2 pairs (2 left out)" in result.stdout and "100.00%" in result.stdout
    assert f"left out: {pairs} line 2: the text has" in result.stderr and f"{pairs} line 4: it is no" in result.stderr
    options = ("--compare-hf", "--dtype", "bfloat16", "--reference-dtype", "float32")
    result = call("eval", pairs, "--model", bart, *SHORT, *options)
    assert result.exit_code == 0 and "Hugging Face, float32, batch 8" in result.stdout
    result = call("eval", pairs, "--model", bart, *SHORT, "--reference-dtype", "float32")
    assert result.exit_code == 2 and "which --compare-hf runs; add --compare-hf" in result.stderr
    pairs.write_text(json.dumps(rows[1]))
    result = call("eval", pairs, "--model", bart, *SHORT)
    assert result.exit_code == 2 and "no text of the data can be given" in result.stderr


@pytest.mark.parametrize(("asked", "says"), [
    (("--metric", "meteor"), "--metric is 'meteor'; allowed are bleu, exact, rouge"),
    (("--metric", "exact", "--bleu-threshold", "1"), "does not go with --metric exact; add --metric bleu"),
    (("--json", "none/x.json"), "--json none/x.json cannot be written"),
    (("--json", "pairs.tsv"), "--json pairs.tsv is the file that is read"),
])  # fmt: skip
def test_wrong_options_of_eval_are_found_before_loading(asked, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("w1\tw2\n")
    result = call("eval", "pairs.tsv", "--model", "nothing", *asked)
    assert result.exit_code == 2 and says in result.stderr
    assert (tmp_path / "pairs.tsv").read_text() == "w1\tw2\n"


def test_a_document_from_stdin_and_lines_of_it(bart):
    whole, lines = (call("summarize", "-", "--model", bart, *flags, *SHORT, stdin="w1 w2\nw3\n")
                    for flags in ((), ("--lines",)))  # fmt: skip
    assert (whole.exit_code, len(whole.stdout.splitlines())) == (0, 1)
    assert (lines.exit_code, len(lines.stdout.splitlines())) == (0, 2)


def test_the_input_is_never_the_output(bart, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("w1\n")
    result = call("translate", "--file", file, "--model", bart, "-o", file, *SHORT)
    assert result.exit_code == 2 and "is the file that is read" in result.stderr and file.read_text() == "w1\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_a_file(bart):
    """As <(command) gives one."""
    reader, writer = os.pipe()
    os.write(writer, b"w1 w2\nw3\n")
    os.close(writer)
    result = call("translate", "--file", f"/dev/fd/{reader}", "--model", bart, *SHORT)
    os.close(reader)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 2


def test_what_is_no_text_costs_that_text(bart):
    result = call("translate", "w1", "w\udcff", "w3", "--model", bart, *SHORT)
    assert result.exit_code == 1 and [bool(line) for line in result.stdout.splitlines()] == [True, False, True]
    assert "vlm: text 2: character 2 of it is not Unicode text." in result.stderr
    result = call("run", "--text", "-", "--model", bart, stdin=b"\xff")
    assert result.exit_code == 2 and "stdin: it is not UTF-8" in result.stderr
