"""What a configuration's keys and a checkpoint's layout mean is what Hugging Face's classes make of them: the same
tokens and logits as `from_pretrained`, or a refusal by name."""

from __future__ import annotations

import pytest
import torch

from tests.kits.publications import published_kit as kit
from tests.parity.test_published import assert_same_logits, one_thread  # noqa: F401
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError

pytestmark = pytest.mark.usefixtures("one_thread")
BASES = {
    "t5": "google-t5__t5-small",
    "mt5": "google__mt5-small",
    "bart": "facebook__bart-large-cnn",
    "mbart": "facebook__mbart-large-50-many-to-many-mmt",
    "m2m_100": "facebook__m2m100_418M",
    "marian": "Helsinki-NLP__opus-mt-de-en",
    "pegasus": "google__pegasus-large",
    "t5gemma": "google__t5gemma-2b-2b-prefixlm-it",
    "llama": "TinyLlama__TinyLlama-1.1B-Chat-v1.0",
    "mistral": "mistralai__Mistral-7B-v0.1",
    "gpt2": "openai-community__gpt2",
    "gpt_bigcode": "bigcode__gpt_bigcode-santacoder",
    "opt": "facebook__opt-1.3b",
}
V1_1, UNREAD = "google__flan-t5-small", {"n_special": 0, "author": "someone", "is_llama_config": True}
YARN = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "mscale": 1.0, "mscale_all_dim": 0.5}
HONOURED = {
    # T5: what a saved configuration says outright prevails over feed_forward_proj
    "gelu by the error function": (V1_1, {"dense_act_fn": "gelu"}),
    "gated in words of its own": (V1_1, {"feed_forward_proj": "gelu", "is_gated_act": True}),
    "gated-gelu alone": (V1_1, {"dense_act_fn": "gelu_new", "scale_decoder_outputs": True}),
    "scaled though untied": (V1_1, {"scale_decoder_outputs": True}),
    "gated relu": (BASES["mt5"], {"feed_forward_proj": "gated-relu", "dense_act_fn": "relu"}),
    "mt5's tie is not read": (BASES["mt5"], {"tie_word_embeddings": True}),
    "all distances beyond the exact buckets": (
        BASES["t5"], {"relative_attention_num_buckets": 64, "relative_attention_max_distance": 32}),
    "odd number of buckets": (BASES["t5"], {"relative_attention_num_buckets": 15}),
    "no number of decoder layers": (BASES["t5"], {"num_decoder_layers": None}),
    # BART: no class reads where the norms stand
    "bart: relics": (BASES["bart"], {"normalize_before": True, "add_final_layer_norm": True, **UNREAD}),
    "bart: more relics": (BASES["bart"], {"static_position_embeddings": True, "normalize_embedding": False}),
    "bart: extra positions": (BASES["bart"], {"extra_pos_embeddings": 4, "add_bias_logits": True}),
    "mbart: relics": (BASES["mbart"], {"normalize_before": False, "add_final_layer_norm": False}),
    "mbart: unscaled": (BASES["mbart"], {"scale_embedding": False, "activation_function": "gelu_pytorch_tanh"}),
    "m2m_100: relics": (BASES["m2m_100"], {"normalize_before": False, "static_position_embeddings": False, **UNREAD}),
    "m2m_100: unscaled": (BASES["m2m_100"], {"scale_embedding": False, "activation_function": "gelu"}),
    "m2m_100: positions follow the padding": (BASES["m2m_100"], {"pad_token_id": 0}),
    "marian: relics": (BASES["marian"], {"normalize_before": True, "normalize_embedding": True}),
    "marian: two vocabularies": (BASES["marian"], {"share_encoder_decoder_embeddings": False}),
    "marian: two vocabularies, a head of its own": (
        BASES["marian"], {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
    "marian: absent keys": (BASES["marian"], {"decoder_vocab_size": None, "extra_pos_embeddings": 9}),
    "pegasus: relics": (BASES["pegasus"], {"normalize_before": False, "add_final_layer_norm": False,
                                           "static_position_embeddings": False, **UNREAD}),
    "pegasus: unscaled": (BASES["pegasus"], {"scale_embedding": False, "activation_function": "gelu"}),
    # LLaMA, Mistral
    "null counts": (BASES["llama"], {"num_key_value_heads": None, "head_dim": None, **UNREAD}),
    "unread by llama": (BASES["llama"], {"rope_interleaved": True, "partial_rotary_factor": 0.5, "pretraining_tp": 4}),
    "biases": (BASES["llama"], {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu_fast"}),
    "rope_scaling prevails": (
        BASES["llama"], {"rope_scaling": {"type": "linear", "factor": 4.0},
                         "rope_parameters": {"rope_type": "default", "rope_theta": 99.0}}),
    "rope_parameters": (BASES["llama"], {"rope_parameters": {"rope_type": "default", "rope_theta": 99.0}}),
    "yarn with mscale": (BASES["llama"], {"rope_scaling": YARN}),
    "unread by its rope": (BASES["llama"], {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta": 3}}),
    "mistral has no biases": (BASES["mistral"], {"attention_bias": True, "mlp_bias": True}),
    "mistral: no window": (BASES["mistral"], {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    # T5Gemma
    "t5gemma: nothing is capped, all is seen": (
        BASES["t5gemma"], {side: kit.facts(BASES["t5gemma"])[side] | {
            "attn_logit_softcapping": None, "final_logit_softcapping": None, "layer_types": ["full_attention"] * 2,
            "attention_bias": True, "query_pre_attn_scalar": 9} for side in ("encoder", "decoder")}),
    "t5gemma: sides of two widths, absent keys": (
        BASES["t5gemma"], {"tie_word_embeddings": False, "decoder": {
            "layer_types": ["full_attention", "sliding_attention"], "bos_token_id": 2, "pad_token_id": 0,
            "num_attention_heads": 8, "num_key_value_heads": 2, "cross_attention_hidden_size": 7}}),
    # GPT-2
    "by the layer": (BASES["gpt2"], {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True}),
    "by the layer alone": (
        BASES["gpt2"], {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "n_inner": None}),
    "unread by gpt2": (BASES["gpt2"], {"multi_query": True, "num_key_value_heads": 1, "n_ctx": 8}),
    "many heads": (BASES["gpt_bigcode"], {"multi_query": False, "n_inner": None}),
    "unread by gpt_bigcode": (BASES["gpt_bigcode"], {"scale_attn_by_inverse_layer_idx": True}),
    # OPT
    "norms after, projected": (BASES["opt"], {"do_layer_norm_before": False, "word_embed_proj_dim": 512}),
    "no last norm": (BASES["opt"], {"_remove_final_layer_norm": True, "enable_bias": False}),
    "no projection named": (BASES["opt"], {"word_embed_proj_dim": None, "activation_function": "swish"}),
}  # fmt: skip
RENAMED = {
    "t5": {"num_heads": "num_attention_heads", "d_model": "hidden_size", "num_layers": "num_hidden_layers"},
    "bart": {"d_model": "hidden_size", "encoder_layers": "num_hidden_layers"},
    "gpt2": {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
             "n_positions": "max_position_embeddings"},
}  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), HONOURED.values(), ids=HONOURED)
def test_keys_mean_what_the_class_makes_of_them(name, changes, tmp_path):
    assert_same_logits(kit.publish(name, tmp_path, **changes), tmp_path)


@pytest.mark.parametrize("model_type", RENAMED)
def test_standard_names_of_keys(model_type, tmp_path):
    names = RENAMED[model_type]
    model = kit.publish(BASES[model_type], tmp_path, rename=names)
    assert_same_logits(model, tmp_path)


LAYOUTS = {
    "as the base model": {"prefix": True},
    "as the base model, in shards": {"prefix": True, "shards": 3, "file": "pytorch_model.bin"},
    "copies, float64": {"tied": True, "dtype": torch.float64},
    "shards, bfloat16": {"shards": 2, "dtype": torch.bfloat16},
    "float8": {"dtype": torch.float8_e4m3fn},
}
PREFIXES = {"t5": "", "mt5": "", "gpt2": "transformer.", "gpt_bigcode": "transformer."}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model_type", BASES)
def test_layouts_of_weights(model_type, layout, tmp_path):
    given = dict(LAYOUTS[layout])
    prefix = PREFIXES.get(model_type, "model.") if given.pop("prefix", False) else ""
    model = kit.publish(BASES[model_type], tmp_path, kit.Layout(prefix=prefix, **given))
    assert_same_logits(model, tmp_path)


REFUSED = {
    "layer_norm_elementwise_affine": (BASES["opt"], {"layer_norm_elementwise_affine": False}),
    "add_cross_attention": (BASES["gpt2"], {"add_cross_attention": True}),
    "activation_function is 'quick_gelu'": (BASES["opt"], {"activation_function": "quick_gelu"}),
    "feed_forward_proj is 'other-gelu'": (BASES["t5"], {"feed_forward_proj": "other-gelu"}),
    "relative_attention_num_buckets is 2": (BASES["t5"], {"relative_attention_num_buckets": 2}),
    "rope_type is 'longrope'": (BASES["llama"], {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}),
    "partial_rotary_factor is 0.5": (
        BASES["llama"], {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "needs factor": (BASES["llama"], {"rope_scaling": {"type": "linear"}}),
    "{'type': 'linear', 'factor': 'x'}, of which no rotary positions can be made": (
        BASES["llama"], {"rope_scaling": {"type": "linear", "factor": "x"}}),
    "{'type': 'linear', 'factor': 0}, of which no rotary positions can be made": (
        BASES["llama"], {"rope_scaling": {"type": "linear", "factor": 0}}),
    "num_attention_heads 32 is no multiple of num_key_value_heads 5": (BASES["llama"], {"num_key_value_heads": 5}),
    "vocab_size is '32000', it must be a whole number above 0": (BASES["llama"], {"vocab_size": "32000"}),
    "per_layer_config": (BASES["llama"], {"per_layer_config": {"0": {"hidden_act": "relu"}}}),
    "T5Gemma decoder configuration cannot be run exactly: layer_types": (
        BASES["t5gemma"], {"decoder": {"layer_types": ["chunked_attention"] * 26}}),
    "rms_norm_eps is null": (BASES["llama"], {"rms_norm_eps": None}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "changes"), REFUSED.values(), ids=REFUSED)
def test_what_changes_the_maths_is_refused_by_name(name, changes, tmp_path, request):
    kit.write_config(kit.facts(name) | changes, tmp_path)
    with pytest.raises(ConfigError) as caught:
        convert_folder(tmp_path, tmp_path / "checkpoint")
    assert request.node.callspec.id in str(caught.value)


def test_a_size_that_is_none_is_the_one_reason(tmp_path):
    kit.write_config(kit.facts(BASES["gpt2"]) | {"n_embd": -5}, tmp_path)
    with pytest.raises(ConfigError, match=r"exactly: n_embd is -5, it must be a whole number above 0\.$"):
        convert_folder(tmp_path, tmp_path / "checkpoint")


def test_tied_in_name_only(tmp_path):
    """The configuration ties, the weights differ: `from_pretrained` does not tie."""
    others = [BASES[kind] for kind in ("t5", "bart", "m2m_100", "marian", "gpt2", "opt")]
    for name in ("unsloth__Llama-3.2-1B-Instruct", *others):
        model = kit.publish(name, tmp_path / name, untie=True)
        assert not torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
        assert_same_logits(model, tmp_path / name)
