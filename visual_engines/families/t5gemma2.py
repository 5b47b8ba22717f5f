"""T5Gemma 2: a text, with images in it or not, to text."""

from __future__ import annotations

from typing import Any

from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.shapes import as_it_is
from vlm.registry.images.transforms import Settings, Transform, transformers_class
from vlm.registry.spec import ChatFormat, FamilySpec, Role

BEGIN, END = "<start_of_image>", "<end_of_image>"  # in texts the first of them stands for an image
EMBEDDING = ("embed_tokens.weight", "embed_tokens.eoi_embedding")  # that both sides may share


def image_text(grid: tuple[int, ...] | None) -> str:
    """Returns what stands in a text for an image, as Gemma3Processor has it."""
    return f"\n\n{BEGIN}<image>{END}\n\n"


def _load(name: str, settings: Settings) -> Transform:
    """Returns what transformers' class does with whole images. ValueError where they are to be cut."""
    if settings.get("do_pan_and_scan"):
        raise ValueError("it cuts long images into pieces (do_pan_and_scan), which is not done; set that to false")
    return transformers_class(name, settings)


# scaled to a square, whatever its shape
IMAGES = ImageProcessorSpec("Gemma3ImageProcessor", _load, prepare=as_it_is)


def _side(hidden: int, layers: int, ffn: int, *, heads: int, kv_heads: int, window: int) -> dict[str, Any]:
    return {
        "vocab_size": 262144,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": window,
        "max_position_embeddings": 32768 if heads == 4 else 131072,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }


def _t5gemma2(side: dict[str, Any]) -> dict[str, Any]:
    """Returns a model of Gemma 3's tower, both of whose sides have a shape that Gemma 3 is published in."""
    ids = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
    tower = {"model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
             "num_hidden_layers": 27, "num_attention_heads": 16, "image_size": 896, "patch_size": 14}  # fmt: skip
    encoder = {"text_config": side | ids, "vision_config": tower, "mm_tokens_per_image": 256,
               "boi_token_index": 255999, "eoi_token_index": 256000}  # fmt: skip
    return {"model_type": "t5gemma2", "is_encoder_decoder": True, "image_token_index": 256001, "encoder": encoder,
            "decoder": side | ids, **ids}  # fmt: skip


T5GEMMA2 = FamilySpec(
    name="t5gemma2",
    summary="Text, with images or without, to text: T5Gemma 2 (google/t5gemma-2-*)",
    roles={
        "visual": Role("t5gemma2-vision", weight_prefix="visual."),
        "encoder": Role(
            "t5gemma2-encoder", weight_prefix="model.encoder.",
            shared_tensors=(*(f"model.decoder.{name}" for name in EMBEDDING), "lm_head.out_proj.weight"),
        ),
        "decoder": Role(
            "t5gemma2", weight_prefix="model.decoder.",
            shared_tensors=(*(f"model.encoder.{name}" for name in EMBEDDING), "lm_head.out_proj.weight"),
        ),
    },
    matches=lambda config: config.get("model_type") == "t5gemma2",
    base_prefixes=("model.",),
    renames={
        "model.encoder.vision_tower.": "visual.vision_tower.",
        "model.encoder.multi_modal_projector.": "visual.multi_modal_projector.",
        "model.encoder.text_model.": "model.encoder.",
    },
    inputs=("image", "text"),
    chat_format=ChatFormat(placeholder=BEGIN, image_text=image_text),
    image_processors=(IMAGES,),
    architectures={
        "t5gemma-2-270m-270m": lambda: _t5gemma2(_side(640, 18, 2048, heads=4, kv_heads=1, window=512)),
        "t5gemma-2-1b-1b": lambda: _t5gemma2(_side(1152, 26, 6912, heads=4, kv_heads=1, window=512)),
        "t5gemma-2-4b-4b": lambda: _t5gemma2(_side(2560, 34, 10240, heads=8, kv_heads=4, window=1024)),
    },
)  # fmt: skip
