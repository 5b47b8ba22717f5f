"""Tiny random Hugging Face models, and their weights pulled apart so that every part matters."""

from __future__ import annotations

import torch
from transformers import DonutSwinConfig, MBartConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

END_SCALE = 1.4


def nougat_config(
    *,
    image_size=(64, 48),
    window=4,
    depths=(2, 2),
    heads=(2, 4),
    embed_dim=16,
    patch=4,
    layers=2,
    decoder_heads=4,
    ffn=48,
    vocab=60,
    positions=96,
    tied=True,
    scale_embedding=True,
    activation="gelu",
) -> VisionEncoderDecoderConfig:
    width = embed_dim * 2 ** (len(depths) - 1)
    encoder = DonutSwinConfig(
        image_size=list(image_size), patch_size=patch, num_channels=3, embed_dim=embed_dim, depths=list(depths),
        num_heads=list(heads), window_size=window,
    )  # fmt: skip
    decoder = MBartConfig(
        vocab_size=vocab, d_model=width, decoder_layers=layers, encoder_layers=layers, decoder_ffn_dim=ffn,
        encoder_ffn_dim=ffn, decoder_attention_heads=decoder_heads, encoder_attention_heads=decoder_heads,
        max_position_embeddings=positions, activation_function=activation, scale_embedding=scale_embedding,
        is_decoder=True, add_cross_attention=True, is_encoder_decoder=False, tie_word_embeddings=tied,
        decoder_start_token_id=0, forced_eos_token_id=None,
    )  # fmt: skip
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id, config.bos_token_id = 0, 1, 2, 0
    config.tie_word_embeddings = False
    return config


def nougat(seed: int = 0, spread: float = 0.35, **options) -> VisionEncoderDecoderModel:
    """Random, in float32 and evaluation mode. Its generations vary with the image and reach the end token at times."""
    torch.manual_seed(seed)
    model = VisionEncoderDecoderModel(nougat_config(**options)).eval()
    generator = torch.Generator().manual_seed(seed + 1)
    for parameter in model.parameters():
        # initial weights are so small that every token would look alike
        scale = spread if parameter.ndim >= 2 else spread / 2
        parameter.data += torch.randn(parameter.shape, generator=generator) * scale
    # a longer row is the likeliest token more often
    model.decoder.get_output_embeddings().weight.data[2] *= END_SCALE
    generation = model.generation_config
    generation.decoder_start_token_id, generation.pad_token_id = 0, 1
    generation.bos_token_id, generation.eos_token_id, generation.forced_eos_token_id = 0, 2, None
    return model


def images(model: VisionEncoderDecoderModel, count: int, seed: int = 0) -> torch.Tensor:
    """[count, 3, H, W]"""
    size = model.config.encoder.image_size
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def hf_tokens(model, pixel_values, max_new_tokens: int, **options) -> list[list[int]]:
    """Greedy tokens of each image alone, start token removed, up to and with the end token."""
    found = []
    for image in pixel_values:
        out = model.generate(
            pixel_values=image[None], max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, **options
        )
        ids = out[0, 1:].tolist()
        found.append(ids[: ids.index(2) + 1] if 2 in ids else ids)
    return found
