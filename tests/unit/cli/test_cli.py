"""The command line: what goes where, exit codes, one sentence a mistake. Verbs that run a model see a fake of it."""

from __future__ import annotations

import errno
import functools
import io
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import vlm
from tests.kits.cli_kit import ended
from tests.unit.builder import artifact_kit
from vlm.errors import ImageError, OutOfMemoryError
from vlm.registry import catalogs
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.artifacts import models
from vlm_app.cli.main import main
from vlm_app.cli.verbs import VERBS


class FakePipeline:
    """Reads an image's name; a name that starts with `bad` cannot be read."""

    family = catalogs.family("nougat")
    engine, tokenizer = SimpleNamespace(generation={}), SimpleNamespace()
    capabilities = SimpleNamespace(
        takes_prompt=False, takes_images=True, takes_text=False, one_image_a_prompt=False, reads_pages_in_steps=False
    )

    def __init__(self):
        self.calls = []
        self.timings = {"preprocess": 0.1, "encode": 0.2, "prefill": 0.0, "decode": 0.5, "total": 0.8, "tokens": 3}

    def as_completed(self, inputs, *, on_error, **sampling):
        assert on_error == "yield"
        self.calls.append(sampling)
        # a later input may be done first
        for index, given in sorted(enumerate(inputs), reverse=True):
            yield index, self._read(given)

    def stream(self, given, **sampling):
        self.calls.append(sampling)
        self.last_output = self._read(given)
        if isinstance(self.last_output, Exception):
            raise self.last_output
        yield from ("raw ", str(given["images"][0]))

    def close(self):
        pass

    @staticmethod
    def _read(given):
        name = given["images"][0]
        if str(name).startswith("bad"):
            return ImageError(f"{name} is not an image.")
        return _output(f"text of {name} {given['prompt'] or ''}".strip())


def _output(text):
    import dataclasses

    fields = [(name, object) for name in ("text", "raw_text", "token_ids", "finish_reason", "logprobs", "seed")]
    return dataclasses.make_dataclass("Output", fields)(text, f"raw {text}", [5, 6, 2], "eos", [-0.1, -0.2, -0.3], 7)


@pytest.fixture
def loads(monkeypatch):
    """Every call of vlm.load; the pipeline is the last element's `pipeline`."""
    calls = []

    def load(model, **options):
        calls.append(SimpleNamespace(model=model, options=options, pipeline=FakePipeline()))
        return calls[-1].pipeline

    monkeypatch.setitem(vlm.__dict__, "load", load)
    return calls


@pytest.fixture
def images(tmp_path, monkeypatch):
    """Works in a folder that has the image files, which the fake pipeline reads the names of."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.png", "b.png", "bad.png"):
        (tmp_path / name).touch()


@pytest.fixture
def cli(capsys, monkeypatch, images):
    """Runs a command line -> (exit code, stdout, stderr)."""
    monkeypatch.delenv("VLM_DEBUG", raising=False)
    return functools.partial(ended, capsys)


def one_sentence(err):
    lines = err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("vlm: ") and lines[0].endswith("."), err
    return lines[0]


# --- start-up ---
def _modules_after(code):
    code += "; import sys; print([m for m in ('torch', 'transformers', 'PIL', 'numpy') if m in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1]


def test_help_and_import_load_nothing_heavy():
    assert _modules_after("import vlm") == "[]"
    code = "import sys; from vlm_app.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([m for m in ('torch', 'transformers', 'PIL', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "[]"


def test_a_verb_imports_no_other_verbs_file_and_the_command_itself_nothing():
    """Each process that a command starts imports the command again."""
    code = "import sys, vlm_app.cli.main; print(*sorted(m for m in sys.modules if m.partition('.')[0] in {names}))"
    of_command = subprocess.check_output(
        [sys.executable, "-c", code.format(names=("vlm", "vlm_app", "typer"))], text=True
    )
    assert of_command.split() == ["vlm_app", "vlm_app.cli", "vlm_app.cli.main"]
    code = "import sys; from vlm_app.cli.main import main\ntry: main(['run', '--help'])\nexcept SystemExit: pass\n"
    code += f"print(*sorted({{m.rpartition('.')[2] for m in sys.modules if '.cli.' in m}} & {set(VERBS)}))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).splitlines()[-1] == "run"


def test_a_page_is_converted_built_and_read_without_what_neither_needs(tmp_path):
    unneeded = (
        "transformers torchvision huggingface_hub sympy torch._dynamo torch._inductor torch.onnx onnx onnxruntime scipy"
        " pandas pypdfium2 fastapi rich"
    )
    run = ["run", "--image", "examples/page.png", "--device", "cpu", "--max-new-tokens", "2"]
    code = f"import sys; from vlm_app.cli.main import main\ntry: main({run})\nexcept SystemExit: pass\n"
    code += f"print(set({unneeded.split()}) & sys.modules.keys())"
    shown = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "VLM_CACHE": str(tmp_path)}, capture_output=True, text=True
    )
    assert "2 tokens (length)" in shown.stderr and shown.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    "verb",
    "run generate ocr estimate translate summarize eval convert build inspect models bench".split(),
)
def test_every_verb_has_help_with_examples(cli, verb):
    commands = ["latency", "throughput", "serve", "table"] if verb == "bench" else [None]
    for command in commands:
        code, out, _ = cli(verb, *filter(None, [command]), "--help")
        assert code == 0 and "Examples:" in out and f"vlm {verb}" in out


def test_defaults_come_from_the_dataclasses(cli):
    _, out, _ = cli("run", "--help")
    assert f"[default: {SamplingParams.temperature}]" in out
    assert cli("--version")[:2] == (0, f"vlm {vlm.__version__}\n")


# --- run ---
def test_run_prints_text_in_order(cli, loads):
    code, out, err = cli("run", "--image", "a.png", "--image", "b.png", "--seed", 3, "--max-new-tokens", 9)
    assert (code, out) == (0, "text of a.png\ntext of b.png\n")
    assert "6 tokens (eos)" in err and "12 tokens/s" in err
    assert loads[0].model == "mini-nougat" and loads[0].options["runtime"].device == "auto"
    assert loads[0].pipeline.calls == [{"seed": 3, "max_new_tokens": 9}], "the others are the model's own"


def test_run_json(cli, loads):
    code, out, _ = cli("run", "--image", "a.png", "--image", "b.png", "--json", "--prompt", "# Title")
    first, second = map(json.loads, out.splitlines())
    assert code == 0 and (first["image"], second["image"]) == ("a.png", "b.png")
    assert first["text"] == "text of a.png # Title"
    assert first["token_ids"] == [5, 6, 2] and first["tokens"] == 3 and first["finish_reason"] == "eos"


def test_run_takes_texts_or_images(cli, loads, monkeypatch):
    for wrong in ([], ["--image", "a.png", "--text", "b"]):
        code, _, err = cli("run", *wrong)
        assert code == 2 and "one kind at a time" in one_sentence(err) and not loads
    monkeypatch.setattr(FakePipeline, "_read", staticmethod(lambda given: _output(given["text"].upper())))
    monkeypatch.setattr(FakePipeline, "family", catalogs.family("t5"))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO("ä\n".encode())))
    code, out, _ = cli("run", "--text", "a", "--text", "-", "--num-beams", 2)
    assert (code, out) == (0, "A\nÄ\n\n")
    assert loads[0].model == "mini-t5" and loads[0].pipeline.calls[0]["num_beams"] == 2
    assert cli("run", "--text", "a", "--model", "other")[0] == 0 and loads[1].model == "other"


def test_stdout_is_utf8_in_any_locale():
    code = "from vlm_app.cli import main as m; m._write_utf8(); print('ü', end='')"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment) == "ü".encode()


def test_run_raw_streams(cli, loads):
    assert cli("run", "--image", "a.png", "--raw")[:2] == (0, "raw a.png\n")


def test_run_reads_stdin(cli, loads, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"bytes")))
    assert cli("run", "--image", "-")[:2] == (0, "text of b'bytes'\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO()))
    code, _, err = cli("run", "--image", "-")
    assert code == 2 and "stdin is empty" in one_sentence(err)
    monkeypatch.setattr("vlm_app.cli.inference.run_inputs.MAX_PDF_BYTES", 2**21)
    with open("/dev/zero", "rb") as endless:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=endless))
        code, _, err = cli("run", "--image", "-")
    assert code == 2 and "stdin has more than 2,097,152 bytes" in one_sentence(err)


@pytest.mark.parametrize("flags", [[], ["--raw"], ["--json"]])
def test_run_one_bad_image_costs_that_image(cli, loads, flags):
    code, out, err = cli("run", "--image", "bad.png", "--image", "b.png", *flags)
    assert code == 2 and "b.png" in out and "bad" not in out
    assert "vlm: bad.png is not an image." in err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--temperature", "-1", "--temperature is -1.0; it must be 0"),
        ("--top-p", "0", "--top-p is 0.0; it must lie"),
        ("--top-k", "-3", "--top-k is -3"),
        ("--max-new-tokens", "0", "--max-new-tokens is 0; it must be at least 1"),
        ("--seed", "-1", "seed is -1"),
    ],
)
def test_run_bad_values_are_found_before_loading(cli, loads, option, value, says):
    code, out, err = cli("run", "--image", "a.png", option, value)
    assert (code, out) == (2, "") and says in one_sentence(err) and not loads


def test_usage_errors(cli, loads):
    assert cli("run")[0] == 2
    assert cli("run", "--image", "a.png", "--no-such-option")[0] == 2
    assert cli("run", "--image", "a.png", "--top-k", "many")[0] == 2
    assert not loads


ALONE = ("serve", "demo", "convert", "quantize", "build", "export-triton", "verify", "inspect")


@pytest.mark.parametrize("verb", ALONE)
@pytest.mark.parametrize("given", [("--model", "mini-t5"), ("--model=mini-t5",), ("-m", "mini-t5")])
def test_a_verb_whose_model_stands_alone_says_so(cli, verb, given):
    code, out, err = cli(verb, *given)
    flag = given[0].partition("=")[0]
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"Error: No such option: {flag}; give the model without it: ")
    assert last.endswith(f" {verb} MODEL.")


@pytest.mark.parametrize("line", [("run",), ("bench", "latency")], ids=" ".join)
def test_a_verb_whose_model_is_an_option_says_so(cli, line):
    code, out, err = cli(*line, "mini-t5")
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith("Error: Got unexpected extra argument(s) (mini-t5); a model is given with --model: ")
    assert last.endswith(f" {' '.join(line)} --model MODEL.")


@pytest.mark.parametrize("words", [("--image", "a.png", "b.png"), ("--text", "two", "words")])
def test_several_words_behind_one_flag_are_not_taken_for_a_model(cli, words):
    code, _, err = cli("run", "--model", "mini-t5", *words)
    says = "; write the flag before each value, and words that belong together in quotation marks."
    assert code == 2 and err.strip().endswith(f"({words[-1]}){says}")


def test_two_models_of_one_name_are_told_by_it(cli):
    code, _, err = cli("serve", "a=mini-t5", "a=mini-nougat")
    assert code == 2 and one_sentence(err) == "vlm: two models are called a; give each a name of its own: NAME=MODEL."


def test_other_unknown_options_are_told_as_before(cli):
    assert "No such option: --hots (Possible options: --host" in cli("serve", "--hots", "x")[2]
    assert "give the model" not in cli("bench", "table", "--model", "x")[2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("build", "mini-t5", "--max_beam_width", "3"), "--max_beam_width; a request says its --num-beams"),
        (("build", "mini-t5", "--remove-input-padding"), "--remove-input-padding; it is always so here: leave it out."),
        (("build", "--checkpoint_dir", "x"), " build MODEL."),
        (("convert", "mini-t5", "--dtype", "float16"), "--dtype; vlm build chooses the computing type, by --dtype"),
        (("run", "--tp_size", "2"), "--tp_size; vlm build has it"),
        (("run", "--engine_dir=x"), " run --model MODEL."),
        (("run", "--max_output_len", "5"), "--max_output_len; --max-new-tokens is what it is called here."),
        (("run", "--compare_hf_fp32"), "--compare_hf_fp32; --check-accuracy --reference-dtype float32"),
    ],
)
def test_what_to_do_in_place_of_other_programs_options(cli, loads, line, says):
    code, out, err = cli(*line)
    assert (code, out) == (2, "") and not loads
    last = err.strip().splitlines()[-1]
    assert last.startswith("Error: No such option: ") and says in last


# what the commands of TensorRT-LLM's and FasterTransformer's guides have that verbs here lack
OF_GUIDES = {
    "convert": "-i -t -p -sq -kv -i_g -in_file -saved_dir -weight_data_type -inference_tensor_para_size --in-file "
    "--in-place --infer-gpu-num --model --model-name --model_dir --model_type --nougat --output_dir --processes "
    "--prompt-in-file --prompt-saved-dir --saved-dir --storage-type --tensor-parallelism --tokenizer-model-path "
    "--verbose --vocab-path --dtype --weight_data_type --max_multimodal_len --smoothquant --calibrate-kv-cache "
    "--use_weight_only --weight_only_precision --hf_lora_dir",
    "build": "--bert_attention_plugin --checkpoint_dir --context_fmha --enable_context_fmha_fp32_acc --enable_xqa "
    "--engine_name --gemm_plugin --gpt_attention_plugin --gpus_per_node --hidden_act --int8_kv_cache --log_level "
    "--lora_dir --lora_plugin --lora_target_modules --max_beam_width --max_input_len --max_multimodal_len "
    "--max_output_len --max_prompt_embedding_table_size --model_path --model_type --moe_plugin --n_embd --n_head "
    "--n_layer --no_bias --output_dir --paged_kv_cache --parallel_build --per_channel --per_token --per-token "
    "--remove_input_padding --rotary_pct --use_custom_all_reduce --use_fused_mlp --use_gemm_plugin "
    "--use_implicit_relative_attention --use_layernorm_plugin --use_lora_plugin --use_rmsnorm_plugin "
    "--use_smooth_quant --vila_path --vocab_size --weight_dir --world_size",
    "run": "--compare_hf_fp32 --engine_dir --engine_name --hf_model_dir --input_text --llm_engine_dir --max_new_token "
    "--max_output_len --model_name --streaming --tokenizer --tokenizer_dir --visual_engine_dir --vocab_file",
    "generate": "--engine_dir --input_text --input_tokens --max_output_len --tokenizer --tokenizer_dir --vocab_file",
    "eval texts": "--batch_size --check_accuracy --data_type --engine_dir --ft_model_location --hf_model_location "
    "--tensorrt_llm_rouge1_threshold --test_ft --test_hf --test_trt_llm",
    "bench text": "--engine_dir",
    "bench latency": "--engine_dir --max_new_tokens --max_output_len",
    "quantize": "--calib_size --model_dir --output_dir --qformat",
    "serve": "--exit-on-error --http-address --http-port --log-verbose --metrics-port --model-control-mode",
}


@pytest.mark.parametrize(
    ("verb", "option"), [(verb, each) for verb, all_ in OF_GUIDES.items() for each in all_.split()]
)
def test_each_option_of_the_guides_has_an_answer(cli, loads, verb, option):
    code, out, err = cli(*verb.split(), option, "1")
    assert (code, out) == (2, "") and not loads
    last = err.strip().splitlines()[-1]
    assert re.fullmatch(r"Error: No such option: [-\w]+; .+\.", last)
    begins = last.partition("; ")[2].split()[0].rstrip(",")
    if begins.startswith("--"):  # the verb has what it is told of
        assert re.search(rf"^  (-\w, )?{begins}\b", cli(*verb.split(), "--help")[1], re.MULTILINE)


def test_all_options_that_a_verb_lacks_are_told_of_at_once(cli, loads):
    line = "build --checkpoint_dir c --max_beam_width 3 --gemm_plugin float16 --moe_plugin=disable -o e --hots 1 -zq"
    code, out, err = cli(*line.split())
    assert (code, out) == (2, "") and not loads
    lines = err.strip().splitlines()[-5:]
    assert lines[0].startswith("Error: No such option: --checkpoint_dir; give the model without it: ")
    assert lines[1].startswith("No such option: --max_beam_width; a request says its --num-beams")
    assert lines[2] == "No such option: --gemm_plugin, --moe_plugin; it is always so here: leave it out."
    assert lines[3].startswith("No such option: --hots")
    assert lines[4] == "No such option: -z"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("convert -in_file a -saved_dir b -sq 0.5", ("--in_file; give the model", "--saved_dir; --out is", "--smooth")),
        ("build a -o b --int8_kv_cache", ("a model that runs has it, by --kv-cache-dtype int8, ",)),
        ("run --text a --int8_kv_cache", ("--kv-cache-dtype int8 does it.",)),
        ("build a -o b --max_output_len 8", ("a request says its --max-new-tokens: leave it out.",)),
        ("bench latency --model a --max-new-tokens 8", ("--max-new-tokens; --new-tokens is what it is called here.",)),
        ("bench text --model a --max-new-tokens 8", ("--max-new-tokens; --input-output-len says it, ",)),
        ("bench ocr --model a --max-new-tokens 8", ("--max-new-tokens; --tokens is what it is called here.",)),
        ("bench serve --model a --max_output_len 8", ("--max_output_len; --output-len is what it is called here.",)),
        ("build a -o b --use_weight_only", ("--use_weight_only; --quantization int8 or int4 does it.",)),
        ("run --text a --data_type fp16", ("--data_type; --dtype is what it is called here.",)),
    ],
)
def test_what_is_said_in_place_of_an_option_depends_on_the_verb(cli, loads, line, says):
    err = cli(*line.split())[2]
    assert all(words in err for words in says) and not loads


def test_beams_beside_a_temperature_are_told_what_to_change(cli, loads):
    err = cli(*"run --text a --num-beams 4 --temperature 1".split())[2]
    assert "--num-beams is 4 and --temperature 1, which exclude each other: beam search does not sample; " in err
    assert "; set --num-beams to 1, or --temperature to 0." in err and not loads


def test_options_may_be_written_with_underscores(cli, loads):
    assert "--num-beams is 0" in cli("run", "--text", "a", "--num_beams=0")[2]
    assert "--top-p is 0.0" in cli("run", "--text", "a", "--top_p", "0")[2]
    assert "No such option: --no_such" in cli("run", "--text", "a", "--no_such")[2]
    assert "unexpected extra argument(s) (--num_beams=0)" in cli("run", "--", "--num_beams=0")[2]
    assert not loads


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("convert mini-t5 -o <>", "--out"),  # which replaced the folder that it ran in
        ("convert mini-t5 --out=", "--out"),
        ("convert mini-t5 -o q --merge-lora <>", "--merge-lora"),
        ("build mini-t5 --out <>", "--out"),
        ("export-triton mini-t5 -o <>", "--out"),
        ("quantize mini-t5 -o q --format gptq --calibrate <>", "--calibrate"),
        ("quantize mini-t5 -o q --report <>", "--report"),
        ("run --model mini-t5 --input-ids <>", "--input-ids"),
        ("run --model mini-t5 --text a --prompt-table <>", "--prompt-table"),
        ("translate --model mini-t5 --file a.txt --file <>", "--file"),
        ("serve mini-t5 --prompt-table <>", "--prompt-table"),
        ("serve mini-t5 --lora-dir <>", "--lora-dir"),
        ("serve mini-t5 --lora-dir a <>", "--lora-dir"),
        ("eval texts --model mini-t5 <>", "DATA"),
        ("bench table <>", "RESULTS"),
    ],
)
def test_a_path_that_is_empty_is_not_the_folder_that_a_verb_runs_in(cli, line, label, tmp_path):
    before = set(tmp_path.iterdir())
    code, _, err = cli(*(word.replace("<>", "") for word in line.split()))
    said = one_sentence(err).replace(",", ";")
    assert code == 2 and said == f"vlm: {label} is empty; name a file or a folder (. is this one)."
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("line", [
    "convert mini-t5 -o mini-nougat", "build mini-t5 -o mini-t5", "convert x -o ./mini-t5",
    "quantize mini-t5 -o t --format int8 --export mini-t5",
])  # fmt: skip
def test_nothing_is_written_under_the_name_of_a_packaged_model(line, cli):
    code, _, err = cli(*line.split())
    assert code == 2 and "is the name of a packaged model, which comes before a folder" in one_sentence(err)


def test_unknown_model(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["inspect", "nothing"], ["convert", "nothing", "-o", "x"], ["build", "nothing", "-o", "x"]):
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "") and "model 'nothing' does not exist; give a packaged name" in one_sentence(err)


@pytest.mark.parametrize("line, says", [
    ("translate a --model mini-nougat", "mini-nougat takes images, not text; vlm models lists what takes text"),
    ("summarize a --model mini-nougat", "mini-nougat takes images, not text"),
    ("generate a --model mini-t5", "vlm generate is for models that are asked in words; t5 is for vlm run --text"),
    ("encode --image a.png --model mini-t5", "t5 takes text, not images"),
    ("encode a --model mini-nougat", "nougat has no text encoder, so it takes no texts"),
    ("run --text a --model mini-nougat", "nougat has no text encoder, so it takes no texts"),
    ("run --image a.png --model mini-t5", "t5 takes text, not images"),
    ("run --image a.png --raw-prompt a --model mini-nougat", "--raw-prompt is for models that are asked in words"),
    ("run --chat --model mini-t5", "--chat is for models that are asked in words"),
])  # fmt: skip
def test_a_model_of_another_kind_is_refused_before_it_is_built(line, says, cli, loads):
    code, _, err = cli(*line.split())
    assert code == 2 and says in one_sentence(err) and loads == []


def test_a_decoder_alone_is_refused_before_it_is_built(cli, loads, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    code, _, err = cli("encode", "a", "--model", tmp_path)
    assert code == 2 and "gpt2 is a decoder alone, there is no encoder to load" in one_sentence(err) and loads == []


# --- errors ---
def _failing(monkeypatch, error):
    def load(model, **options):
        raise error

    monkeypatch.setitem(vlm.__dict__, "load", load)


def test_errors_become_sentences(cli, monkeypatch):
    _failing(monkeypatch, OutOfMemoryError("too large; lower --max-batch-size."))
    assert cli("run", "--image", "a.png") == (2, "", "vlm: too large; lower --max-batch-size.\n")
    _failing(monkeypatch, KeyError("bug"))
    code, _, err = cli("run", "--image", "a.png")
    assert code == 70 and "internal error, KeyError: 'bug'" in one_sentence(err) and "--debug" in err
    for error in (
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        MemoryError(),
    ):
        _failing(monkeypatch, error)
        code, _, err = cli("run", "--image", "a.png")
        assert code == 2 and "there is too little memory; " in one_sentence(err)
    _failing(monkeypatch, OSError(errno.EFBIG, "File too large"))
    assert "the output cannot be written: File too large" in one_sentence(cli("run", "--image", "a.png")[2])
    _failing(monkeypatch, KeyboardInterrupt())
    assert cli("run", "--image", "a.png") == (130, "", "vlm: interrupted.\n")


def test_a_name_that_no_file_can_have_is_that_of_no_model(cli):
    code, _, err = cli("inspect", "x" * 5000)
    assert code == 2 and "does not exist; give a packaged name" in one_sentence(err)


def test_debug_shows_the_traceback(monkeypatch, images):
    _failing(monkeypatch, OutOfMemoryError("too large."))
    monkeypatch.setenv("VLM_DEBUG", "")
    with pytest.raises(OutOfMemoryError):
        main(["run", "--image", "a.png", "--debug"])


def test_closed_stdout_is_no_error():
    code = "import sys; from vlm_app.cli.main import main; main(['models', '--json'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


# --- convert, build, inspect, models ---
@pytest.fixture
def hf(tmp_path, monkeypatch):
    artifact_kit.install(monkeypatch)
    return artifact_kit.write_hf(tmp_path / "toy-model")


def test_convert_build_inspect(cli, hf, tmp_path):
    code, out, err = cli("convert", hf, "-o", tmp_path / "ckpt")
    assert (code, out) == (0, f"{tmp_path / 'ckpt'}\n") and "Writing the checkpoint" in err
    described = json.loads(cli("inspect", tmp_path / "ckpt", "--json")[1])
    assert described["kind"] == "checkpoint" and described["family"] == "toy"
    code, out, _ = cli("build", tmp_path / "ckpt", "-o", tmp_path / "engine", "--max-seq-len", 8, "--dtype", "bfloat16")
    assert (code, out) == (0, f"{tmp_path / 'engine'}\n")
    described = json.loads(cli("inspect", tmp_path / "engine", "--json")[1])
    assert described["build"] == {
        "dtype": "bfloat16", "max_batch_size": 8, "max_seq_len": 8, "max_encoder_input_len": 6, "backend": "torch",
        "target": [],
        "quantization": None, "group_size": None, "tp_size": 1, "encoder_tp_size": None, "pp_size": 1,
        "ignore": None,
    }  # fmt: skip
    assert described["roles"]["visual"]["parameters"] == 4 * 3 + 4
    # 8 sequences of 1 self-, 1 spare and 1 cross block each and the common one; 16 rows of K and V, 2 layers, width 4
    assert described["memory"]["kv_cache_full_batch"] == 25 * 16 * 2 * 2 * 4 * 2
    manifest = json.loads((tmp_path / "ckpt" / "config.json").read_text())
    for key in ("dtype", "mapping", "quantization"):  # which have defaults
        del manifest[key]
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(manifest))
    described = json.loads(cli("inspect", tmp_path / "ckpt", "--json")[1])
    assert described["mapping"] == {"tp": 1, "pp": 1} and described["dtype"] is described["quantization"] is None
    text = cli("inspect", tmp_path / "engine")[1]
    assert "family       toy" in text and "max_seq_len 8" in text
    folder = json.loads(cli("inspect", hf, "--json")[1])
    assert folder["kind"] == "hugging face folder" and folder["roles"].keys() == {"visual", "decoder"}


def test_build_from_a_folder_and_from_random_weights(cli, hf, tmp_path):
    assert cli("build", hf, "-o", tmp_path / "a")[0] == 0
    assert cli("build", "--random-weights", "--arch", "toy-base", "-o", tmp_path / "b")[0] == 0
    assert cli("build", "--random-weights", "--arch", hf / "config.json", "-o", tmp_path / "c")[0] == 0
    assert {json.loads(cli("inspect", tmp_path / x, "--json")[1])["kind"] for x in "abc"} == {"engine"}


def test_build_mistakes(cli, hf, tmp_path):
    out = ["-o", tmp_path / "engine"]
    for arguments, says in [
        ([], "there is nothing to build from"),
        ([hf, "--random-weights", "--arch", "toy-base"], "has weights of its own; leave --arch and"),
        (["--random-weights"], "go together"),
        (["mini-t5", "--seed", "0"], "--seed is of random weights, and a source has weights of its own; leave it out."),
        (["mini-t5", "--initializer-range", "0.1"], "--initializer-range is of random weights"),
        (["--random-weights", "--arch", "toy-base", "--initializer-range", "0"], "it must be above 0"),
        (["--random-weights", "--arch", "toy-base", "--initializer-range", "inf"], "is inf; it must be above 0"),
        (
            ["--random-weights", "--arch", "toy-huge"],
            "architecture 'toy-huge' is unknown; give a Hugging Face config.json, or one",
        ),
        (["--random-weights", "--arch", "none.json"], "does not exist"),
        ([hf, "--dtype", "int3"], "dtype is 'int3', allowed are"),
        ([hf, "--backend", "abacus"], "--backend is 'abacus'"),
        ([hf, "--max-batch-size", "0"], "--max-batch-size is 0, it must be at least 1"),
        ([hf, "--max-seq-len", "17"], "--max-seq-len is 17, this model allows at most 16"),
    ]:
        code, stdout, err = cli("build", *arguments, *out)
        assert (code, stdout) == (2, "") and says in err, err
        one_sentence(err.splitlines()[-1])
    assert not (tmp_path / "engine").exists()


def test_inspect_finds_damage(cli, hf, tmp_path):
    cli("build", hf, "-o", tmp_path / "engine")
    weights = tmp_path / "engine" / "decoder" / "rank0.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    code, _, err = cli("inspect", tmp_path / "engine")
    assert code == 2 and "decoder/rank0.safetensors was edited" in one_sentence(err)


def test_models(cli, monkeypatch, hf):
    monkeypatch.setattr("vlm.packaged.ASSETS", hf.parent)
    found = json.loads(cli("models", "--json")[1])
    assert found["families"][0]["architectures"] == ["toy-base"]
    assert found["packaged"][0]["name"] == "toy-model" and found["packaged"][0]["family"] == "toy"
    text = cli("models")[1]
    assert "toy" in text and "shapes: toy-base" in text and "toy-model" in text
    assert "shapes" not in models._text({"families": [found["families"][0] | {"architectures": []}], "packaged": []})


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(("closed", "code", "out", "err"), [
    ("2>&-", 0, "mini-t5", ""),
    (">&-", 2, "", "vlm: the output cannot be written: Bad file descriptor; choose another place or make room there."),
    ("<&-", 0, "mini-t5", ""),
])  # fmt: skip
def test_files_that_the_caller_has_closed(closed, code, out, err):
    """As some daemons and schedulers do."""
    found = subprocess.run(
        f'"{sys.executable}" -m vlm_app.cli.main models {closed}',
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr.strip()) == (code, err) and (out == "" or out in found.stdout)


@pytest.mark.parametrize("verb", ["run", "encode"])
def test_an_image_that_is_not_there_is_told_before_a_model_is_loaded(cli, loads, verb):
    for name, reason in (("gone.png", "does not exist"), (".", "is a folder")):
        told = cli(verb, "--image", "a.png", "--image", name, "--model", "mini-nougat")
        assert told == (2, "", f"vlm: {name} {reason}; give the path of an image file.\n") and not loads
