"""`vlm quantize`: packaged models with weights of fewer bits, calibrated on a user's inputs, and what it refuses."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.kits.cli_kit import call, ended, one_sentence
from tests.kits.models import tiny
from tests.kits.ocr_jobs import EXAMPLES
from vlm.artifacts.native.checkpoint import Checkpoint

FIGURES = {"model", "out", "format", "quantization", "quantization_options", "bytes", "device", "dtype",
           "calibrated_on", "compared_on", "held_out", "left_out", "tokens", "token_agreement", "equal_outputs",
           "logprob_difference", "dense", "quantized"}  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, cache_of_module):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quantize(model, *options):
    result = call("quantize", model, "-o", "q", "--device", "cpu", "--report", "r.json", *options)
    assert result.exit_code == 0 and result.stdout == "q\n", result.stderr
    with open("r.json", encoding="utf-8") as file:
        return json.load(file), result.stderr


def test_a_text_model_is_calibrated_on_pairs_and_translates_as_before():
    languages = ("--src-lang", "en", "--tgt-lang", "de")
    figures, told = quantize("mini-t5", "--format", "awq", "--group-size", 64, *languages, "--samples", 8,
                             "--report-samples", 4, "--calibrate", EXAMPLES / "translate.tsv")  # fmt: skip
    assert figures.keys() == FIGURES
    assert (figures["calibrated_on"], figures["compared_on"], figures["held_out"]) == (8, 4, True)
    assert figures["token_agreement"] >= 95 and figures["dense"]["exact"] == 100
    assert figures["bytes"]["quantized"] < 0.5 * figures["bytes"]["dense"]
    assert 1 <= figures["dense"]["perplexity"] <= figures["quantized"]["perplexity"] + 1e-3
    assert "held-out inputs" in told and "tokens/s" in told
    checkpoint = Checkpoint.open("q")
    assert checkpoint.quantization == "int4"
    assert checkpoint.quantization_options["group_size"] == 64
    separate = checkpoint.quantization_options["pre_quant_scale"]
    assert "decoder.blocks.0.cross_attention.kv" in separate and not [n for n in separate if "qkv" in n or ".up" in n]
    assert (
        call("translate", "The small house is old.", "--model", "q", *languages).stdout == "Das kleine Haus ist alt.\n"
    )
    assert call("build", "q", "-o", "engine").exit_code == 0
    assert call("translate", "The dog sleeps.", "--model", "engine", *languages).stdout == "Der Hund schläft.\n"
    assert "is quantized already (int4)" in one_sentence(call("quantize", "q", "-o", "again", "--format", "int8"))
    assert "is an engine" in one_sentence(call("quantize", "engine", "-o", "again"))
    assert "is the model itself" in one_sentence(call("quantize", "q", "-o", "q"))


@pytest.mark.slow
def test_a_document_model_is_calibrated_on_pages():
    pages = shutil.copytree(EXAMPLES, "pages", ignore=shutil.ignore_patterns("scene*", "*.pdf", "*.jsonl", "*.tsv"))
    figures, _ = quantize("mini-nougat", "--format", "smoothquant", "--static-activations", "--calibrate", pages,
                          "--max-new-tokens", 24)  # fmt: skip
    assert (figures["calibrated_on"], figures["compared_on"], figures["held_out"]) == (3, 3, False)
    assert figures["dense"]["references"] == 3 and figures["tokens"] == 72
    assert figures["token_agreement"] >= 90
    assert figures["quantization_options"]["input_scale"] is True
    assert "decoder.blocks.0.ffn.down" in figures["quantization_options"]["pre_quant_scale"]


@pytest.mark.slow
def test_a_chat_model_is_calibrated_on_questions_about_images():
    figures, _ = quantize("mini-llava", "--format", "gptq", "--group-size", 64, "--act-order",
                          "--ignore", "head,decoder.blocks.*.ffn", "--samples", 5, "--report-samples", 3,
                          "--calibrate", EXAMPLES / "scenes.jsonl")  # fmt: skip
    assert figures["quantized"]["exact"] >= 60 and figures["calibrated_on"] == 5
    assert figures["quantization_options"]["input_order"]
    image = ("--image", EXAMPLES / "scene1.png")
    assert call("run", "--model", "q", *image, "--prompt", "Count the green objects.").stdout == "4\n"


def test_what_needs_no_inputs_takes_none():
    figures, told = quantize("mini-t5", "--format", "fp8", "--export", "hf")
    assert figures.keys() == {"model", "out", "format", "quantization", "quantization_options", "bytes", "export"}
    assert figures["export"] == {"folder": "hf", "must_dequantize": True}
    assert "loaded with quantization_config=CompressedTensorsConfig(run_compressed=False)" in " ".join(told.split())
    assert "No inputs were given" in told and Checkpoint.open("q").quantization == "fp8"
    translated = [
        call("translate", "The dog sleeps.", "--model", model, "--src-lang", "en", "--tgt-lang", "de").stdout
        for model in ("q", "./hf")
    ]
    assert translated == ["Der Hund schläft.\n"] * 2
    assert "is none; leave it out" in one_sentence(call("quantize", "q", "-o", "again", "--export", "hf2"))
    refused = call("quantize", "mini-t5", "-o", "again", "--format", "gptq", "--act-order", "--calibrate",
                   EXAMPLES / "translate.tsv", "--export", "hf2")  # fmt: skip
    assert "has no place for input_order; leave it out, or quantize without --act-order" in one_sentence(refused)


def test_an_export_that_must_fail_is_refused_before_anything_is_quantized(folder):
    tiny.gpt2(seed=1).save_pretrained("gpt2")
    refused = call("quantize", "gpt2", "-o", "q", "--format", "int8", "--export", "hf")
    assert "is no Linear in Hugging Face's model" in one_sentence(refused)
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("mine")
    refused = call("quantize", "mini-t5", "-o", "q", "--format", "int8", "--export", "mine")
    assert "mine exists and is no folder of compressed-tensors" in one_sentence(refused)
    refused = call("quantize", "gpt2", "-o", "q", "--format", "int8", "--export", "q")
    assert "--export q is the folder of --out" in one_sentence(refused)
    assert sorted(path.name for path in folder.iterdir()) == ["gpt2", "mine"]


def test_folded_scales_are_exported():
    languages, inputs = ("--src-lang", "en", "--tgt-lang", "de"), ("--calibrate", EXAMPLES / "translate.tsv")
    options = ("--format", "smoothquant", "--samples", 4, "--report-samples", 2, "--export", "hf", *inputs, *languages)
    refused = one_sentence(call("quantize", "mini-t5", "-o", "q", "--device", "cpu", *options))
    assert "has no place for pre_quant_scale; leave it out, or quantize with --scales folded" in refused
    figures, _ = quantize("mini-t5", *options, "--scales", "folded")
    assert "pre_quant_scale" not in figures["quantization_options"] and figures["token_agreement"] >= 95
    for model in ("q", "./hf"):
        assert call("translate", "The dog sleeps.", "--model", model, *languages).stdout == "Der Hund schläft.\n"


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("mini-t5", ("--format", "awq"), "--format awq is calibrated on inputs of yours: add --calibrate"),
        ("mini-t5", ("--format", "fp8", "--static-activations"), "--static-activations is calibrated on inputs"),
        ("mini-t5", ("--format", "int3"), "--format is 'int3'; "),
        ("mini-t5", ("--format", "awq", "--alpha", "0.5"), "--alpha is for --format smoothquant, not awq"),
        ("mini-t5", ("--format", "smoothquant", "--alpha", "2"), "--alpha is 2.0; it must lie between 0 and 1"),
        ("mini-t5", ("--format", "gptq", "--samples", "0", "--calibrate", "texts.txt"), "--samples is 0; it must be"),
        ("mini-t5", ("--format", "gptq", "--calibrate", "gone"), "--calibrate gone does not exist"),
        ("mini-t5", ("--format", "gptq", "--calibrate", "empty"), "there is no document in empty"),
        ("mini-t5", ("--format", "gptq", "--calibrate", "empty.jsonl"), "--calibrate empty.jsonl holds no input"),
        ("mini-t5", ("--format", "gptq", "--calibrate", "bad.jsonl"), "bad.jsonl line 1: it is no JSON object"),
        ("mini-t5", ("--format", "gptq", "--calibrate", EXAMPLES / "page.png"), "is an image, and t5 takes texts"),
        ("mini-nougat", ("--format", "gptq", "--group-size", 64, "--calibrate", "texts.txt"), "nougat reads images"),
        ("mini-t5", ("--format", "int4", "--group-size", "48"), "groups of 48 weights do not divide 256 inputs"),
        ("mini-t5", ("--ignore", "head,nosuch"), "--ignore names nosuch, which no layer of the model matches; there"),
        ("mini-t5", ("--ignore", "encoder,decoder"), "--ignore names every layer"),
        ("mini-llava", ("--format", "w8a8", "--static-activations", "--ignore", "head", "--calibrate", "texts.txt"),
         "--calibrate texts.txt holds no images, and --ignore leaves the visual network to be quantized, which reads"
         " them; give inputs with images, or name visual in --ignore, too."),
        ("mini-llava", ("--format", "w8a8", "--static-activations", "--ignore", "head", "--calibrate", "asked.jsonl"),
         "no calibration input reaches visual."),
    ],
)  # fmt: skip
def test_what_cannot_be_quantized_is_told_in_a_sentence(folder, model, options, words):
    (folder / "empty").mkdir()
    (folder / "empty.jsonl").touch()
    (folder / "bad.jsonl").write_text("[1]\n")
    (folder / "texts.txt").write_text("A text.\nAnother one.\n")
    (folder / "asked.jsonl").write_text('{"messages": [{"role": "user", "content": "What is it?"}]}\n')
    result = call("quantize", model, "-o", "q", "--device", "cpu", "--max-new-tokens", 4, *options)
    assert words in one_sentence(result)
    assert not (folder / "q").exists()


@pytest.mark.parametrize(
    ("verb", "model", "options", "words"),
    [
        ("quantize", "mini-t5", ("--format", "int4", "--group-size", "48"), "groups of 48 weights do not divide 256"),
        ("quantize", "mini-t5", ("--format", "int4", "--ignore", "nosuch"), "--ignore names nosuch, which no layer"),
        ("quantize", "mini-t5", ("--format", "gptq", "--calibrate", EXAMPLES / "page.png"), "t5 takes texts"),
        ("quantize", "mini-nougat", ("--format", "gptq", "--calibrate", "texts.txt"), "nougat reads images"),
        ("quantize", "mini-llava", ("--format", "w8a8", "--static-activations", "--ignore", "head", "--calibrate",
                                    "texts.txt"), "--calibrate texts.txt holds no images"),
        ("build", "mini-t5", ("--quantization", "int4", "--group-size", "48"),
         "encoder.blocks.0.attention.qkv, encoder.blocks.0.attention.out and 10 more: groups of 48 weights do not"
         " divide 256 inputs; give --group-size 32, or name such layers with --ignore."),
        ("build", "mini-t5", ("--quantization", "int8", "--ignore", "nosuch"), "--ignore names nosuch, which no layer"),
        ("build", "mini-t5", ("--group-size", "48"), "--group-size is of weights that are quantized, and the build"
         " names no --quantization; name one, or leave that out."),
        ("build", "mini-nougat", ("--max-encoder-input-len", "5"), "one image takes 361 rows: give as many."),
        ("build", "mini-t5", ("-o", "texts.txt"), "texts.txt is a file; the engine directory needs a directory"),
        ("convert", "mini-t5", ("--merge-lora", "gone"), "gone is no folder of a PEFT adapter"),
        ("convert", "mini-t5", ("--pp-size", "9"), "cannot be cut into 9 pipeline stages; build with --pp-size 4"),
        ("build", "mini-t5", ("--tp-size", "64"), "cannot be split among 64 ranks; run the model on fewer GPUs."),
        ("run", "mini-nougat", ("--max-seq-len", "9999"), "--max-seq-len is 9999, this model allows at most"),
        ("build", "--random-weights", ("--arch", "t5-small", "--quantization", "int4", "--group-size", "48"),
         "groups of 48 weights do not divide 512 inputs"),
    ],
)  # fmt: skip
def test_what_a_config_tells_is_told_before_anything_is_converted(folder, monkeypatch, verb, model, options, words):
    (folder / "texts.txt").write_text("A text.\nAnother one.\n")
    monkeypatch.setattr("vlm.build.from_model.convert_folder", None)  # which would be a call of None
    monkeypatch.setattr("vlm.convert.folder.convert_folder", None)
    monkeypatch.setattr("vlm.build.random_checkpoint.write_checkpoint", None)
    asked = (verb, model, "-o", "q") if verb != "run" else (verb, "--image", EXAMPLES / "page.png", "--model", model)
    assert words in one_sentence(call(*asked, *options))
    assert not (folder / "q").exists()


def test_outputs_end_where_the_model_does_unless_told_how_long_they_are(folder):
    tiny.save_with_words(tiny.gpt2(n_positions=16), folder / "gpt2")
    (folder / "texts.txt").write_text("w1 w2 w3\nw4 w5 w6 w7 w8 w9\n")
    options = ("./gpt2", "--format", "gptq", "--group-size", 32, "--calibrate", "texts.txt")
    refused = one_sentence(call("quantize", *options, "-o", "no", "--device", "cpu", "--max-new-tokens", 256))
    assert "that the engine was built for; ask for fewer, with --max-new-tokens 1" in refused
    figures, _ = quantize(*options)
    assert figures["tokens"] == 16 - 3 + 16 - 6 and not figures["left_out"]


def test_a_folder_of_something_else_is_not_replaced(folder, capsys):
    (folder / "q").mkdir()
    (folder / "q" / "letter.txt").write_text("mine")
    code, _, told = ended(capsys, "quantize", "mini-t5", "-o", "q")
    assert code == 2 and "exists and is no checkpoint of vlm, so it is not replaced" in told
    assert (folder / "q" / "letter.txt").read_text() == "mine"
