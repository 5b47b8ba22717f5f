"""Models of random weights in Hugging Face's own initialization, saved for both systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vlm_app.reference.huggingface import WITH_IMAGES, quiet
from vlm_app.reference.vila import Vila

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def has_class(hf: dict[str, Any]) -> bool:
    """Says whether there is anything of transformers that could be measured."""
    from transformers import CONFIG_MAPPING

    return hf["model_type"] == "vila" or hf["model_type"] in CONFIG_MAPPING


def save_random(hf: dict[str, Any], folder: Path, seed: int, dtype: torch.dtype, device: torch.device) -> None:
    """Saves a model of a Hugging Face configuration (or this program's of VILA)."""
    quiet()
    torch.manual_seed(seed)
    model = Vila.random(hf, dtype, device) if hf["model_type"] == "vila" else random_model(hf, dtype, device)
    model.save_pretrained(folder)


def random_model(hf: dict[str, Any], dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Makes a model, initialized on the device, where billions of draws take no time, and in its type from the
    start."""
    import transformers as t

    kind = hf["model_type"]
    with device:
        if kind == "vision-encoder-decoder":
            model: Any = t.VisionEncoderDecoderModel(t.VisionEncoderDecoderConfig.from_dict(hf))
            return model.to(dtype)
        config = t.AutoConfig.for_model(**hf)
        if kind in WITH_IMAGES:
            model = getattr(t, WITH_IMAGES[kind])._from_config(config, dtype=dtype)
        else:
            auto = t.AutoModelForSeq2SeqLM if config.is_encoder_decoder else t.AutoModelForCausalLM
            model = auto.from_config(config, dtype=dtype)
    _untie(model.language_model if kind == "blip-2" else model, hf.get("text_config") or hf)
    return model


def _untie(model: PreTrainedModel, hf: dict[str, Any]) -> None:
    """Unties the head: transformers 5 ties what the published checkpoints of T5 keep apart."""
    if model.config.is_encoder_decoder and hf.get("tie_word_embeddings") is False:
        head: Any = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(torch.randn_like(head.weight) * 0.02)
