"""Every option that verbs share, through the command line: what it does, not only that it is taken."""

from __future__ import annotations

import json

import pytest
import torch

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import prompted_kit, tiny
from tests.kits.models.prompted_kit import saved
from vlm.executor import kv_cache
from vlm.options import flag_of
from vlm.requests.sampling_params import SamplingParams
from vlm_app.cli.options.groups import LOADING, SAMPLING

pytestmark = pytest.mark.usefixtures("cache_of_module")

PROMPT, OTHER = "w1 w2 w3", "w7 w8 w9 w10"
LENGTH = {"max_new_tokens": 16}
TEXT_VERBS = ("run", "generate", "translate", "summarize", "eval")
DRAWN = {"temperature": 2.0, "seed": 1}
BEAMS = {"num_beams": 4, "length_penalty": 2.0}
# option -> its value, the other options that it is seen beside, and the prompt that it is seen on
CASES = [
    ("max_new_tokens", 3, {}, PROMPT),
    ("max_length", 12, {"max_new_tokens": None}, PROMPT),
    ("temperature", 2.0, {"seed": 1}, PROMPT),
    ("seed", 6, {"temperature": 2.0}, PROMPT),
    ("top_k", 2, DRAWN, PROMPT),
    ("top_p", 0.3, DRAWN, PROMPT),
    ("min_p", 0.3, DRAWN, PROMPT),
    ("top_h", 0.3, DRAWN, PROMPT),
    ("typical_p", 0.3, DRAWN, PROMPT),
    ("epsilon_cutoff", 0.05, DRAWN, PROMPT),
    ("eta_cutoff", 0.3, DRAWN, PROMPT),
    ("top_p_decay", 0.3, {**DRAWN, "top_p": 0.9}, PROMPT),
    ("top_p_min", 0.8, {**DRAWN, "top_p": 0.9, "top_p_decay": 0.3}, PROMPT),
    ("top_p_reset_id", ..., {**DRAWN, "top_p": 0.9, "top_p_decay": 0.3}, PROMPT),
    ("repetition_penalty", 1.9, {}, PROMPT),
    ("presence_penalty", 8.0, {}, PROMPT),
    ("frequency_penalty", 8.0, {}, PROMPT),
    ("no_repeat_ngram_size", 1, {}, PROMPT),
    ("encoder_repetition_penalty", 9.0, {}, PROMPT),
    ("encoder_no_repeat_ngram_size", 1, {}, "w20 w13 w36"),
    ("logit_bias", "26=-100,19=-7.5", {}, PROMPT),
    ("allowed_token_ids", (7, 8, 9, 10), {}, PROMPT),
    ("suppress_tokens", (26, 19), {}, PROMPT),
    ("begin_suppress_tokens", (26, 19), {}, PROMPT),
    ("min_length", 20, {}, PROMPT),
    ("renormalize_logits", True, {"num_beams": 4, "repetition_penalty": 1.9}, PROMPT),
    ("bad_words", ("w13", "w0 w52"), {}, PROMPT),
    ("min_new_tokens", 12, {}, PROMPT),
    ("ignore_eos", True, {}, PROMPT),
    ("stop_token_ids", (19, 58), {}, PROMPT),
    ("stop", ("w52", "w0"), {}, PROMPT),
    ("forced_eos_token_id", 9, {"max_new_tokens": 4}, PROMPT),
    ("num_beams", 4, {}, PROMPT),
    ("length_penalty", -4.0, {"num_beams": 4}, PROMPT),
    ("early_stopping", True, BEAMS, PROMPT),
    ("early_stopping", False, BEAMS | {"num_beams": 2, "early_stopping": True}, OTHER),
    ("early_stopping", "never", BEAMS | {"num_beams": 2}, OTHER),
    ("diversity_rate", 4.0, {"num_beams": 4}, PROMPT),
]
ELSEWHERE = {
    "num_return_sequences",
    "top_logprobs",
    "prompt_logprobs",
    "forced_bos_token_id",
    "include_stop_str_in_output",
    "prompt_lookup_num_tokens",
}  # have tests of their own below


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A decoder that ends by itself, and an encoder-decoder."""
    made = {
        "llama": lambda: tiny.llama(seed=4, num_key_value_heads=2),
        "t5": lambda: tiny.t5(seed=0, eos_token_id=2, tied=False),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prompted_kit, "MODELS", made)
        return {name: (saved(name, folder := tmp_path_factory.mktemp(name)), folder)[1] for name in made}


@pytest.fixture(scope="module")
def llama(folders, tmp_path_factory):
    return vlm.load(folders["llama"], device="cpu", cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def loaded(llama, monkeypatch):
    """The verbs get the decoder that is loaded already."""
    monkeypatch.setitem(vlm.__dict__, "load", lambda model, **options: llama)
    return llama


def flags_of(options) -> list[str]:
    found = []
    for name, value in options.items():
        flag = flag_of(SamplingParams, name)
        for each in value if isinstance(value, tuple) else (value,):
            written = str(each).lower() if name == "early_stopping" else str(each)
            found += [] if each is None else [flag] if each is True and name != "early_stopping" else [flag, written]
    return found


def outputs(verb, prompt, flags, folder, tmp_path):
    """What a verb makes of one text."""
    if verb != "eval":
        result = call(verb, *(["--text"] if verb == "run" else []), prompt, "--model", folder, *flags)
        assert result.exit_code == 0, result.stderr
        return result.stdout.splitlines()
    (tmp_path / "pairs.tsv").write_text(f"{prompt}\tw1")
    asked = ("--task", "summarize", "--metric", "exact", "--json", tmp_path / "out.json", "--model", folder)
    result = call(verb, tmp_path / "pairs.tsv", *asked, *flags)
    assert result.exit_code == 0, result.stderr
    return [row["vlm"] for row in json.loads((tmp_path / "out.json").read_text())["outputs"]]


def test_each_decoding_option_is_seen():
    assert {name for name, *_ in CASES} | ELSEWHERE == SAMPLING.options.keys()


@pytest.mark.parametrize(
    ("name", "value", "beside", "prompt"), CASES, ids=lambda x: str(x) if not isinstance(x, dict) else ""
)
def test_decoding_options_of_all_text_verbs(loaded, folders, tmp_path, name, value, beside, prompt):
    beside = {**LENGTH, **beside}
    without = loaded.generate(text=prompt, **beside)
    value = without.token_ids[1] if value is ... else value  # a token that is drawn early
    asked = {**beside, name: value}
    read = SAMPLING.options[name].read
    want = loaded.generate(text=prompt, **asked | ({name: read(value)} if read and isinstance(value, str) else {}))
    assert want.token_ids != without.token_ids, "the option makes no difference here"
    for verb in TEXT_VERBS:
        assert outputs(verb, prompt, flags_of(asked), folders["llama"], tmp_path) == [want.text], verb


def test_a_stop_string_may_stay_in_the_text(loaded, folders):
    asked = ("generate", PROMPT, "--model", folders["llama"], "--max-new-tokens", 16, "--stop", "w52")
    without = call(*asked).stdout.strip()
    assert call(*asked, "--include-stop-str-in-output").stdout.strip() == f"{without} w52"


def test_bad_words_are_not_written(loaded, folders):
    plain = call("generate", PROMPT, "--model", folders["llama"], "--max-new-tokens", 16).stdout.split()
    found = call("generate", PROMPT, "--model", folders["llama"], "--max-new-tokens", 16, "--bad-words", plain[0],
                 "--bad-words", " ".join(plain[1:3])).stdout  # fmt: skip
    assert plain[0] not in found.split() and " ".join(plain[1:3]) not in found
    request = loaded.request({"text": PROMPT}, bad_words=(plain[0],), bad_words_ids=((7,),))
    assert request.params.bad_words_ids == ((7,), (prompted_kit.VOCABULARY.index(plain[0]),))


@pytest.mark.parametrize("how", [{"num_beams": 3}, DRAWN], ids=("beams", "samples"))
def test_each_of_several_outputs_is_a_line(loaded, folders, tmp_path, how):
    """In all verbs alike, best first; what fails leaves as many empty lines; JSON has the others as alternatives."""
    asked = {**LENGTH, **how, "num_return_sequences": 3}
    out = loaded.generate(text=PROMPT, **asked)
    texts = [out.text, *(other.text for other in out.alternatives)]
    flags, model = flags_of(asked), ("--model", folders["llama"])
    for verb in TEXT_VERBS[:-1]:
        assert outputs(verb, PROMPT, flags, folders["llama"], tmp_path) == texts
    assert outputs("eval", PROMPT, flags, folders["llama"], tmp_path) == texts[:1], "scores are of the best one"
    for verb in ("run", "generate", "summarize"):
        given = ["--text", PROMPT] if verb == "run" else [PROMPT]
        row = json.loads(call(verb, *given, "--json", *model, *flags).stdout)
        assert [row["text"], *(other["text"] for other in row["alternatives"])] == texts
        assert all(len(each["token_ids"]) == each["tokens"] for each in (row, *row["alternatives"]))
    long = "w1 " * 200
    result = call("generate", PROMPT, long, *model, *flags)
    assert result.exit_code == 1 and result.stdout.split("\n")[:-1] == [*texts, "", "", ""]


def test_log_probabilities_in_json(loaded, folders):
    for verb in ("run", "generate", "translate", "summarize"):
        given = ["--text", PROMPT] if verb == "run" else [PROMPT]
        asked = ("--top-logprobs", 2, "--prompt-logprobs", 1, "--max-new-tokens", 3, "--json")
        row = json.loads(call(verb, *given, "--model", folders["llama"], *asked).stdout)
        assert [len(place) for place in row["top_logprobs"]] == [2, 2, 2]
        assert [max(place.values()) for place in row["top_logprobs"]] == pytest.approx(row["logprobs"])
        first, *scored = row["prompt_logprobs"]
        assert first is None and scored and all(len(place) in (1, 2) for place in scored)


def test_options_without_effect_are_named(folders):
    asked = ("--model", folders["llama"], "--max-new-tokens", 2)
    idle = ("--top-k", 5, "--top-p", 0.5, "--length-penalty", 2, "--early-stopping", "true", "--max-loras", 3)
    result = call("generate", PROMPT, *asked, *idle, "--top-logprobs", 2, "--prompt-logprobs", 0)
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if line.startswith("vlm: ")] == [
        "vlm: warning: --top-k, --top-p have no effect without --temperature above 0.",
        "vlm: warning: --length-penalty, --early-stopping have no effect without --num-beams above 1.",
        "vlm: warning: --top-logprobs, --prompt-logprobs have no effect without --json.",
        "vlm: warning: --max-loras has no effect without --lora.",
    ]
    for used in (("--temperature", 1, "--top-k", 5), ("--num-beams", 2, "--length-penalty", 2), ("--top-k", 0)):
        assert "warning" not in call("run", "--text", PROMPT, *asked, *used).stderr


def test_drafts_change_no_output(folders):
    asked = ("generate", PROMPT, "--model", folders["llama"], "--device", "cpu", "--ignore-eos", "--max-new-tokens", 40)
    plain = call(*asked).stdout
    for drafts in ([], ["--prompt-lookup-num-tokens", 0], ["--prompt-lookup-num-tokens", 2]):
        assert call(*asked, "--num-speculative-tokens", 3, *drafts).stdout == plain != ""
    result = call(*asked, "--prompt-lookup-num-tokens", 2)
    assert result.exit_code == 1 and "or give --num-speculative-tokens 2" in result.stderr


def test_the_first_token_of_an_encoder_decoder(folders):
    model = ("--model", folders["t5"], "--device", "cpu", "--max-new-tokens", 4, "--prefix", "")
    plain = call("translate", PROMPT, *model).stdout.split()
    found = call("translate", PROMPT, *model, "--forced-bos-token-id", prompted_kit.VOCABULARY.index("w30")).stdout
    assert found.split()[0] == "w30" != plain[0]


# --- how models are loaded ---
VERBS = [
    ("run", "--text", PROMPT), ("generate", PROMPT), ("translate", PROMPT), ("summarize", PROMPT),
    ("eval", "examples/translate.tsv", "--metric", "exact"), ("encode", "a"), ("ocr", "examples/page.png", "-o", "x"),
    ("estimate", "examples/page.png"),
    ("serve", "mini-t5"), ("demo", "mini-t5", "--port", "0"), ("export-triton", "mini-t5", "-o", "y"),
]  # fmt: skip
GIVEN = {
    "device": "cpu", "dtype": "float32", "backend": "torch", "max_batch_size": 3, "max_seq_len": 40,
    "max_encoder_input_len": 30, "threads": 2, "kv_cache_free_gpu_memory_fraction": 0.4, "cross_kv_cache_fraction": 0.3,
    "batch_invariant": True, "kv_cache_dtype": "int8", "num_speculative_tokens": 4,
}  # fmt: skip


class Loaded(Exception):
    """Stands for the model: the verb goes no further."""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_each_verb_hands_on_how_its_models_are_loaded(verb, tmp_path, monkeypatch):
    """To vlm.load, or to vlm.build.store with the rest in the repository that is exported."""
    assert GIVEN.keys() == LOADING.options.keys()
    seen = {}

    def note(model, **options):
        seen.update(options)
        raise Loaded

    monkeypatch.setitem(vlm.__dict__, "load", note)
    if verb[0] in ("ocr", "estimate", "export-triton"):
        monkeypatch.setattr("vlm.build.store.resolve", note)
    arguments = [str(tmp_path / word) if word in ("x", "y") else word for word in verb]
    flags = {f"--{name.replace('_', '-')}": value for name, value in GIVEN.items()}
    words = [word for flag, value in flags.items() for word in ([flag] if value is True else [flag, value])]
    result = call(*arguments, *words)
    assert "Loaded" in result.stderr, result.stderr
    build = {
        name: GIVEN[name] for name in ("dtype", "backend", "max_batch_size", "max_seq_len", "max_encoder_input_len")
    }
    assert {name: seen[name] for name in build} == build
    if "runtime" in seen:
        runtime = {name: getattr(seen["runtime"], name) for name in GIVEN.keys() - build.keys()}
        assert runtime == {name: GIVEN[name] for name in runtime}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(("option", "value", "says"), [
    ("--threads", 0, "--threads is 0, it must be at least 1"),
    ("--kv-cache-free-gpu-memory-fraction", 1.5, "--kv-cache-free-gpu-memory-fraction is 1.5, it must lie between"),
    ("--cross-kv-cache-fraction", 0, "--cross-kv-cache-fraction is 0.0, it must lie between 0 and 1"),
    ("--max-seq-len", 0, "--max-seq-len is 0, it must be at least 1"),
    ("--max-encoder-input-len", -1, "--max-encoder-input-len is -1, it must be at least 1"),
    ("--dtype", "int3", "--dtype is 'int3', allowed are"),
    ("--backend", "abacus", "--backend is 'abacus', allowed are"),
])  # fmt: skip
def test_bad_values_are_found_before_a_model_is_loaded(verb, option, value, says, monkeypatch):
    monkeypatch.setitem(vlm.__dict__, "load", lambda *a, **k: pytest.fail("a model is loaded"))
    result = call(*verb, option, value)
    assert result.exit_code == 2 and result.stderr.startswith("vlm: ") and says in result.stderr, result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_threads_of_torch(folders):
    before = torch.get_num_threads()
    try:
        for number in (1, 2):
            call(
                "generate",
                "w1",
                "--model",
                folders["llama"],
                "--threads",
                number,
                "--max-new-tokens",
                2,
                "--device",
                "cpu",
            )
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_lengths_of_a_compiled_engine(folders, tmp_path):
    pytest.importorskip("onnxruntime")
    engine, asked = tmp_path / "engine", ("--prefix", "", "--json", "--device", "cpu", "--threads", 1)
    assert call("build", folders["t5"], "-o", engine, "--backend", "onnxruntime", "--max-seq-len", 60).exit_code == 0
    row = json.loads(call("translate", PROMPT, "--model", engine, *asked, "--max-seq-len", 7).stdout)
    want = json.loads(call("translate", PROMPT, "--model", engine, *asked, "--max-new-tokens", 6).stdout)
    assert (row["token_ids"], row["finish_reason"]) == (want["token_ids"], "length") and row["tokens"] == 6


def test_lengths_of_an_engine(folders, tmp_path):
    """As it is built, and below what it was built for."""
    engine = tmp_path / "engine"
    assert call("build", folders["t5"], "-o", engine, "--max-seq-len", 60, "--max-encoder-input-len", 40).exit_code == 0
    for model in (folders["t5"], engine):
        asked = ("translate", PROMPT, "--model", model, "--prefix", "", "--json", "--device", "cpu", "--max-seq-len", 7)
        row = json.loads(call(*asked).stdout)
        assert (row["tokens"], row["finish_reason"]) == (6, "length")
        asked = ("encode", "w1 w2 w3 w4", "--model", model, "--max-encoder-input-len", 4, "--device", "cpu")
        result = call(*asked)
        assert result.exit_code == 2 and "the text has 5 tokens, the engine was built for 4" in result.stderr
        assert call(*asked, "--truncate").exit_code == 0
    result = call("translate", PROMPT, "--model", engine, "--max-seq-len", 61, "--device", "cpu")
    assert (
        result.exit_code == 2
        and "was built for --max-seq-len 60, asked is --max-seq-len 61; rebuild it: vlm build MODEL" in result.stderr
    )


@pytest.mark.parametrize(("option", "less", "enough"), [
    ("--kv-cache-free-gpu-memory-fraction", 0.05, 0.9), ("--cross-kv-cache-fraction", 0.01, 0.5),
])  # fmt: skip
def test_shares_of_a_gpus_memory(folders, monkeypatch, option, less, enough):
    """On a device that says how much is free: here one that says 1 MiB."""
    planned, plan = [], kv_cache.plan_cache

    def limited(*a, **k):
        planned.append(plan(*a, **{**k, "free_bytes": 2**20}))
        return planned[-1]

    monkeypatch.setattr(kv_cache, "plan_cache", limited)
    asked = ("translate", PROMPT, "--prefix", "", "--model", folders["t5"], "--device", "cpu", "--max-new-tokens", 2)
    result = call(*asked, option, less)
    assert result.exit_code == 2 and "the KV cache has room for" in result.stderr and option in result.stderr
    assert call(*asked, option, enough).exit_code == 0 and planned
