"""Folders of adapters: read as PEFT reads them, and refused in a sentence that names what does not fit."""

from __future__ import annotations

import pytest
import torch

import vlm
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.models.lora_kit import K, Q, adapter_folder, matrices, scales
from vlm.api.model import adapters
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.backends.onnxruntime.backend import OnnxRuntimeBackend
from vlm.build.from_model import convert_model
from vlm.config import RuntimeConfig
from vlm.convert.adapters import patterns
from vlm.convert.adapters.peft import read_peft
from vlm.convert.adapters.placing import read_layers
from vlm.convert.roles import role_configs
from vlm.errors import ConfigError, InputError, LimitError, VlmError
from vlm.registry.catalogs import match_family


def ones(module=Q, rank=2, width=32, out=32):
    return matrices(torch.ones(rank, width), torch.ones(out, rank), module)


def folder_of(path, tensors=None, **config):
    return adapter_folder(path, ones() if tensors is None else tensors, **config)


def read(folder, model=None):
    config = (tiny.llama() if model is None else model).config.to_dict()
    return read_layers(folder, match_family(config), role_configs(match_family(config), config)).layers


def test_scales_are_of_the_first_pattern_that_a_module_ends_with(tmp_path):
    names = [f"model.layers.{layer}.mlp.up_proj" for layer in range(2)]
    tensors = ones(names[0], rank=4, out=48) | ones(names[1], out=48)
    patterns = {"rank_pattern": {"layers.0.mlp.up_proj": 4}, "alpha_pattern": {"1.mlp.up_proj": 3}}
    modules = read_peft(folder_of(tmp_path / "plain", tensors, **patterns)).modules
    assert [w.b[0, 0].item() for w in modules.values()] == [8 / 4, 3 / 2]
    modules = read_peft(folder_of(tmp_path / "rs", tensors, use_rslora=True, **patterns)).modules
    assert [w.b[0, 0].item() for w in modules.values()] == pytest.approx([8 / 2, 3 / 2**0.5])


def test_names_without_the_wrapper_and_with_an_adapters_own_are_the_same(tmp_path):
    bare = {name.removeprefix("base_model.model."): values for name, values in ones().items()}
    named = {name.replace(".weight", ".default.weight"): values for name, values in ones().items()}
    for number, tensors in enumerate((ones(), bare, named)):
        [weights] = read(folder_of(tmp_path / str(number), tensors))["decoder"]["blocks.0.attention.qkv"]
        assert weights.b[:32].eq(4).all() and not weights.b[32:].any()


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"peft_type": "LOHA"},
            r"type LOHA; LORA and IA3 are what can be loaded: merge one that changes weights into its"
            r" model with PEFT \(merge_and_unload",
        ),
        (
            {"peft_type": "P_TUNING"},
            "of type P_TUNING; LORA and IA3 are what can be loaded: give it with --prompt-table",
        ),
        ({"use_dora": True}, "q_proj lacks its lora_magnitude_vector; fetch or save it again"),
        (
            {"modules_to_save": ["lm_head", "norm"]},
            r"weights of the model itself \(modules_to_save lm_head, norm\), which"
            " are of all requests; merge it: vlm convert MODEL -o OUT --merge-lora .*a$",
        ),
        ({"modules_to_save": "lm_head"}, "holds a value that no adapter has .modules_to_save 'lm_head'"),
        ({"bias": "some", "lora_bias": True}, "has bias some, lora_bias True, which is not done here; merge it into"),
        ({"init_lora_weights": "loftq"}, "has init_lora_weights loftq"),
        ({"init_lora_weights": "olora"}, "has init_lora_weights olora"),
        ({"init_lora_weights": "lora_ga"}, "has init_lora_weights lora_ga"),
        ({"init_lora_weights": "pissa_niter_4"}, "has init_lora_weights pissa_niter_4"),
        ({"r": "many"}, "holds a value that no LoRA has"),
        ({"r": 0}, "holds a value that no LoRA has .a rank of 0"),
        ({"r": float("inf")}, "holds a value that no LoRA has .cannot convert float infinity"),
        ({"lora_alpha": float("nan")}, "holds a value that no LoRA has .an alpha of nan"),
        ({"rank_pattern": {"(": 2}}, "holds a value that no LoRA has .missing"),
        ({"alpha_pattern": {"q_proj": "much"}}, "holds a value that no LoRA has"),
        ({"alpha_pattern": ["q_proj"]}, "holds a value that no LoRA has"),
        ({"r": 3}, r"q_proj has shapes \[2, 32\] and \[32, 2\], its configuration says rank 3"),
    ],
)
def test_kinds_that_are_not_done(config, sentence, tmp_path):
    with pytest.raises(VlmError, match=sentence):
        read_peft(folder_of(tmp_path / "a", **config))


@pytest.mark.parametrize("pattern", [r"((\w|.)+)+x!", "(" * 9000 + "a" + ")" * 9000])
@pytest.mark.parametrize("config", ["rank_pattern", "alpha_pattern", "feedforward_modules"])
def test_patterns_that_never_end_have_a_budget(config, pattern, tmp_path, monkeypatch):
    monkeypatch.setattr(patterns, "SECONDS", 1)
    is_ia3 = config == "feedforward_modules"
    folder = (ia3_folder if is_ia3 else folder_of)(tmp_path / "a", **{config: pattern if is_ia3 else {pattern: 2}})
    with pytest.raises(
        ConfigError, match=r"adapter_config.json has patterns that take more than 2 seconds, or too much"
    ):
        read_peft(folder)


def test_patterns_in_a_process_of_their_own_match_as_others_do():
    names = ["model.layers.0.q_proj", "model.layers.1.q_proj", "model.layers.1.v_proj"]
    want = {names[1]: 1, names[2]: 0}
    assert patterns.first_matches([r".*\.v_proj", r"model\.layers\.[1-9]\..*"], names) == want
    assert patterns.first_matches([names[2], r"model.layers.1.q_proj$"], names) == want
    for broken in ("(", "(?i", "a{2,1}", "(?P<a>x)(?P<a>y)"):
        with pytest.raises(ValueError, match="at position"):
            patterns.first_matches([broken], names)


def test_what_is_neutral_is_read(tmp_path):
    others = {"bias": "none", "modules_to_save": None, "use_dora": False, "target_parameters": [], "loftq_config": {}}
    for number, start in enumerate((True, False, "gaussian", "orthogonal", "eva", "mica")):
        read(folder_of(tmp_path / str(number), **others, init_lora_weights=start, target_modules="all-linear"))
    read(folder_of(tmp_path / "a", **others | {"bias": "all"}))  # of a model without any


def dora(magnitude, **parts):
    """A DoRA's tensors of one module."""
    return ones() | {f"base_model.model.{Q}.lora_magnitude_vector": magnitude} | parts


# as PEFT's comparison of methods has it for Llama 3.2 3B, its rank but for the size
DORA = {
    "alpha_pattern": {}, "auto_mapping": None, "bias": "none", "corda_config": None, "eva_config": None,
    "exclude_modules": None, "fan_in_fan_out": False, "init_lora_weights": True, "layer_replication": None,
    "layers_pattern": None, "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 64, "lora_bias": False,
    "lora_dropout": 0.0, "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "r": 2,
    "rank_pattern": {}, "revision": None, "target_modules": None, "task_type": "CAUSAL_LM", "use_dora": True,
    "use_rslora": False,
}  # fmt: skip


def test_rows_have_the_lengths_of_a_dora_by_whichever_name(tmp_path):
    older = {name.replace("_vector", "_vector.default.weight"): x for name, x in dora(torch.full((32,), 3.0)).items()}
    for number, tensors in enumerate((dora(torch.full((32,), 3.0)), older)):
        [weights] = read(folder_of(tmp_path / str(number), tensors, **DORA))["decoder"]["blocks.0.attention.qkv"]
        assert weights.magnitude[:32].eq(3).all() and weights.rows.tolist() == [True] * 32 + [False] * 64
        assert weights.lora.b[:32].eq(32).all() and weights.rank == 2


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        (dora(torch.ones(16)), DORA, r"q_proj has a lora_magnitude_vector of shape \[16\], its rows are 32; fetch"),
        (dora(torch.ones(1, 32)), DORA, r"has a lora_magnitude_vector of shape \[1, 32\], its rows are 32"),
        (dora(torch.full((32,), torch.nan)), DORA, r"has values that are no numbers \(its lora_magnitude_vector\)"),
        (dora(torch.ones(32)) | ones(K), DORA, "k_proj lacks its lora_magnitude_vector; fetch or save it again"),
        (dora(torch.ones(32)), {}, "has a lora_magnitude_vector, its configuration does not say use_dora; fetch"),
        (matrices(torch.ones(2, 32), torch.full((32, 2), torch.inf)), {}, r"are no numbers \(its lora_B\)"),
        (ones(), {"lora_alpha": 1e308}, r"q_proj has values that its lora_alpha of 1e\+308 makes infinite; fetch"),
        (matrices(torch.ones(2, 32), torch.ones(32, 2).cfloat()), {}, r"has values of type complex64 \(its lora_B\)"),
        (matrices(torch.ones(2, 32).bool(), torch.ones(32, 2)), {}, r"has values of type bool \(its lora_A\)"),
    ],
)  # fmt: skip
def test_lengths_that_do_not_fit(tensors, config, sentence, tmp_path):
    with pytest.raises(VlmError, match=sentence):
        read(folder_of(tmp_path / "a", tensors, **config))


def test_matrices_of_8_bits_are_read(tmp_path):
    narrow = {name: values.to(torch.float8_e4m3fn) for name, values in ones().items()}
    [weights] = read(folder_of(tmp_path / "a", narrow))["decoder"]["blocks.0.attention.qkv"]
    assert weights.b.dtype == torch.float32 and weights.b[:32].eq(4).all()


def test_values_beyond_the_type_that_layers_compute_in_are_refused(tmp_path):
    """Beside them the rows of others would be no numbers: their products with them count for nothing, and are NaN."""
    engine = engine_dir(tiny.llama(), tmp_path, dtype="float16")
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", max_loras=1))
    with pytest.raises(InputError, match="has values that are too large for float16; run its model with another dtype"):
        pipe.load_lora("a", folder_of(tmp_path / "a", lora_alpha=1e6))
    pipe.load_lora("b", folder_of(tmp_path / "b", lora_alpha=1e4))  # there is room


def test_rows_of_zeros_get_no_length(tmp_path):
    """Neither when it is loaded nor when it is merged."""
    model = tiny.llama()
    model.model.layers[0].self_attn.q_proj.weight.data[5] = 0
    engine = engine_dir(model, tmp_path)
    tensors = dora(torch.ones(32))
    tensors[f"base_model.model.{Q}.lora_B.weight"][5] = 0
    folder = folder_of(tmp_path / "a", tensors, use_dora=True)
    where = r"rows of zeros \(decoder.blocks.0.attention.qkv\), which have no direction; it was made for other weights"
    with pytest.raises(InputError, match=where):
        Pipeline(engine, RuntimeConfig(device="cpu", lora=(f"a={folder}",)))
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", max_loras=1))
    with pytest.raises(InputError, match=where):
        pipe.load_lora("a", folder)
    pipe.load_lora("b", folder_of(tmp_path / "b"))  # there is room
    with pytest.raises(VlmError, match=r"rows of zeros together with its weight.*: blocks.0.attention.qkv.weight"):
        convert_model(tmp_path / "checkpoint", tmp_path / "out", merge_lora=folder)


WHOLE = ones()
HALF = {name: values for name, values in WHOLE.items() if "lora_A" in name}
EMBEDDING = {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(2, 60)}


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (HALF, "model.layers.0.self_attn.q_proj lacks its lora_B; fetch or save it again"),
        (WHOLE | {name.removeprefix("base_model.model."): x + 1 for name, x in WHOLE.items()},
         "holds model.layers.0.self_attn.q_proj.lora_A under two names; save the adapter again"),
        (WHOLE | EMBEDDING, "holds .*embed_tokens.lora_embedding_A, which is no LoRA of a linear layer"),
        ({}, "holds no tensors"),
        (ones(out=64), r"does not fit this llama model: model.layers.0.self_attn.q_proj is \[64, 32\] and should be"
         r" \[32, 32\]; it was made for org/base"),
        (ones(Q.replace("layers.0", "layers.7")), "layers.7.self_attn.q_proj is no linear layer of its decoder; merge"),
        (ones("encoder.block.0.layer.0.SelfAttention.q"), "SelfAttention.q is no linear layer"),
    ],
)  # fmt: skip
def test_adapters_that_do_not_fit(tensors, sentence, tmp_path):
    with pytest.raises(VlmError, match=sentence):
        read(folder_of(tmp_path / "a", tensors, base_model_name_or_path="org/base"))


def test_a_head_has_adapters_where_it_has_weights_of_its_own(tmp_path):
    folder = folder_of(tmp_path / "a", ones("lm_head", out=60))
    assert list(read(folder)["decoder"]) == ["head"]
    with pytest.raises(VlmError, match=r"lm_head.weight is one tensor with others in this model \(tied embeddings\)"):
        read(folder, tiny.llama(tie_word_embeddings=True))


def test_visual_networks_have_none(tmp_path):
    name = "vision_tower.encoder.layers.0.self_attn.q_proj"
    sentence = rf"{name} is no linear layer of its decoder \(vlm convert --merge-lora takes its visual network's, too\)"
    with pytest.raises(VlmError, match=sentence):
        read(folder_of(tmp_path / "a", ones(f"model.{name}", width=24, out=24)), tiny.llava())


def test_an_adapter_of_a_part_of_the_model_is_not_sent_to_be_merged(tmp_path):
    """`get_peft_model(model.language_model, …)` saves names that begin within it: merging does not know them either."""
    with pytest.raises(
        VlmError, match=r"layers.0.self_attn.q_proj is no linear layer of its decoder; merge .* with PEFT"
    ):
        read(folder_of(tmp_path / "a", ones(Q.removeprefix("model."))), tiny.idefics3())


def test_names_within_the_language_part_of_a_qwen_vl_are_its_decoders(tmp_path):
    """Older releases call its layers as they are called there, after what every base model's names begin with."""
    layers = read(folder_of(tmp_path / "a", ones(Q.removeprefix("model."))), tiny.qwen_vl())
    assert list(layers["decoder"]) == ["blocks.0.attention.qkv"]


def test_llavas_own_names_are_those_of_its_decoder(tmp_path):
    """Of an adapter alone; in Hugging Face's model its layers are called otherwise."""
    theirs = ones(Q.replace("model.", "model.language_model."))
    for number, tensors in enumerate((ones(), theirs)):
        layers = read(folder_of(tmp_path / str(number), tensors), tiny.llava())
        assert list(layers["decoder"]) == ["blocks.0.attention.qkv"]


@pytest.mark.parametrize("kind", ["LORA", "IA3"])
def test_files_that_are_damaged_or_unsafe(kind, tmp_path):
    with pytest.raises(VlmError, match=r"is no folder of a PEFT adapter: it holds no adapter_config.*no such folder"):
        read(tmp_path / "nowhere")
    tensors = ones() if kind == "LORA" else scales(torch.ones(32, 1))
    folder = folder_of(tmp_path / "a", tensors, peft_type=kind)
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(VlmError, match="is damaged or truncated"):
        read(folder)
    torch.save(tensors, folder / "adapter_model.bin")
    weights.unlink()
    assert read(folder)["decoder"]
    torch.save({"x": print}, folder / "adapter_model.bin")
    with pytest.raises(VlmError, match="Python objects other than tensors, which could run code"):
        read(folder)


def test_pickles_hold_what_was_trained(tmp_path):
    """As it was trained, which is no tensor of ours to write into; nothing else is a state dict."""
    folder, [(name, values), *others] = folder_of(tmp_path / "a"), ones().items()
    (folder / "adapter_model.safetensors").unlink()
    torch.save({name: torch.nn.Parameter(x) for name, x in ones().items()}, folder / "adapter_model.bin")
    pipe = Pipeline(engine_dir(tiny.llama(), tmp_path), RuntimeConfig(device="cpu", lora=(f"a={folder}",)))
    assert pipe.generate({"input_ids": [5]}, lora="a", max_new_tokens=2).token_ids
    for wrong in ({3: values}, {name: values.to_sparse()}, {name: values.to("meta")}):
        torch.save(dict(others) | wrong, folder / "adapter_model.bin")
        with pytest.raises(VlmError, match="is no state dict of tensors by name; save the model as safetensors"):
            read(folder)


@pytest.mark.parametrize("pickled", [False, True])
def test_what_becomes_of_a_file_changes_no_adapter_that_was_read(pickled, tmp_path):
    """Where it is written anew in its place: a mapping would have the new values, or end the process."""
    folder = folder_of(tmp_path / "a")
    weights = folder / "adapter_model.safetensors"
    if pickled:
        weights.unlink()
        weights = folder / "adapter_model.bin"
        torch.save(ones(), weights)
    [adapter] = read_peft(folder).modules.values()
    weights.write_bytes(bytes(weights.stat().st_size))
    assert adapter.a.eq(1).all() and adapter.b.eq(4).all()


def ia3_folder(path, tensors=None, **config):
    return adapter_folder(path, scales(torch.ones(32, 1)) if tensors is None else tensors, peft_type="IA3", **config)


@pytest.mark.parametrize("named", [["down_proj"], r"model\.layers\.\d+\.mlp\.down_proj", ["layers.0.mlp.down_proj"]])
def test_scales_are_of_the_inputs_of_what_feedforward_modules_match(named, tmp_path):
    down = "model.layers.0.mlp.down_proj"
    tensors = scales(torch.full((32, 1), 3.0)) | scales(torch.full((1, 48), 2.0), down)
    layers = read(ia3_folder(tmp_path / "a", tensors, feedforward_modules=named))["decoder"]
    [outputs], [inputs] = layers["blocks.0.attention.qkv"], layers["blocks.0.ffn.down"]
    assert outputs.scales[32:64].eq(3).all() and outputs.scales[:32].eq(1).all() and outputs.scales[64:].eq(1).all()
    assert inputs.of_inputs and inputs.scales.eq(2).all()


@pytest.mark.parametrize(
    ("tensors", "config", "sentence"),
    [
        (None, {"modules_to_save": ["lm_head"]}, r"itself \(modules_to_save lm_head\), which are of all requests"),
        (None, {"feedforward_modules": 3}, "holds a value that no IA3 has .feedforward_modules 3"),
        (None, {"feedforward_modules": [3]}, "holds a value that no IA3 has"),
        (None, {"feedforward_modules": "("}, "holds a value that no IA3 has .missing"),
        (None, {"feedforward_modules": ["k_proj"]}, r"k_proj has a vector of shape \[32, 1\], its configuration says"
         r" that it scales inputs, \[1, n\]; fetch or save it again"),
        (scales(torch.ones(1, 32)), {}, r"its configuration says that it scales outputs, \[n, 1\]"),
        (scales(torch.ones(32)), {}, r"has a vector of shape \[32\]"),
        (scales(torch.ones(64, 1)), {}, "does not fit this llama model: model.layers.0.self_attn.k_proj scales 64"
         " outputs and should 32; it was made for org/base"),
        (scales(torch.ones(32, 1), K.replace("0", "7")), {}, "layers.7.self_attn.k_proj is no linear layer of its"),
        (ones(), {}, "lora_A.weight, .*which is no IA3 of a linear layer"),
        ({}, {}, "holds no tensors"),
    ],
)  # fmt: skip
def test_scales_that_do_not_fit(tensors, config, sentence, tmp_path):
    with pytest.raises(VlmError, match=sentence):
        read(ia3_folder(tmp_path / "a", tensors, base_model_name_or_path="org/base", **config))


def test_weights_beside_an_adapter(tmp_path):
    folder = folder_of(tmp_path / "a")
    (folder / "non_lora_trainables.bin").touch()
    with pytest.raises(
        VlmError, match=r"itself \(non_lora_trainables.bin\), which are of all requests; merge it: vlm conv"
    ):
        read(folder)


def test_what_is_quantized_or_split_is_not_merged(tmp_path):
    engine_dir(tiny.llama(), tmp_path)
    convert_model(tmp_path / "checkpoint", tmp_path / "split", tp_size=2)
    folder = folder_of(tmp_path / "a")
    with pytest.raises(InputError, match="the model is split among ranks, so nothing can be merged"):
        convert_model(tmp_path / "split", tmp_path / "out", merge_lora=folder)
    both = convert_model(tmp_path / "checkpoint", tmp_path / "both", merge_lora=folder, tp_size=2)
    one = convert_model(tmp_path / "checkpoint", tmp_path / "one", merge_lora=folder)
    whole, name = Checkpoint.open(one).weights("decoder", 0), "blocks.0.attention.qkv.weight"
    parts = [Checkpoint.open(both).weights("decoder", rank)[name] for rank in range(2)]
    queries = torch.cat([part[:16] for part in parts])  # of each rank the first of its rows
    assert queries.equal(whole[name][:32]) and not (tmp_path / "out").exists()


def test_requests_name_what_is_loaded_and_there_is_room_for(tmp_path):
    engine = engine_dir(tiny.llama(), tmp_path)
    a, b = (f"{name}={folder_of(tmp_path / name)}" for name in "ab")
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", lora=(a, b)))
    for wrong in ("c", 2, -2, True):
        with pytest.raises(InputError, match=f"there is no adapter {wrong!r}: a, b is what is loaded"):
            pipe.generate({"input_ids": [5]}, lora=wrong)
    with pytest.raises(InputError, match="there is no adapter 'a': none is loaded; load one with lora NAME=FOLDER"):
        Pipeline(engine, RuntimeConfig(device="cpu")).generate({"input_ids": [5], "lora": "a"})
    with pytest.raises(InputError, match="1 is no adapter's name; give printable words with a letter or digit"):
        pipe.load_lora(1, tmp_path / "a")  # type: ignore[arg-type]
    with pytest.raises(LimitError, match="room for 1 adapter, 2 are named, give max_cpu_loras 2"):
        Pipeline(engine, RuntimeConfig(device="cpu", lora=(a, b), max_cpu_loras=1))
    with pytest.raises(LimitError, match="room for adapters of rank 1, a has 2, give max_lora_rank 2"):
        Pipeline(engine, RuntimeConfig(device="cpu", lora=(a, b), max_lora_rank=1))


def test_names_are_no_pairs(tmp_path):
    with pytest.raises(InputError, match=r"lora is './a'; give folders by the names .*: \{NAME: FOLDER\}"):
        vlm.load("mini-t5", lora="./a")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="an adapter is called 'a=b'; give it a name without ="):
        vlm.load(tmp_path, lora={"a=b": "folder"})


def test_compiled_engines_take_none(tmp_path, monkeypatch):
    engine, folder = engine_dir(tiny.llama(), tmp_path), folder_of(tmp_path / "a")
    monkeypatch.setattr(adapters, "backend_of", lambda _: OnnxRuntimeBackend())
    with pytest.raises(InputError, match="adapters are for backend torch, onnxruntime runs compiled graphs; merge"):
        Pipeline(engine, RuntimeConfig(device="cpu", lora=(f"a={folder}",)))


@pytest.mark.parametrize(
    ("lora", "sentence"),
    [
        (("a",), "lora is 'a', it must be NAME=FOLDER"),
        (("a=x", "a=y"), "lora names a twice"),
        (("\n=x",), r"lora names '\\n', a name is"),
    ],
)
def test_names_of_adapters(lora, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RuntimeConfig(lora=lora)
