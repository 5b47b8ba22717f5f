"""mini-t5: stock Hugging Face classes, and a fast training forward over the very same parameters.

Each block is compiled. T5 leaves attention scores unscaled and starts q small instead, which does not suit Adam; here q
starts like k and the scores are scaled while training, and `export` folds the scale into q.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import T5Config, T5ForConditionalGeneration

from training.t5.tokens import EOS, PAD, VOCAB_SIZE

HIDDEN, HEADS, HEAD_DIM, FFN, ENCODER_LAYERS, DECODER_LAYERS = 256, 8, 32, 512, 4, 4
MAX_POSITIONS = 512  # longest text that the tokenizer claims; the positions are relative
SCALE = HEAD_DIM**-0.5


def build(**changes) -> T5ForConditionalGeneration:
    """The untrained model; every field as google/t5-v1_1-small has it, only smaller, and with a tied head."""
    config = T5Config(**{
        "vocab_size": VOCAB_SIZE, "d_model": HIDDEN, "d_kv": HEAD_DIM, "d_ff": FFN, "num_layers": ENCODER_LAYERS,
        "num_decoder_layers": DECODER_LAYERS, "num_heads": HEADS, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "dropout_rate": 0.0, "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": True, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD,
        "bos_token_id": None,
    } | changes)  # fmt: skip
    model = T5ForConditionalGeneration(config)
    generation = model.generation_config
    generation.decoder_start_token_id = generation.pad_token_id = PAD
    generation.eos_token_id, generation.max_length = EOS, 128
    return model


def fold_scale(model: T5ForConditionalGeneration, factor: float = SCALE) -> None:
    """Between the training's q and T5's: times `factor`, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("Attention.q.weight"):
                parameter.mul_(factor)


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight, 1e-6)


def attention(x: Tensor, memory: Tensor, bias: Tensor, p: dict[str, Tensor]) -> Tensor:
    """x [B, T, C], memory [B, S, C], bias [B or 1, H, T, S] -> [B, T, C]"""
    heads = lambda t: t.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)  # noqa: E731
    q, k, v = heads(F.linear(x, p["q"])), heads(F.linear(memory, p["k"])), heads(F.linear(memory, p["v"]))
    scores = (q @ k.transpose(-1, -2)).float() * SCALE + bias
    mixed = (scores.softmax(-1).to(v.dtype) @ v).transpose(1, 2).flatten(-2)
    return F.linear(mixed, p["o"])


def feed_forward(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    gate = F.gelu(F.linear(x, p["wi_0"]), approximate="tanh")
    return F.linear(gate * F.linear(x, p["wi_1"]), p["wo"])


def encoder_block(x: Tensor, bias: Tensor, p: list[dict[str, Tensor]]) -> Tensor:
    n = norm(x, p[0]["norm"])
    x = x + attention(n, n, bias, p[0])
    return x + feed_forward(norm(x, p[1]["norm"]), p[1])


def decoder_block(x: Tensor, memory: Tensor, bias: Tensor, cross_bias: Tensor, p: list[dict[str, Tensor]]) -> Tensor:
    n = norm(x, p[0]["norm"])
    x = x + attention(n, n, bias, p[0])
    x = x + attention(norm(x, p[1]["norm"]), memory, cross_bias, p[1])
    return x + feed_forward(norm(x, p[2]["norm"]), p[2])


def parameters_of(block: nn.Module) -> list[dict[str, Tensor]]:
    """Returns the weights of each sublayer by short name: q, k, v, o or wi_0, wi_1, wo; and norm."""
    found = []
    for layer in block.layer:
        named = {name.split(".")[-2]: p for name, p in layer.named_parameters() if "relative_attention" not in name}
        found.append({("norm" if name == "layer_norm" else name): p for name, p in named.items()})
    return found


def padding_bias(padded: Tensor) -> Tensor:
    """[B, S] bool -> [B, 1, 1, S]"""
    return torch.where(padded, -30000.0, 0.0)[:, None, None]


class Trainer(nn.Module):
    """(source ids, target ids), padded -> mean loss of a token and share of right tokens."""

    def __init__(self, model: T5ForConditionalGeneration, compiled: bool):
        super().__init__()
        self.model = model
        self._blocks = {
            stack: [parameters_of(block) for block in stack.block] for stack in (model.encoder, model.decoder)
        }
        self._buckets: dict[tuple[nn.Module, int], Tensor] = {}
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self._encoder_block, self._decoder_block, self._head = map(wrap, (encoder_block, decoder_block, head_loss))

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        shifted = F.pad(target, (1, -1), value=PAD)
        shared = self.model.shared.weight
        hidden = self.decode(shifted, self.encode(source), padding_bias(source == PAD))
        return self._head(hidden, self.model.decoder.final_layer_norm.weight, shared, target)

    def encode(self, source: Tensor) -> Tensor:
        stack = self.model.encoder
        bias = self.position_bias(stack, source.shape[1]) + padding_bias(source == PAD)
        x = F.embedding(source, self.model.shared.weight)
        for parameters in self._blocks[stack]:
            x = self._encoder_block(x, bias, parameters)
        return norm(x, stack.final_layer_norm.weight)

    def decode(self, shifted: Tensor, memory: Tensor, cross_bias: Tensor) -> Tensor:
        stack, length = self.model.decoder, shifted.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=shifted.device).triu(1)
        bias = self.position_bias(stack, length) + torch.where(future, -30000.0, 0.0)
        x = F.embedding(shifted, self.model.shared.weight)
        for parameters in self._blocks[stack]:
            x = self._decoder_block(x, memory, bias, cross_bias, parameters)
        return x

    def position_bias(self, stack: nn.Module, length: int) -> Tensor:
        """[1, H, length, length]"""
        first = stack.block[0].layer[0].SelfAttention
        if (stack, length) not in self._buckets:
            place = torch.arange(length, device=first.q.weight.device)
            self._buckets[stack, length] = first._relative_position_bucket(
                place[None] - place[:, None], bidirectional=not stack.is_decoder,
                num_buckets=first.relative_attention_num_buckets, max_distance=first.relative_attention_max_distance,
            )  # fmt: skip
        return F.embedding(self._buckets[stack, length], first.relative_attention_bias.weight).permute(2, 0, 1)[None]


def head_loss(x: Tensor, weight: Tensor, shared: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = F.linear(norm(x, weight) * HIDDEN**-0.5, shared).float()
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
    right = ((logits.argmax(-1) == target) & (target != PAD)).sum() / (target != PAD).sum()
    return loss, right
