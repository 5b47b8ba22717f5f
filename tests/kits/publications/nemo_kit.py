"""NeMo's GPTs with random weights, the same maths in a few lines, and .nemo archives of them."""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from safetensors.torch import save_file

from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, VlmError

HASH = "2053796188904e679f7e2754a2a1f280"
BOOKKEEPING = {
    "target": "nemo.collections.nlp.models.language_modeling.megatron_gpt_model.MegatronGPTModel", "precision": "bf16",
    "micro_batch_size": 4, "max_position_embeddings": "${.encoder_seq_length}", "hidden_dropout": 0.1,
    "make_vocab_size_divisible_by": 16, "apply_query_key_layer_scaling": True, "kv_channels": None,
    "transformer_block_type": "pre_ln", "megatron_amp_O2": False, "data": {"seq_length": 96}, "optim": {"lr": 1.0e-4},
}  # fmt: skip


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
        self.matrix(f"{root}.embedding.word_embeddings", c["vocab_size"], 32)
        if not c["share_embeddings_and_output_weights"]:
            self.matrix(f"{root}.output_layer", c["vocab_size"], 32)
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
        less, bias = 0.0 if self.config["normalization"] == "layernorm1p" else 1.0, self.draw(32)
        self.state[f"{name}.weight"] = self.draw(32) + less
        if self.config["normalization"] != "rmsnorm":
            self.state[f"{name}.bias"] = bias

    def logits(self, ids, rows=None):
        """`rows`: tuned ones before the tokens, which get positions as they do"""
        c, root = self.config, "model.language_model"
        embedding = self.state[f"{root}.embedding.word_embeddings.weight"]
        x = embedding[ids] if rows is None else torch.cat([rows, embedding[ids]])
        if c["position_embedding_type"] != "rope":
            x = x + self.state[f"{root}.embedding.position_embeddings.weight"][: len(x)]
        for i in range(c["num_layers"]):
            layer = f"{root}.encoder.layers.{i}"
            x = x + self.attend(layer, self.normed(f"{layer}.input_layernorm", x))
            x = x + self.feed_forward(layer, self.normed(f"{layer}.post_attention_layernorm", x))
        x = self.normed(f"{root}.encoder.final_layernorm", x)
        tied = c["share_embeddings_and_output_weights"]
        return x @ (embedding if tied else self.state[f"{root}.output_layer.weight"]).T

    def normed(self, name, x):
        if self.config["normalization"] == "rmsnorm":
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.state[f"{name}.weight"]
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
        scores = q @ k.transpose(1, 2) / (self.dim**0.5 if self.config.get("normalize_attention_scores", True) else 1)
        scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), float("-inf"))
        return self.linear(f"{layer}.self_attention.dense", (scores.softmax(-1) @ v).transpose(0, 1).flatten(1))

    def turned(self, x):
        share = int(self.dim * self.config["rotary_percentage"])
        base, stretch = self.config.get("rotary_base", 10000), self.config.get("seq_len_interpolation_factor", 1)
        angles = torch.arange(x.shape[1])[:, None] / stretch / base ** (torch.arange(0, share, 2) / share)
        angles = torch.cat([angles, angles], -1)
        part, rest = x[..., :share], x[..., share:]
        half = torch.cat([-part[..., share // 2 :], part[..., : share // 2]], -1)
        return torch.cat([part * angles.cos() + half * angles.sin(), rest], -1)

    def feed_forward(self, layer, x):
        kind = self.config["activation"]
        up = gate = self.linear(f"{layer}.mlp.dense_h_to_4h", x)
        if kind.startswith("fast"):
            gate, up = up.chunk(2, -1)
        elif "glu" in kind:
            up = self.linear(f"{layer}.mlp.dense_h_to_4h_2", x)
        fused = self.config.get("bias_activation_fusion", self.config["bias"])
        gate = F.silu(gate) if "swiglu" in kind else F.gelu(gate, approximate="tanh" if fused else "none")
        return self.linear(f"{layer}.mlp.dense_4h_to_h", gate * up if "glu" in kind else gate)

    def continued(self, prompt, new, ids=None, rows=None):
        """Greedy tokens, none of them beyond the first `ids`: the others pad the embedding."""
        found, end = list(prompt), self.config["eos_token_id"]
        while len(found) < len(prompt) + new and (len(found) == len(prompt) or found[-1] != end):
            found.append(int(self.logits(torch.tensor(found), rows)[-1, :ids].argmax()))
        return found[len(prompt) :]

    def write(self, folder):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.state, folder / "model.safetensors")
        return folder

    # --- as NeMo saves it ---
    def unpacked_ptuning(self, folder: Path, layers: dict[str, torch.Tensor], *, ranks: int = 1, stages: int = 1,
                         root: str = "model.language_model", **more) -> Path:  # fmt: skip
        """The content of an archive of `peft_scheme: ptuning`; `layers`: what the adapter keeps, by its own names."""
        folder.mkdir(parents=True)
        cut = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
        tuning = {"virtual_tokens": len(layers.get("embedding.weight", ())) or None, "bottleneck_dim": 8}
        said = {"peft": {"peft_scheme": "ptuning", "p_tuning": tuning}, "restore_from_path": "/models/gpt.nemo",
                "data": {"train_ds": {"prompt_template": "{input} {output}", "add_bos": False}}}  # fmt: skip
        (folder / "model_config.yaml").write_text(self.yaml(**said | more))
        for rank in range(ranks):
            own = {n: x.chunk(ranks, cut[n])[rank].clone() if n in cut else x for n, x in layers.items()}
            for stage in range(stages):
                name = f"tp_rank_{rank:02d}_pp_rank_{stage:03d}" if stages > 1 else f"mp_rank_{rank:02d}"
                place = folder / name if ranks * stages > 1 else folder
                place.mkdir(exist_ok=True)
                state = {} if stage else {f"{root}.adapter_layer.ptuning_adapter.{n}": x for n, x in own.items()}
                torch.save(state, place / "model_weights.ckpt")
        return folder

    def yaml(self, **more) -> str:
        own = ("model_type", "vocab_size", "eos_token_id")
        kept = {name: value for name, value in self.config.items() if name not in own}
        return yaml.safe_dump(BOOKKEEPING | kept | more, sort_keys=False)

    def ranks(self, count: int) -> list[dict[str, torch.Tensor]]:
        """What each rank of a tensor parallel training keeps."""
        found = [{} for _ in range(count)]
        for name, x in self.state.items():
            for rank, part in enumerate(self._parts(name, x, count)):
                found[rank][name] = part.clone()
        return found

    def _parts(self, name, x, count):
        if name.endswith(("self_attention.dense.weight", "dense_4h_to_h.weight")):
            return x.chunk(count, 1)
        if ".dense_h_to_4h." in name and self.config["activation"].startswith("fast"):
            gate, up = x.chunk(2)
            return [torch.cat(halves) for halves in zip(gate.chunk(count), up.chunk(count), strict=True)]
        whole = ("layernorm.weight", "layernorm.bias", "position_embeddings.weight", "dense.bias", "dense_4h_to_h.bias")
        return [x] * count if name.endswith(whole) else x.chunk(count)

    def stage(self, state: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
        """What one of two stages of a pipeline keeps, which has one layer of the two."""
        kept = {n.replace(f".{number}.", ".0.", 1): x for n, x in state.items() if f".layers.{number}." in n}
        at_end = (".final_layernorm.", ".output_layer.")
        outer = {n: x for n, x in state.items() if ".layers." not in n and any(a in n for a in at_end) == bool(number)}
        word = "model.language_model.embedding.word_embeddings.weight"
        copy = {"model.word_embeddings.weight": state[word]} if number and "output_layer" not in str(outer) else {}
        return kept | outer | copy

    def unpacked(self, folder: Path, files: dict[str, Path], ranks: int = 1, half: bool = False, stages: int = 1,
                 **more) -> Path:  # fmt: skip
        """The content of an archive; `files`: the tokenizer's, by their names in the configuration."""
        folder.mkdir(parents=True)
        named = {name: f"nemo:{HASH}_{file.name}" for name, file in files.items()}
        said = {"library": "megatron", "type": "GPT2BPETokenizer"} | named | more.pop("tokenizer", {})
        sizes = {"tensor_model_parallel_size": ranks, "pipeline_model_parallel_size": stages}
        (folder / "model_config.yaml").write_text(self.yaml(**sizes, tokenizer=said, **more))
        for file in files.values():
            shutil.copyfile(file, folder / f"{HASH}_{file.name}")
        for number, state in enumerate(self.ranks(ranks)):
            for stage in range(stages):
                name = f"tp_rank_{number:02d}_pp_rank_{stage:03d}" if stages > 1 else f"mp_rank_{number:02d}"
                place = folder / name if ranks * stages > 1 else folder
                place.mkdir(exist_ok=True)
                part = self.stage(state, stage) if stages > 1 else state
                part = {n.replace("model.", "model.module.", 1): x for n, x in part.items()} if half else part
                torch.save(part, place / "model_weights.ckpt")
        return folder


def archive(folder: Path, path: Path, mode: str = "w", root: str = "./") -> Path:
    """A folder's content as a .nemo file."""
    with tarfile.open(path, mode) as tar:
        for file in sorted(folder.rglob("*")):
            tar.add(file, f"{root}{file.relative_to(folder)}", recursive=False)
    return path


def gpt2_files(folder: Path) -> dict[str, Path]:
    """A vocabulary and merges of GPT-2's kind: 42 ids, the first of which no text here has."""
    merges = ["t h", "th e", "Ġ the", "h o", "ho u", "s e", "hou se", "Ġ house", "i s", "Ġ is"]
    signs = [*"!abcdefghijklmnopqrstuvwxyz.,ĠĊ", *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({sign: i for i, sign in enumerate(signs)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return {"vocab_file": folder / "vocab.json", "merge_file": folder / "merges.txt"}


def sentencepiece_file(folder: Path, kind: str = "unigram", name: str = "tokenizer", **options) -> Path:
    """A model trained on a few sentences."""
    import sentencepiece

    texts = ["the house is small", "a small boat is in the harbour", "the old harbour, the new boat."] * 60
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / name), model_type=kind, minloglevel=2,
        **{"vocab_size": 58, "hard_vocab_limit": kind == "bpe"} | options,
    )  # fmt: skip
    return folder / f"{name}.model"


def change_tensor(path: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Changes the tensors of a file whose names end so; None leaves one out."""
    state = torch.load(path, weights_only=True)
    state = {each: change(x) if each.endswith(name) else x for each, x in state.items()}
    torch.save({each: x for each, x in state.items() if x is not None}, path)


def refused(source: Path, folder: Path, error: type[VlmError] = CheckpointError) -> str:
    """Returns why a source in `folder` is not converted, in one line; nothing is left behind there."""
    before = set(folder.iterdir())
    with pytest.raises(error) as caught:
        convert_folder(source, folder / "out")
    assert set(folder.iterdir()) == before and str(caught.value).count("\n") == 0
    return str(caught.value)
