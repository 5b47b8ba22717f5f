"""mini-nougat: stock Hugging Face classes, and a fast training forward over the very same parameters.

Hugging Face's DonutSwin runs eagerly at a third of a second a step; here each block is compiled. Three helper losses
teach reading directly, since the renderer knows where every character is: which characters lie in an encoder cell,
which row and column a cell is in (Swin has no absolute positions), and which cell a cross-attention head should look
at. Their heads are thrown away.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DonutSwinConfig, MBartConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

from training.nougat.typesetting.pages import COLUMNS, DENSE, HEIGHT, MAX_TOKENS, ROWS, WIDTH
from training.nougat.typesetting.text import BOS, EOS, PAD, VOCAB_SIZE

PATCH, WINDOW, DEPTHS, HEADS, EMBED = 8, 10, (2, 4), (4, 8), 128
HIDDEN, LAYERS, DECODER_HEADS, FFN, MAX_POSITIONS = 256, 4, 8, 448, 320
GUIDED_HEADS = 2  # cross-attention heads a layer that are told where to look
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def build() -> VisionEncoderDecoderModel:
    """The untrained model; every field as facebook/nougat-base has it, only smaller."""
    encoder = DonutSwinConfig(
        image_size=[HEIGHT, WIDTH], patch_size=PATCH, num_channels=3, embed_dim=EMBED, depths=list(DEPTHS),
        num_heads=list(HEADS), window_size=WINDOW, mlp_ratio=4.0, drop_path_rate=0.0,
    )  # fmt: skip
    # encoder_layers is what MBartConfig calls num_hidden_layers, and Hugging Face's cache goes by it
    decoder = MBartConfig(
        vocab_size=VOCAB_SIZE, d_model=HIDDEN, decoder_layers=LAYERS, encoder_layers=LAYERS, decoder_ffn_dim=FFN,
        encoder_ffn_dim=FFN, decoder_attention_heads=DECODER_HEADS, encoder_attention_heads=DECODER_HEADS,
        max_position_embeddings=MAX_POSITIONS, activation_function="gelu", scale_embedding=True, is_decoder=True,
        add_cross_attention=True, is_encoder_decoder=False, tie_word_embeddings=True, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, bos_token_id=BOS, pad_token_id=PAD, eos_token_id=EOS,
        decoder_start_token_id=BOS, forced_eos_token_id=None,
    )  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id = config.bos_token_id = BOS
    config.pad_token_id, config.eos_token_id = PAD, EOS
    config.tie_word_embeddings = False  # as in facebook/nougat-base: the tie is inside the decoder
    model = VisionEncoderDecoderModel(config)
    generation = model.generation_config
    generation.decoder_start_token_id = generation.bos_token_id = BOS
    generation.pad_token_id, generation.eos_token_id = PAD, EOS
    generation.forced_eos_token_id, generation.max_length = None, MAX_POSITIONS
    _start_as_sinusoids(model.decoder.model.decoder.embed_positions.weight)
    return model


@torch.no_grad()
def _start_as_sinusoids(table: Tensor) -> None:
    """Learned positions that begin as sinusoids: "the token before" is easy to find from the start."""
    position = torch.arange(len(table)).float()[:, None]
    frequency = torch.exp(torch.arange(0, HIDDEN, 2) * (-math.log(10000.0) / HIDDEN))
    table[:, 0::2], table[:, 1::2] = 0.45 * torch.sin(position * frequency), 0.45 * torch.cos(position * frequency)


class Losses(NamedTuple):
    text: Tensor
    accuracy: Tensor
    attention: Tensor
    dense: Tensor
    place: Tensor


def normalize(gray: Tensor) -> Tensor:
    """[B, H, W] uint8 -> [B, 3, H, W] as NougatImageProcessor normalizes"""
    x = gray.float()[:, None] / 255
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def augment(gray: Tensor, strength: float) -> Tensor:
    """Light blur, contrast and noise on the page, not on its padding; then as `normalize`."""
    x = gray.float()[:, None] / 255
    page = (x > 0).float()
    draw = lambda: torch.rand(len(x), 1, 1, 1, device=x.device)  # noqa: E731
    blur = (draw() * 0.9 - 0.5).clamp(min=0) * strength
    x = x + blur * (F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1) - x)
    x = 1 - (1 - x) * (1 - 0.35 * draw() * strength)
    x = (x + torch.randn_like(x) * (draw() ** 2 * 0.06 * strength)).clamp(0, 1) * page
    mean, std = (torch.tensor(v, device=x.device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return (x - mean) / std


def shift_mask(height: int, width: int) -> Tensor:
    """[windows, area, area] of the cyclic shift"""
    region = lambda n: (torch.arange(n) >= n - WINDOW).long() + (torch.arange(n) >= n - WINDOW // 2).long()  # noqa: E731
    ids = region(height)[:, None] * 3 + region(width)[None]
    ids = ids.view(height // WINDOW, WINDOW, width // WINDOW, WINDOW).transpose(1, 2).reshape(-1, WINDOW**2)
    return torch.where(ids[:, None] != ids[:, :, None], -100.0, 0.0)


def swin_block(x: Tensor, grid, heads: int, shift: int, mask: Tensor, index: Tensor, p: dict[str, Tensor]) -> Tensor:
    """One DonutSwinLayer on x [B, rows * columns, C]; `p` its parameters by short name."""
    (h, w), (batch, length, width), area = grid, x.shape, WINDOW**2
    y = F.layer_norm(x, (width,), p["norm1.weight"], p["norm1.bias"], 1e-5).view(batch, h, w, width)
    if torch.is_autocast_enabled(x.device.type):
        y = y.to(torch.get_autocast_dtype(x.device.type))
    y = F.pad(y, (0, 0, 0, -w % WINDOW, 0, -h % WINDOW))
    if shift:
        y = torch.roll(y, (-shift, -shift), (1, 2))
    rows, columns = y.shape[1] // WINDOW, y.shape[2] // WINDOW
    y = y.view(batch, rows, WINDOW, columns, WINDOW, width).transpose(2, 3).reshape(batch, rows * columns, area, width)
    qkv = F.linear(y, torch.cat([p[f"{n}.weight"] for n in "qkv"]), torch.cat([p[f"{n}.bias"] for n in "qkv"]))
    qkv = qkv.view(batch, rows * columns, area, 3, heads, width // heads).permute(3, 0, 1, 4, 2, 5)
    q, k, v = qkv.reshape(3, -1, area, width // heads).unbind(0)
    bias = p["table"][index.view(-1)].view(area, area, heads).permute(2, 0, 1)[None]
    if shift:
        bias = bias + mask[:, None]
    with torch.autocast(x.device.type, enabled=False):  # scores kept in 16 bits: a third of the traffic
        scores = torch.bmm(q * (width // heads) ** -0.5, k.transpose(1, 2)).view(batch, -1, heads, area, area)
        weights = (scores + bias.to(q.dtype)).softmax(-1).view(-1, area, area)
    y = torch.bmm(weights, v).view(batch, rows, columns, heads, WINDOW, WINDOW, -1).permute(0, 1, 4, 2, 5, 3, 6)
    y = y.reshape(batch, rows * WINDOW, columns * WINDOW, width)
    if shift:
        y = torch.roll(y, (shift, shift), (1, 2))
    x = x + F.linear(y[:, :h, :w].reshape(batch, length, width), p["out.weight"], p["out.bias"])
    return x + _mlp(F.layer_norm(x, (width,), p["norm2.weight"], p["norm2.bias"], 1e-5), p)


def _mlp(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    return F.linear(F.gelu(F.linear(x, p["fc1.weight"], p["fc1.bias"])), p["fc2.weight"], p["fc2.bias"])


def decoder_block(x: Tensor, features: Tensor, target: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """One MBartDecoderLayer over whole sequences, and the loss that sends the guided heads to the cells `target`."""
    batch, _, width = x.shape
    split = lambda z: z.view(batch, -1, DECODER_HEADS, width // DECODER_HEADS).transpose(1, 2)  # noqa: E731
    join = lambda z: z.transpose(1, 2).reshape(batch, -1, width)  # noqa: E731
    linear = lambda z, name: F.linear(z, p[f"{name}.weight"], p[f"{name}.bias"])  # noqa: E731
    norm = lambda z, name: F.layer_norm(z, (width,), p[f"{name}.weight"], p[f"{name}.bias"])  # noqa: E731
    y = norm(x, "norm1")
    y = F.scaled_dot_product_attention(*(split(linear(y, n)) for n in ("sq", "sk", "sv")), is_causal=True)
    x = x + linear(join(y), "so")
    q = split(linear(norm(x, "norm2"), "cq"))
    k, v = split(linear(features, "ck")), split(linear(features, "cv"))
    x = x + linear(join(F.scaled_dot_product_attention(q, k, v)), "co")
    x = x + _mlp(norm(x, "norm3"), p)
    scores = torch.matmul(q[:, :GUIDED_HEADS], k[:, :GUIDED_HEADS].transpose(2, 3)) * (width // DECODER_HEADS) ** -0.5
    wanted = target[:, None].expand(-1, GUIDED_HEADS, -1).flatten()
    return x, F.cross_entropy(scores.float().flatten(0, 2), wanted, ignore_index=-1)


class Trainer(nn.Module):
    """The model's parameters with a fast forward, and the helper heads."""

    def __init__(self, model: VisionEncoderDecoderModel, compiled: bool):
        super().__init__()
        self.model = model
        self.dense_head = nn.Linear(HIDDEN, DENSE * VOCAB_SIZE)
        self.place_head = nn.Linear(HIDDEN, ROWS + COLUMNS)
        self.grids = [(HEIGHT // PATCH >> i, WIDTH // PATCH >> i) for i in range(len(DEPTHS))]
        for i, (h, w) in enumerate(self.grids):
            self.register_buffer(f"mask{i}", shift_mask(h + -h % WINDOW, w + -w % WINDOW), persistent=False)
        self.register_buffer("cells", torch.arange(ROWS * COLUMNS), persistent=False)
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.swin_block, self.decoder_block, self.augment = wrap(swin_block), wrap(decoder_block), wrap(augment)
        self.stem, self.heads_of_loss = wrap(self._stem), wrap(self._heads_of_loss)

    def encode(self, pixels: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, cells, HIDDEN]"""
        x = self.stem(pixels)
        for i, stage in enumerate(self.model.encoder.encoder.layers):
            for j, block in enumerate(stage.blocks):
                index = block.attention.self.relative_position_index
                shift, mask = (j % 2) * (WINDOW // 2), getattr(self, f"mask{i}")
                x = self.swin_block(x, self.grids[i], HEADS[i], shift, mask, index, _swin_parameters(block))
            if stage.downsample is not None:
                x = stage.downsample(x, self.grids[i])
        return x

    def forward(self, image: Tensor, tokens: Tensor, cells: Tensor, dense: Tensor, strength: float = 1.0) -> Losses:
        """image [B, H, W] uint8; tokens, cells [B, T]; dense [B, cells, DENSE]"""
        with torch.no_grad():
            pixels = self.augment(image, strength)
        features = self.encode(pixels)
        start = torch.full_like(tokens[:, :1], BOS)
        x = self.embed(torch.cat((start, tokens[:, :-1]), 1))
        # the first layer finds the character just written, the others the next one
        written = torch.cat((torch.full_like(cells[:, :1], -1), cells[:, :-1]), 1)
        attention = 0.0
        for i, layer in enumerate(self.model.decoder.model.decoder.layers):
            x, loss = self.decoder_block(x, features, written if i == 0 else cells, _decoder_parameters(layer))
            attention = attention + loss / LAYERS
        text, accuracy, dense_loss, place = self.heads_of_loss(x, features, tokens, dense)
        return Losses(text, accuracy, attention, dense_loss, place)

    def embed(self, ids: Tensor) -> Tensor:
        decoder = self.model.decoder.model.decoder
        x = F.embedding(ids, decoder.embed_tokens.weight) * math.sqrt(HIDDEN)
        x = x + decoder.embed_positions.weight[2 : 2 + ids.shape[1]]
        return decoder.layernorm_embedding(x)

    def _stem(self, pixels: Tensor) -> Tensor:
        embeddings = self.model.encoder.embeddings
        return embeddings.norm(embeddings.patch_embeddings.projection(pixels).flatten(2).transpose(1, 2))

    def _heads_of_loss(self, x: Tensor, features: Tensor, tokens: Tensor, dense: Tensor):
        decoder = self.model.decoder.model.decoder
        logits = F.linear(decoder.layer_norm(x), decoder.embed_tokens.weight)
        text = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), ignore_index=PAD)
        real = tokens != PAD
        accuracy = ((logits.argmax(-1) == tokens) & real).sum() / real.sum()
        target = dense.flatten().long()
        weight = torch.where(target == PAD, 0.03, 1.0)  # most cells are empty
        found = self.dense_head(features).float().view(-1, VOCAB_SIZE)
        dense_loss = (F.cross_entropy(found, target, reduction="none") * weight).sum() / weight.sum()
        place = self.place_head(features).float()
        rows, columns = ((self.cells // COLUMNS).repeat(len(x)), (self.cells % COLUMNS).repeat(len(x)))
        place_loss = F.cross_entropy(place[..., :ROWS].flatten(0, 1), rows)
        place_loss = place_loss + F.cross_entropy(place[..., ROWS:].flatten(0, 1), columns)
        return text, accuracy, dense_loss, place_loss


def _named(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    return {f"{name}.{kind}": getattr(m, kind) for name, m in modules.items() for kind in ("weight", "bias")}


def _swin_parameters(block: nn.Module) -> dict[str, Tensor]:
    attention = block.attention.self
    modules = {
        "norm1": block.layernorm_before, "norm2": block.layernorm_after, "q": attention.query, "k": attention.key,
        "v": attention.value, "out": block.attention.output.dense, "fc1": block.intermediate.dense,
        "fc2": block.output.dense,
    }  # fmt: skip
    return _named(modules) | {"table": attention.relative_position_bias_table}


def _decoder_parameters(layer: nn.Module) -> dict[str, Tensor]:
    own, cross = layer.self_attn, layer.encoder_attn
    return _named({
        "norm1": layer.self_attn_layer_norm, "norm2": layer.encoder_attn_layer_norm, "norm3": layer.final_layer_norm,
        "fc1": layer.fc1, "fc2": layer.fc2, "sq": own.q_proj, "sk": own.k_proj, "sv": own.v_proj, "so": own.out_proj,
        "cq": cross.q_proj, "ck": cross.k_proj, "cv": cross.v_proj, "co": cross.out_proj,
    })  # fmt: skip


__all__ = ["MAX_TOKENS", "Losses", "Trainer", "augment", "build", "normalize"]
