"""GPTs that Hugging Face has no class for: SantaCoder as it was first published, and NeMo's GPT-Next."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.publications.nemo_kit import GPTNext
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError

PROMPTS = [[5, 9, 33, 7], [11], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]


def test_santacoder_as_first_published(tmp_path):
    """The same weights in its own layout: projections [in, out], the queries' apart from the rest."""
    model = tiny.gpt2(seed=1, multi_query=True)
    want = tiny.hf_continuations(model, PROMPTS, 15)
    engine_dir(model, tmp_path)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    for name in ("multi_query", "num_key_value_heads", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32"):
        config.pop(name)
    config |= {"model_type": "gpt2", "attention_head_type": "multiquery", "activation_function": "gelu_pytorch_tanh"}
    tensors = {}
    for name, x in load_file(tmp_path / "hf" / "model.safetensors").items():
        if ".attn.c_attn." in name:
            q, kv = x.split((model.config.n_embd, len(x) - model.config.n_embd))
            tensors[name.replace("c_attn", "q_attn")], tensors[name.replace("c_attn", "kv_attn")] = q, kv
        else:
            tensors[name] = x
    affine = ("attn.weight", "c_proj.weight", "c_fc.weight")
    tensors = {name: x.T.contiguous() if name.endswith(affine) else x.contiguous() for name, x in tensors.items()}
    tensors |= {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 8, 8) for i in range(model.config.n_layer)}
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "config.json").write_text(json.dumps(config))
    save_file(tensors, tmp_path / "published" / "model.safetensors")
    engine = build_engine(convert_folder(tmp_path / "published", tmp_path / "ck"), tmp_path / "e", BuildConfig())
    found = Pipeline(engine, RuntimeConfig(device="cpu")).generate(inputs(), max_new_tokens=15)
    assert [out.token_ids for out in found] == want


def inputs():
    return [{"decoder_prompt_token_ids": p} for p in PROMPTS]


SHAPES = {
    "gpt-next": {},
    "the gate apart, biases, plain norms, all of a head turned": {
        "activation": "swiglu", "bias": True, "normalization": "layernorm", "rotary_percentage": 1.0},
    "learned positions, gelu, tied": {
        "position_embedding_type": "learned_absolute", "activation": "gelu", "bias": True,
        "share_embeddings_and_output_weights": True},
    "grouped queries": {"num_query_groups": 2},
}  # fmt: skip


@pytest.mark.parametrize("options", SHAPES.values(), ids=SHAPES)
def test_gpt_next(options, tmp_path):
    model = GPTNext(seed=7, **options)
    checkpoint = convert_folder(model.write(tmp_path / "nemo"), tmp_path / "checkpoint")
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig())
    found = Pipeline(engine, RuntimeConfig(device="cpu", max_prefill_tokens=6)).generate(inputs(), max_new_tokens=15)
    assert [out.token_ids for out in found] == [model.continued(p, 15) for p in PROMPTS]
    assert len({tuple(out.token_ids) for out in found}) == len(PROMPTS)


@pytest.mark.parametrize(
    ("field", "value"),
    [("activation", "squared-relu"), ("normalization", "low_precision_layernorm"), ("position_embedding_type", "alibi"),
     ("kv_channels", 16)],
)  # fmt: skip
def test_what_cannot_be_run_exactly_is_named(field, value, tmp_path):
    model = GPTNext()
    model.config[field] = value
    with pytest.raises(ConfigError, match=field):
        convert_folder(model.write(tmp_path / "nemo"), tmp_path / "checkpoint")
