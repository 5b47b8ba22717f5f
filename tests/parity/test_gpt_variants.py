"""GPTs that Hugging Face has no class for: SantaCoder as it was first published, and NeMo's GPT-Next."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tests import tiny
from tests.engines import engine_dir
from vlm.compile.builder import build_engine, convert_folder
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError
from vlm.pipeline import Pipeline

PROMPTS = [[5, 9, 33, 7], [11], [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]]


def test_santacoder_as_first_published(tmp_path):
    """The same weights in its own layout: projections [in, out], the queries' apart from the rest."""
    model = tiny.gpt2(seed=1, multi_query=True)
    want = [tiny.hf_continued(model, p, 15) for p in PROMPTS]
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


class GPTNext:
    """NeMo's GPT in a few lines: tensors under its names, and the same maths."""

    def __init__(self, seed: int = 0, **options):
        self.config = {
            "model_type": "nemo_gpt", "vocab_size": 60, "hidden_size": 32, "ffn_hidden_size": 44, "num_layers": 2,
            "num_attention_heads": 4, "encoder_seq_length": 96, "position_embedding_type": "rope",
            "rotary_percentage": 0.5, "activation": "fast-swiglu", "normalization": "layernorm1p", "bias": False,
            "share_embeddings_and_output_weights": False, "eos_token_id": 2, "layernorm_epsilon": 1e-5,
        } | options  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.state: dict[str, torch.Tensor] = {}
        c, root = self.config, "model.language_model"
        self.groups = c.get("num_query_groups") or c["num_attention_heads"]
        self.dim = c["hidden_size"] // c["num_attention_heads"]
        self.matrix(f"{root}.embedding.word_embeddings", 60, 32)
        if not c["share_embeddings_and_output_weights"]:
            self.matrix(f"{root}.output_layer", 60, 32)
        if c["position_embedding_type"] != "rope":
            self.matrix(f"{root}.embedding.position_embeddings", 96, 32)
        for i in range(c["num_layers"]):
            layer, gated = f"{root}.encoder.layers.{i}", "glu" in c["activation"]
            rows = self.dim * (c["num_attention_heads"] + 2 * self.groups)
            self.affine(f"{layer}.self_attention.query_key_value", rows, 32)
            self.affine(f"{layer}.self_attention.dense", 32, 32)
            joined = gated and c["activation"].startswith("fast")
            self.affine(f"{layer}.mlp.dense_h_to_4h", c["ffn_hidden_size"] * (2 if joined else 1), 32)
            if gated and not joined:
                self.affine(f"{layer}.mlp.dense_h_to_4h_2", c["ffn_hidden_size"], 32)
            self.affine(f"{layer}.mlp.dense_4h_to_h", 32, c["ffn_hidden_size"])
            for norm in ("input_layernorm", "post_attention_layernorm"):
                self.norm_weights(f"{layer}.{norm}")
        self.norm_weights(f"{root}.encoder.final_layernorm")

    def draw(self, *size):
        return torch.randn(*size, generator=self.generator) * (0.3 if len(size) > 1 else 0.1)

    def matrix(self, name, *size):
        self.state[f"{name}.weight"] = self.draw(*size)

    def affine(self, name, outputs, inputs):
        self.matrix(name, outputs, inputs)
        if self.config["bias"]:
            self.state[f"{name}.bias"] = self.draw(outputs)

    def norm_weights(self, name):
        less = 0.0 if self.config["normalization"] == "layernorm1p" else 1.0
        self.state |= {f"{name}.weight": self.draw(32) + less, f"{name}.bias": self.draw(32)}

    def logits(self, ids):
        c, root = self.config, "model.language_model"
        embedding = self.state[f"{root}.embedding.word_embeddings.weight"]
        x = embedding[ids]
        if c["position_embedding_type"] != "rope":
            x = x + self.state[f"{root}.embedding.position_embeddings.weight"][: len(ids)]
        for i in range(c["num_layers"]):
            layer = f"{root}.encoder.layers.{i}"
            x = x + self.attend(layer, self.normed(f"{layer}.input_layernorm", x))
            x = x + self.feed_forward(layer, self.normed(f"{layer}.post_attention_layernorm", x))
        x = self.normed(f"{root}.encoder.final_layernorm", x)
        tied = c["share_embeddings_and_output_weights"]
        return x @ (embedding if tied else self.state[f"{root}.output_layer.weight"]).T

    def normed(self, name, x):
        weight = self.state[f"{name}.weight"] + (1.0 if self.config["normalization"] == "layernorm1p" else 0.0)
        return F.layer_norm(x, (32,), weight, self.state[f"{name}.bias"], 1e-5)

    def linear(self, name, x):
        return F.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def attend(self, layer, x):
        each = self.config["num_attention_heads"] // self.groups
        mixed = self.linear(f"{layer}.self_attention.query_key_value", x).view(len(x), self.groups, each + 2, self.dim)
        q, k, v = mixed[:, :, :each].flatten(1, 2), mixed[:, :, each], mixed[:, :, each + 1]
        q, k, v = (y.transpose(0, 1) for y in (q, k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)))
        if self.config["position_embedding_type"] == "rope":
            q, k = self.turned(q), self.turned(k)
        scores = q @ k.transpose(1, 2) / self.dim**0.5
        scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), float("-inf"))
        return self.linear(f"{layer}.self_attention.dense", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

    def turned(self, x):
        share = int(self.dim * self.config["rotary_percentage"])
        angles = torch.arange(x.shape[1])[:, None] / 10000 ** (torch.arange(0, share, 2) / share)
        angles = torch.cat([angles, angles], -1)
        part, rest = x[..., :share], x[..., share:]
        half = torch.cat([-part[..., share // 2 :], part[..., : share // 2]], -1)
        return torch.cat([part * angles.cos() + half * angles.sin(), rest], -1)

    def feed_forward(self, layer, x):
        up = self.linear(f"{layer}.mlp.dense_h_to_4h", x)
        if self.config["activation"] == "gelu":
            return self.linear(f"{layer}.mlp.dense_4h_to_h", F.gelu(up))
        if self.config["activation"].startswith("fast"):
            gate, up = up.chunk(2, -1)
        else:
            gate, up = up, self.linear(f"{layer}.mlp.dense_h_to_4h_2", x)
        return self.linear(f"{layer}.mlp.dense_4h_to_h", F.silu(gate) * up)

    def continued(self, prompt, new):
        ids = list(prompt)
        while len(ids) < len(prompt) + new and (len(ids) == len(prompt) or ids[-1] != 2):
            ids.append(int(self.logits(torch.tensor(ids))[-1].argmax()))
        return ids[len(prompt) :]

    def write(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.state, folder / "model.safetensors")
        return folder


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
    [("activation", "squared-relu"), ("normalization", "rmsnorm"), ("position_embedding_type", "alibi"),
     ("kv_channels", 16)],
)  # fmt: skip
def test_what_cannot_be_run_exactly_is_named(field, value, tmp_path):
    model = GPTNext()
    model.config[field] = value
    with pytest.raises(ConfigError, match=field):
        convert_folder(model.write(tmp_path / "nemo"), tmp_path / "checkpoint")
