"""The baseline: transformers' own generate, greedy, with a fixed number of tokens, as its documentation has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app.bench.clock import milliseconds, per_token, repeated


def quiet() -> None:
    """Its progress bars and hints are not this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


class Baseline:
    """A VisionEncoderDecoderModel on the device."""

    def __init__(self, folder: Path, dtype: str, device: torch.device):
        from transformers import VisionEncoderDecoderModel

        quiet()
        model = VisionEncoderDecoderModel.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model, self.device = model.to(device).eval(), device

    @property
    def description(self) -> dict[str, Any]:
        import transformers

        parts = {"encoder": self.model.encoder, "decoder": self.model.decoder}
        attention = {name: part.config._attn_implementation for name, part in parts.items()}
        return {"transformers": transformers.__version__, "mode": "eager generate, greedy", "attention": attention}

    @torch.inference_mode()
    def generate(self, pixel_values: Tensor, new_tokens: int) -> Tensor:
        """[B, C, H, W] -> [B, 1 + new_tokens]"""
        tokens = self.model.generate(
            pixel_values=self._on_device(pixel_values),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
        )
        assert tokens.shape[1] == 1 + new_tokens, tokens.shape
        return tokens

    @torch.inference_mode()
    def encode(self, pixel_values: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, rows, hidden]"""
        return self.model.encoder(self._on_device(pixel_values)).last_hidden_state

    def measure(self, pixel_values: Tensor, new_tokens: int, repeats: int) -> dict[str, Any]:
        """Milliseconds of the encoder, of the first token, and of each further token, for the whole batch."""
        self.generate(pixel_values, min(new_tokens, 8))  # warm-up
        encode = repeated(lambda: self.encode(pixel_values), self.device, repeats)
        first = repeated(lambda: self.generate(pixel_values, 1), self.device, repeats)
        whole = repeated(lambda: self.generate(pixel_values, new_tokens), self.device, repeats)
        return {
            **self.description,
            "batch_size": len(pixel_values),
            "new_tokens": new_tokens,
            "encode_ms": milliseconds(encode),
            "first_token_ms": milliseconds(first),
            "ms_per_token": per_token(whole, first, new_tokens),
            "seconds": {"first_token": first, "whole": whole},
        }

    def _on_device(self, pixel_values: Tensor) -> Tensor:
        return pixel_values.to(self.device, self.model.dtype)


class TextBaseline:
    """An encoder-decoder of texts on the device."""

    def __init__(self, folder: Path, dtype: str, device: torch.device):
        from transformers import AutoModelForSeq2SeqLM

        quiet()
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        model.generation_config = _neutral(model.generation_config)
        self.model, self.device = model.to(device).eval(), device

    @property
    def description(self) -> dict[str, Any]:
        import transformers

        attention = self.model.config._attn_implementation
        return {"transformers": transformers.__version__, "mode": "eager generate", "attention": attention}

    @torch.inference_mode()
    def generate(self, input_ids: Tensor, new_tokens: int, num_beams: int) -> Tensor:
        """[B, T] -> [B, 1 + new_tokens]"""
        tokens = self.model.generate(
            input_ids, attention_mask=torch.ones_like(input_ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
            num_beams=num_beams, do_sample=False,
        )  # fmt: skip
        assert tokens.shape[1] == 1 + new_tokens, tokens.shape
        return tokens


def _neutral(config: Any) -> Any:
    """Special ids alone: without a model's own penalties, lengths and forced tokens."""
    from transformers import GenerationConfig

    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return GenerationConfig(**{name: getattr(config, name) for name in names})
