"""The baseline: transformers' own generate, greedy, with a fixed number of tokens, as its documentation has it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vlm_app.bench.timing.clock import Turns, milliseconds, per_token, turns
from vlm_app.reference.huggingface import image_inputs, model_class, quiet
from vlm_app.reference.vila import Vila

if TYPE_CHECKING:
    from vlm.processing.media.image_processor import ImageProcessor
    from vlm_app.bench.systems.inputs import Prompts


class Baseline:
    """An encoder of images and a decoder on the device."""

    def __init__(self, folder: Path, dtype: str, device: torch.device):

        quiet()
        # its own types know neither the parts that it has, nor that it generates
        model: Any = model_class(folder).from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model, self.device = model.to(device).eval(), device

    @property
    def description(self) -> dict[str, Any]:
        parts = {"encoder": self.model.encoder, "decoder": self.model.decoder}
        attention = {name: part.config._attn_implementation for name, part in parts.items()}
        return _described(attention, "eager generate, greedy")

    @torch.inference_mode()
    def generate(self, pixel_values: Tensor, new_tokens: int) -> Tensor:
        """Maps [B, C, H, W] -> [B, 1 + new_tokens]"""
        tokens = self.model.generate(
            **self._inputs(pixel_values),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,  # a configuration of Pix2Struct's says no
        )
        assert tokens.shape[1] == 1 + new_tokens, tokens.shape
        return tokens

    @torch.inference_mode()
    def encode(self, pixel_values: Tensor) -> Tensor:
        """Maps [B, C, H, W] -> [B, rows, hidden]"""
        return self.model.encoder(**self._inputs(pixel_values)).last_hidden_state

    def measure(self, pixel_values: Tensor, new_tokens: int, repeats: int) -> Turns[dict[str, Any]]:
        """Milliseconds of the encoder, of the first token, and of each further token, for the whole batch."""
        self.generate(pixel_values, min(new_tokens, 8))  # warm-up
        calls = [
            lambda: self.encode(pixel_values),
            lambda: self.generate(pixel_values, 1),
            lambda: self.generate(pixel_values, new_tokens),
        ]
        encode, first, whole = yield from turns(calls, self.device, repeats)
        return {
            **self.description,
            "batch_size": len(pixel_values),
            "new_tokens": new_tokens,
            "encode_ms": milliseconds(encode),
            "first_token_ms": milliseconds(first),
            "ms_per_token": per_token(whole, first, new_tokens),
            "seconds": {"first_token": first, "whole": whole},
        }

    def _inputs(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return image_inputs(self.model, pixel_values.to(self.device, self.model.dtype))


class TextBaseline:
    """An encoder-decoder of texts on the device."""

    def __init__(self, folder: Path, dtype: str, device: torch.device):
        from transformers import AutoModelForSeq2SeqLM

        quiet()
        model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        model.generation_config = _neutral(model.generation_config)
        self.model, self.device = model.to(device).eval(), device

    @property
    def description(self) -> dict[str, Any]:
        return _described(self.model.config._attn_implementation, "eager generate")

    @torch.inference_mode()
    def generate(
        self, texts: list[list[int]], new_tokens: int, num_beams: int, settings: dict[str, Any] | None = None
    ) -> Tensor:
        """Maps [B][T] -> [B, 1 + new_tokens]; shorter texts are padded, as its documentation has it"""
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        ids = pad_sequence([torch.tensor(text) for text in texts], batch_first=True).to(self.device)
        mask = (torch.arange(ids.shape[1], device=self.device) < lengths[:, None]).long()
        tokens = self.model.generate(
            ids, attention_mask=mask, max_new_tokens=new_tokens, min_new_tokens=new_tokens, num_beams=num_beams,
            **_choice(settings or {}),
        )  # fmt: skip
        assert tokens.shape[1] == 1 + new_tokens, tokens.shape
        return tokens


class PromptBaseline:
    """A decoder, or a vision-language model, on the device. `image_rows`: of all images of a prompt; `processor`: of
    its pictures."""

    def __init__(
        self,
        folder: Path,
        dtype: str,
        device: torch.device,
        image_rows: int = 0,
        processor: ImageProcessor | None = None,
    ):
        quiet()
        self.processor = processor
        self.model = _prompt_model(folder, getattr(torch, dtype)).to(device).eval()
        for part in self.model.modules():
            if getattr(part, "generation_config", None) is not None:
                part.generation_config = _neutral(part.generation_config)
        self.device, self.image_rows = device, image_rows

    @property
    def description(self) -> dict[str, Any]:
        return _described(self.model.config._attn_implementation, "eager generate, greedy")

    @torch.inference_mode()
    def generate(self, prompts: Prompts, new_tokens: int, settings: dict[str, Any] | None = None) -> Tensor:
        """Returns the new tokens [B, new_tokens]."""
        prompts = self.processed(prompts)
        model, inputs = self.model, {"input_ids": self._ids(prompts)}
        if prompts.pixel_values is not None:
            inputs |= image_inputs(model, self._pixels(prompts), inputs["input_ids"])
        elif hasattr(model, "qformer"):  # BLIP-2 as a whole takes no text alone
            model = model.language_model
        mask = torch.ones_like(inputs["input_ids"])
        tokens = model.generate(
            **inputs, attention_mask=mask, max_new_tokens=new_tokens, min_new_tokens=new_tokens, num_beams=1,
            **_choice(settings or {}),
        )  # fmt: skip
        # a prompt, a start token or nothing stands before
        assert tokens.shape[1] - new_tokens in (0, 1, mask.shape[1]), tokens.shape
        return tokens[:, -new_tokens:]

    def processed(self, prompts: Prompts) -> Prompts:
        """Returns prompts with pixel values in the place of pictures."""
        if not prompts.pictures:
            return prompts
        assert self.processor is not None
        pixels = torch.stack([self.processor(images) for images in prompts.pictures])
        return dataclasses.replace(prompts, pixel_values=pixels, pictures=())

    @torch.inference_mode()
    def encode(self, prompts: Prompts) -> Any:
        """Encodes the images alone, whose pixel values are there."""
        return self.model.get_image_features(**image_inputs(self.model, self._pixels(prompts)))

    def _ids(self, prompts: Prompts) -> Tensor:
        """Returns the prompts with places for images' rows: [B, rows + tokens in]."""
        config, texts = self.model.config, prompts.texts.to(self.device)
        placeholder = getattr(config, "image_token_id", None) or getattr(config, "image_token_index", 0)
        return torch.cat((texts.new_full((len(texts), self.image_rows), placeholder), texts), dim=1)

    def _pixels(self, prompts: Prompts) -> Tensor:
        """Returns the pixels of all images: [B * images, C, H, W]."""
        assert prompts.pixel_values is not None
        return prompts.pixel_values.flatten(0, 1).to(self.device, self.model.dtype)


def _prompt_model(folder: Path, dtype: torch.dtype) -> Any:
    kind: Any = Vila if (folder / "llm").is_dir() else model_class(folder)
    return kind.from_pretrained(folder, dtype=dtype)


def _choice(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns how a token is chosen, as transformers is told: it draws from the 50 likeliest unless it is told."""
    return (
        {"do_sample": True, "top_k": 0, **settings} if settings.get("temperature") else {"do_sample": False, **settings}
    )


def _described(attention: Any, mode: str) -> dict[str, Any]:
    import transformers

    return {"transformers": transformers.__version__, "mode": mode, "attention": attention}


def _neutral(config: Any) -> Any:
    """Keeps the special ids alone: leaves out a model's own penalties, lengths and forced tokens."""
    from transformers import GenerationConfig

    names = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    return GenerationConfig(**{name: getattr(config, name) for name in names})
