"""Models that read images, that people have, and that are not run here: how each is known and what is told of it.

A light module: no torch.
"""

from __future__ import annotations

from typing import Any

from visual_engines.families.lighton_ocr import is_lighton
from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.errors import cut, shown
from vlm.registry.unsupported import Unsupported, describe_adapter

ASK = "to ask about images, give a LLaVA-1.5, BLIP-2 or VILA-1.5 model (--model llava-hf/llava-1.5-7b-hf)"
READ = "to read pages, give a Nougat model (--model facebook/nougat-base)"
LINES = "to read lines of text, give a TrOCR model of a ViT or DeiT (--model microsoft/trocr-base-printed)"
CAPTION = "to describe images, give a BLIP-2 model (--model Salesforce/blip2-opt-2.7b)"

# model_type -> what it is called, and what comes nearest here
MODEL_TYPES = {
    "aria": ("Aria", ASK),
    "aya_vision": ("Aya Vision", ASK),
    "blip": ("BLIP, the first", CAPTION),
    "chameleon": ("Chameleon", ASK),
    "deepseek_ocr2": ("DeepSeek-OCR", READ),
    "deepseek_vl": ("DeepSeek-VL", ASK),
    "deepseek_vl_v2": ("DeepSeek-VL2 or DeepSeek-OCR", READ),
    "donut-swin": ("the encoder of a Donut or Nougat model alone", READ),
    "dots_ocr": ("dots.ocr", READ),
    "fuyu": ("Fuyu", ASK),
    "gemma3": ("Gemma 3 with images", ASK),
    "gemma3n": ("Gemma 3n", ASK),
    "git": ("GIT", CAPTION),
    "glm4v": ("GLM-4V", ASK),
    "glm_ocr": ("GLM-OCR", READ),
    "got_ocr2": ("GOT-OCR 2.0", READ),
    "GOT": ("GOT-OCR 2.0", READ),
    "granite_docling": ("Granite-Docling", READ),
    "idefics": ("IDEFICS", ASK),
    "idefics2": ("Idefics2", ASK),
    "instructblip": ("InstructBLIP", "its nearest kin here is BLIP-2 (--model Salesforce/blip2-flan-t5-xl)"),
    "instructblipvideo": ("InstructBLIP for videos", ASK),
    "internvl": ("InternVL", ASK),
    "internvl_chat": ("InternVL", ASK),
    "janus": ("Janus", ASK),
    "kosmos-2": ("Kosmos-2", ASK),
    "kosmos-2.5": ("Kosmos-2.5", READ),
    "lfm2_vl": ("LFM2-VL", ASK),
    "llava_mpt": ("LLaVA over MPT", ASK),
    "llava_next": ("LLaVA-1.6 (LLaVA-NeXT), which cuts an image into tiles", ASK),
    "llava_next_video": ("LLaVA-NeXT-Video", ASK),
    "llava_onevision": ("LLaVA-OneVision", ASK),
    "llava_qwen": ("LLaVA over Qwen", ASK),
    "llava_qwen2": ("LLaVA over Qwen2", ASK),
    "mineru2_qwen": ("MinerU 2.0", READ),
    "minicpmv": ("MiniCPM-V", ASK),
    "mllama": ("Llama 3.2 Vision", ASK),
    "molmo": ("Molmo", ASK),
    "molmo2": ("Molmo 2", ASK),
    "moondream1": ("Moondream", ASK),
    "ovis2": ("Ovis2", ASK),
    "paddleocr_vl": ("PaddleOCR-VL", READ),
    "paligemma": ("PaliGemma", ASK),
    "phi3_v": ("Phi-3 Vision", ASK),
    "pp_formulanet": ("PP-FormulaNet", READ),
    "qwen3_vl": ("Qwen3-VL", ASK),
    "qwen3_vl_moe": ("Qwen3-VL", ASK),
    "udop": ("UDOP", READ),
    "video_llava": ("Video-LLaVA", ASK),
    "vipllava": ("ViP-LLaVA, whose features come from five layers through another projector", ASK),
}  # fmt: skip
TOWERS = ("blip_2_vision_model", "clip", "clip_vision_model", "siglip", "siglip2", "siglip_vision_model")
READERS = ("vit", "deit")  # encoders that TrOCR is published with


def says(model: ModelFiles) -> str | None:
    """Returns what to tell of a model that is known and not run here; None for any other."""
    kind = model.config.get("model_type")
    if kind == "mistral3":
        return None if is_lighton(model.config) else _words(kind, "Mistral Small 3.1 with images", ASK)
    if kind in TOWERS and model.path is not None:  # on the Hub it may be a LLaVA's
        return _words(kind, "a visual tower alone, which writes no text", ASK)
    if kind in ("vision-encoder-decoder", "nougat"):
        return _encoder_decoder(model)
    if isinstance(kind, str) and kind in MODEL_TYPES:
        name, instead = MODEL_TYPES[kind]
        return _words(kind, name, instead)
    return None


def _is_lora(model: ModelFiles) -> bool:
    """Says whether it is LLaVA's own LoRA, which has its projector beside the adapter."""
    return {"adapter_config.json", "non_lora_trainables.bin"} <= model.names


def _lora(model: ModelFiles) -> str:
    base = cut(model.read("adapter_config.json").get("base_model_name_or_path") or "MODEL")
    what = f"{describe_adapter(model)}, with a projector beside it"
    return f"{what}; merge it (vlm convert {base} -o OUT --merge-lora {model.name}) and give what that writes"


UNSUPPORTED = (
    Unsupported(_is_lora, _lora),
    Unsupported(lambda model: says(model) is not None, lambda model: says(model) or "", by_config=True),
)


def _words(kind: Any, name: str, instead: str) -> str:
    return f"is {name} (model_type {shown(kind)}), which is no family here; {instead}"


def _encoder_decoder(model: ModelFiles) -> str | None:
    """Tells texify from Nougat and Donut, which have its model_type, encoder and decoder, by the processor. TrOCR has a
    decoder of its own."""
    kind, parts = model.config["model_type"], [model.config.get(part) for part in ("encoder", "decoder")]
    parts = [part for part in parts if isinstance(part, dict)]
    if len(parts) != 2:
        return None
    encoder, decoder = (str(part.get("model_type")) for part in parts)
    if (encoder, decoder) != ("donut-swin", "mbart"):
        if decoder == "trocr" and encoder in READERS:
            return None
        instead = LINES if decoder == "trocr" else CAPTION
        return _words(kind, f"an encoder-decoder of {cut(encoder)} and {cut(decoder)}", instead)
    classes = processor_names(model) or {str(model.config.get("_name_or_path", ""))}
    if any("VariableDonut" in name or "texify" in name for name in classes):
        return _words(kind, "texify, whose image processor is code of its own", READ)
    return None


def processor_names(model: ModelFiles) -> set[str]:
    """Returns the classes that a folder's processor and tokenizer files name."""
    classes: set[str] = set()
    for file in ("preprocessor_config.json", "processor_config.json", "tokenizer_config.json"):
        settings = model.read(file)
        for part in (settings, settings.get("image_processor")):
            if isinstance(part, dict):
                keys = ("image_processor_type", "feature_extractor_type", "processor_class", "tokenizer_class")
                classes |= {str(part[key]) for key in keys if part.get(key)}
    return classes
