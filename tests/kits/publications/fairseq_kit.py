"""FairSeq-format folders with random weights, and the same maths in a few lines of plain torch."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F

WORDS = [f"w{i}" for i in range(36)]


class Published:
    """A state dict under FairSeq's names, written as its modules save them."""

    def __init__(self, seed: int = 0, entries: list[str] | None = None, unlisted: int = 0, **options):
        """`unlisted`: how many of the entries the dictionary's file does not hold."""
        self.options = {
            "arch": "transformer", "source_lang": "en", "target_lang": "fr", "encoder_embed_dim": 16,
            "encoder_ffn_embed_dim": 24, "encoder_layers": 2, "encoder_attention_heads": 2, "decoder_embed_dim": 16,
            "decoder_ffn_embed_dim": 20, "decoder_layers": 1, "decoder_attention_heads": 4,
            "encoder_normalize_before": False, "decoder_normalize_before": False, "encoder_learned_pos": False,
            "decoder_learned_pos": False, "activation_fn": "relu", "dropout": 0.1, "share_all_embeddings": False,
            "share_decoder_input_output_embed": False, "max_source_positions": 60, "max_target_positions": 50,
        } | options  # fmt: skip
        self.generator = torch.Generator().manual_seed(seed)
        self.unlisted = unlisted
        self.entries = WORDS if entries is None else entries
        self.sizes = {"encoder": len(self.entries) + 4, "decoder": len(self.entries) + 4}
        if not self.options["share_all_embeddings"] and options.get("separate"):
            self.sizes["decoder"] = len(self.entries) - 6
        self.state: dict[str, torch.Tensor] = {}
        for side in ("encoder", "decoder"):
            self._side(side)

    def get(self, name, default=None):
        return self.options.get(name, default)

    def draw(self, *size):
        return torch.randn(*size, generator=self.generator) * (0.5 if len(size) > 1 else 0.2)

    def _affine(self, name, outputs, inputs):
        self.state |= {f"{name}.weight": self.draw(outputs, inputs), f"{name}.bias": self.draw(outputs)}

    def _norm(self, name, width):
        self.state |= {f"{name}.weight": 1 + self.draw(width), f"{name}.bias": self.draw(width)}

    def _attention(self, name, width):
        for part in "kvq":
            self._affine(f"{name}.{part}_proj", width, width)
        self._affine(f"{name}.out_proj", width, width)

    def _side(self, side):
        width, ffn = self.get(f"{side}_embed_dim"), self.get(f"{side}_ffn_embed_dim")
        shared = side == "decoder" and self.get("share_all_embeddings")
        table = self.state["encoder.embed_tokens.weight"] if shared else self.draw(self.sizes[side], width)
        self.state[f"{side}.embed_tokens.weight"] = table
        if self.get(f"{side}_learned_pos"):
            limit = self.get("max_source_positions" if side == "encoder" else "max_target_positions")
            self.state[f"{side}.embed_positions.weight"] = self.draw(limit + 2, width)
        else:
            self.state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
        for i in range(self.get(f"{side}_layers")):
            layer = f"{side}.layers.{i}"
            self._attention(f"{layer}.self_attn", width)
            self._norm(f"{layer}.self_attn_layer_norm", width)
            if side == "decoder":
                self._attention(f"{layer}.encoder_attn", width)
                self._norm(f"{layer}.encoder_attn_layer_norm", width)
            self._affine(f"{layer}.fc1", ffn, width)
            self._affine(f"{layer}.fc2", width, ffn)
            self._norm(f"{layer}.final_layer_norm", width)
        if self.get("layernorm_embedding"):
            self._norm(f"{side}.layernorm_embedding", width)
        bare = self.get("version", 3) < 2 or (side == "decoder" and self.get("no_decoder_final_norm"))
        if self.get(f"{side}_normalize_before") and not bare:
            self._norm(f"{side}.layer_norm", width)
        self.state[f"{side}.version"] = torch.tensor([float(self.get("version", 3))])
        if side == "decoder":
            tied = self.get("share_all_embeddings") or self.get("share_decoder_input_output_embed")
            self.state["decoder.output_projection.weight"] = table if tied else self.draw(self.sizes[side], width)

    # --- the maths ---
    def logits(self, source: list[int], target: list[int]) -> torch.Tensor:
        """[len(target), vocabulary]"""
        memory = self._stack("encoder", torch.tensor(source), None)
        return self._stack("decoder", torch.tensor(target), memory) @ self.state["decoder.output_projection.weight"].T

    def _stack(self, side, tokens, memory):
        width = self.get(f"{side}_embed_dim")
        x = self.state[f"{side}.embed_tokens.weight"][tokens]
        x = x * (1.0 if self.get("no_scale_embedding") else math.sqrt(width)) + self._positions(
            side, len(tokens), width
        )
        if self.get("layernorm_embedding"):
            x = self._normed(f"{side}.layernorm_embedding", x)
        before = self.get(f"{side}_normalize_before")
        for i in range(self.get(f"{side}_layers")):
            layer = f"{side}.layers.{i}"
            parts = [
                (
                    "self_attn_layer_norm",
                    lambda y, n=layer: self._attend(f"{n}.self_attn", side, y, y, memory is not None),
                )
            ]
            if memory is not None:
                parts.append(
                    (
                        "encoder_attn_layer_norm",
                        lambda y, n=layer: self._attend(f"{n}.encoder_attn", side, y, memory, False),
                    )
                )
            parts.append(("final_layer_norm", lambda y, n=layer: self._feed_forward(n, y)))
            for norm, part in parts:
                if before:
                    x = x + part(self._normed(f"{layer}.{norm}", x))
                else:
                    x = self._normed(f"{layer}.{norm}", x + part(x))
        return self._normed(f"{side}.layer_norm", x) if f"{side}.layer_norm.weight" in self.state else x

    def _positions(self, side, count, width):
        """Counted from 2: the padding's index and one."""
        if self.get(f"{side}_learned_pos"):
            return self.state[f"{side}.embed_positions.weight"][2 : 2 + count]
        rows = []
        for position in range(2, 2 + count):
            angles = [position * math.exp(-i * math.log(10000) / (width // 2 - 1)) for i in range(width // 2)]
            rows.append([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
        return torch.tensor(rows)

    def _normed(self, name, x):
        return F.layer_norm(x, x.shape[-1:], self.state[f"{name}.weight"], self.state[f"{name}.bias"], 1e-5)

    def _linear(self, name, x):
        return x @ self.state[f"{name}.weight"].T + self.state[f"{name}.bias"]

    def _attend(self, name, side, x, memory, causal):
        heads = self.get(f"{side}_attention_heads")
        q, k, v = (self._linear(f"{name}.{p}_proj", y).view(len(y), heads, -1).transpose(0, 1)
                   for p, y in (("q", x), ("k", memory), ("v", memory)))  # fmt: skip
        scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), float("-inf"))
        return self._linear(f"{name}.out_proj", (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), -1))

    def _feed_forward(self, layer, x):
        act = {"relu": F.relu, "gelu": F.gelu}[self.get("activation_fn")]
        return self._linear(f"{layer}.fc2", act(self._linear(f"{layer}.fc1", x)))

    @torch.no_grad()
    def greedy(
        self, source: list[int], new_tokens: int, start: tuple[int, ...] = (2,)
    ) -> tuple[list[int], list[float]]:
        """Tokens after `start` up to and with the end, and their log-probabilities."""
        tokens, found = [*start], []
        while len(found) < new_tokens and (not found or tokens[-1] != 2):
            logprobs = self.logits(source, tokens)[-1].log_softmax(-1)
            tokens.append(int(logprobs.argmax()))
            found.append(float(logprobs.max()))
        return tokens[len(start) :], found

    # --- the files ---
    def write(self, folder: Path, *, newer=False, nested=False, fused=False, old_names=False) -> Path:
        """`newer`: options in `cfg`; `nested`: there, and a part a side; `fused`: one projection for q, k and v;
        `old_names`: as the first releases."""
        folder.mkdir(parents=True)
        state = _fused(self.state) if fused else dict(self.state)
        if old_names:
            state = {_old(name): tensor for name, tensor in state.items()}
            if not self.get("share_decoder_input_output_embed") and not self.get("share_all_embeddings"):
                state["decoder.embed_out"] = state.pop("decoder.output_projection.weight")
            else:
                del state["decoder.output_projection.weight"]
        options = {k: v for k, v in self.options.items() if k not in ("separate", "version")}
        if newer or nested:
            languages = {k: options.pop(k) for k in ("source_lang", "target_lang")}
            options = _nested(options) if nested else options
            content = {"args": None, "cfg": {"model": options | {"_name": "transformer"}, "task": languages}}
        else:
            content = {"args": argparse.Namespace(**options)}
        torch.save(content | {"model": state, "extra_state": {"epoch": 3}}, folder / "model.pt")
        for side, language in (("encoder", "en"), ("decoder", "fr")):
            entries = self.entries[: self.sizes[side] - 4 - self.unlisted]
            (folder / f"dict.{language}.txt").write_text(
                "".join(f"{word} {999 - i}\n" for i, word in enumerate(entries))
            )
        return folder


def _nested(options):
    found = {"encoder": {}, "decoder": {}}
    for name, value in options.items():
        side, _, rest = name.partition("_")
        found.get(side, found)[rest if side in found else name] = value
    return found


def _fused(state):
    found = {name: x for name, x in state.items() if "_proj." not in name or "out_proj" in name or "output" in name}
    for name in state:
        if name.endswith("attn.q_proj.weight"):
            stem = name.removesuffix("q_proj.weight")
            for kind in ("weight", "bias"):
                found[f"{stem}in_proj_{kind}"] = torch.cat([state[f"{stem}{p}_proj.{kind}"] for p in "qkv"])
    return found


def _old(name: str) -> str:
    order = (["self_attn_layer_norm", "final_layer_norm"] if name.startswith("encoder.layers")
             else ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"])  # fmt: skip
    for i, part in enumerate(order):
        if ".layers." in name and f".{part}." in name:
            return name.replace(part, f"layer_norms.{i}")
    return name
