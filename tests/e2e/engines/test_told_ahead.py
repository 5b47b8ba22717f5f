"""What the networks of FairSeq's, NeMo's and LLaVA's own forms tell of a build: said before they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kits.cli_kit import call, one_sentence
from tests.kits.models import tiny
from tests.kits.ocr_jobs import EXAMPLES
from tests.kits.publications.fairseq_kit import Published
from tests.kits.publications.nemo_kit import GPTNext, archive, gpt2_files
from tests.parity.vision_language.test_llava_form import write


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    Published(seed=5).write(folder / "fairseq")
    config = {"position_embedding_type": "learned_absolute", "vocab_size": 48}
    files = gpt2_files(folder)
    archive(GPTNext(**config).unpacked(folder / "content", files), folder / "gpt.nemo", "w:gz")
    write(tiny.llava(seed=3), folder / "llava", "inside")
    return folder


INT4 = ("--quantization", "int4", "--group-size", "48")
STATIC = ("--format", "w8a8", "--static-activations", "--calibrate", "texts.txt")


@pytest.mark.parametrize(("verb", "name", "options", "words"), [
    ("build", "fairseq", INT4, "groups of 48 weights do not divide 16 inputs"),
    ("build", "gpt.nemo", INT4, "groups of 48 weights do not divide"),
    ("build", "llava", INT4, "groups of 48 weights do not divide"),
    ("build", "fairseq", ("--quantization", "int8", "--ignore", "nosuch"), "--ignore names nosuch, which no layer"),
    ("build", "fairseq", ("--group-size", "16"), "names no --quantization; name one, or leave that out."),
    ("build", "fairseq", ("--max-seq-len", "9999"), "--max-seq-len is 9999, this model allows at most"),
    ("build", "gpt.nemo", ("--max-encoder-input-len", "9"), "this model has no encoder of texts: --max-seq-len is"),
    ("build", "gpt.nemo", ("--tp-size", "64"), "cannot be split among 64 ranks; run the model on fewer GPUs."),
    ("build", "gpt.nemo", ("--tp-size", "2", "--encoder-tp-size", "1"), "this one's parts are decoder; leave it out."),
    ("convert", "fairseq", ("--pp-size", "9"), "cannot be cut into 9 pipeline stages"),
    ("convert", "gpt.nemo", ("-o", "texts.txt"), "texts.txt is a file; the checkpoint of vlm needs a directory"),
    ("convert", "fairseq", ("-o", "texts.txt"), "texts.txt is a file; the checkpoint of vlm needs a directory"),
    ("quantize", "fairseq", ("--format", "int4", "--group-size", "48"), "groups of 48 weights do not divide 16"),
    ("quantize", "fairseq", ("--format", "gptq", "--calibrate", EXAMPLES / "page.png"), "fairseq takes texts"),
    ("quantize", "gpt.nemo", ("--format", "gptq", "--calibrate", EXAMPLES / "page.png"), "gpt2 takes texts"),
    ("quantize", "llava", (*STATIC, "--ignore", "head"), "--calibrate texts.txt holds no images, and --ignore leaves"),
    ("run", "fairseq", ("--max-seq-len", "9999"), "--max-seq-len is 9999, this model allows at most"),
])  # fmt: skip
def test_what_networks_tell_is_told_before_they_are_written(sources, tmp_path, monkeypatch, verb, name, options, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlm.artifacts.native.checkpoint.write_parts", None)  # which would be a call of None
    (tmp_path / "texts.txt").write_text("A text.\nAnother one.\n")
    asked = (verb, sources / name, "-o", "q") if verb != "run" else (verb, "--text", "w1 w2", "--model", sources / name)
    assert words in one_sentence(call(*asked, *options))
    assert {path.name for path in tmp_path.iterdir()} <= {"texts.txt", "cache"}
    assert (tmp_path / "texts.txt").is_file()


def test_a_place_that_is_taken_is_told_before_an_archive_is_unpacked(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("llm_engines.converters.nemo.convert.opened", None)  # which would be a call of None
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "notes").touch()
    said = one_sentence(call("convert", sources / "gpt.nemo", "-o", tmp_path / "q"))
    assert "exists and is no checkpoint of vlm, so it is not replaced" in said


@pytest.mark.parametrize("line", [
    ("convert", "mini-t5", "-o", "."), ("build", "mini-t5", "-o", "."), ("quantize", "mini-t5", "-o", "."),
    ("convert", "mini-t5", "-o", ".."), ("quantize", "mini-t5", "-o", "q", "--export", "."),
], ids=" ".join)  # fmt: skip
def test_the_folder_of_the_shell_is_not_taken_from_it(line, tmp_path, monkeypatch):
    """A folder of that name is another one, and the shell would stay in what was removed."""
    (tmp_path / "outer" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "outer" / "here")
    assert "holds the folder that this program runs in, which a" in one_sentence(call(*line))
    assert [*(tmp_path / "outer").rglob("*")] == [tmp_path / "outer" / "here"] == [Path.cwd()]
