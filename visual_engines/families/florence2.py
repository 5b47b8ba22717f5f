"""Florence-2: a task in words and an image to text, boxes, polygons and regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from visual_engines.answers.florence2_answers import answer
from visual_engines.families.florence2_layout import is_remote
from vlm.artifacts.hugging_face.generation_config import generation_defaults, standing_alone
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.shapes import as_it_is
from vlm.registry.images.transforms import Settings
from vlm.registry.spec import ChatFormat, FamilySpec, Role
from vlm.registry.tasks import QUESTION, PromptTasks
from vlm.registry.tokenizer_rules import TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# task -> what the model reads, as Florence2Processor has it
TASKS = {
    "CAPTION": "What does the image describe?",
    "DETAILED_CAPTION": "Describe in detail what is shown in the image.",
    "MORE_DETAILED_CAPTION": "Describe with a paragraph what is shown in the image.",
    "OCR": "What is the text in the image?",
    "OCR_WITH_REGION": "What is the text in the image, with regions?",
    "OD": "Locate the objects with category name in the image.",
    "DENSE_REGION_CAPTION": "Locate the objects in the image, with their descriptions.",
    "REGION_PROPOSAL": "Locate the region proposals in the image.",
    "CAPTION_TO_PHRASE_GROUNDING": f"Locate the phrases in the caption: {QUESTION}",
    "OPEN_VOCABULARY_DETECTION": f"Locate {QUESTION} in the image.",
    "REFERRING_EXPRESSION_SEGMENTATION": f"Locate {QUESTION} in the image with mask",
    "REGION_TO_SEGMENTATION": f"What is the polygon mask of region {QUESTION}",
    "REGION_TO_CATEGORY": f"What is the region {QUESTION}?",
    "REGION_TO_DESCRIPTION": f"What does the region {QUESTION} describe?",
    "REGION_TO_OCR": f"What text is in the region {QUESTION}?",
}
# what Microsoft's processor adds to BART's vocabulary when it is loaded, the spelling included
ADDED_TOKENS = (
    "<od>", "</od>", "<ocr>", "</ocr>", *(f"<loc_{bin}>" for bin in range(1000)), "<cap>", "</cap>", "<ncap>",
    "</ncap>", "<dcap>", "</dcap>", "<grounding>", "</grounding>", "<seg>", "</seg>", "<sep>", "<region_cap>",
    "</region_cap>", "<region_to_desciption>", "</region_to_desciption>", "<proposal>", "</proposal>", "<poly>",
    "</poly>", "<and>",
)  # fmt: skip
HIDDEN = ("<s>", "</s>", "<pad>")  # all other special tokens say what a text is about


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return TokenizerRules(shown=frozenset(added.difference(HIDDEN)))


def _generation(config: Mapping[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the language model's part of a configuration: Microsoft's code generates with that part
    alone, which reads no generation_config.json."""
    return standing_alone(generation_defaults(dict(config))) if is_remote(config) else settings


def _settings(image_size: tuple[int, int]) -> dict[str, Any]:
    size = {"height": image_size[0], "width": image_size[1]}
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    return {"size": size, "do_center_crop": False, "resample": 3, "image_mean": mean, "image_std": std}


def _unknown(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns None: pictures are not drawn smaller, since boxes are told in their pixels."""
    return None


# scaled to a square, whatever its shape; boxes are told in the picture's own pixels
IMAGES = ImageProcessorSpec("CLIPImageProcessor", default_settings=_settings, prepare=as_it_is, scale=_unknown)


def _florence(embed_dim: int, width: int, layers: int) -> dict[str, Any]:
    """Returns the published shapes of florence-community/Florence-2-*, and so of microsoft/Florence-2-*."""
    heads = [embed_dim // 32 * 2**stage for stage in range(4)]
    text = {f"{side}_{name}": n for side in ("encoder", "decoder")
            for name, n in (("layers", layers), ("ffn_dim", 4 * width), ("attention_heads", width // 64))}  # fmt: skip
    return {
        "model_type": "florence2",
        "image_token_id": 51289,
        "is_encoder_decoder": True,
        "vision_config": {
            "model_type": "florence_vision",
            "embed_dim": [embed_dim * 2**stage for stage in range(4)],
            "num_heads": heads,
            "num_groups": heads,
            "depths": [1, 1, 9, 1],
            "projection_dim": width,
        },
        "text_config": text
        | {
            "model_type": "bart",
            "vocab_size": 51328,
            "d_model": width,
            "max_position_embeddings": 1024,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 2,
        },
    }


LANGUAGE = "language_model."
FLORENCE2 = FamilySpec(
    name="florence2",
    summary="Images to captions, boxes, polygons, texts: Florence-2 (microsoft/Florence-2-*, florence-community/*)",
    roles={
        "visual": Role("florence2-vision"),
        "encoder": Role(
            "bart-encoder", config_key="text_config", weight_prefix=f"{LANGUAGE}model.encoder.",
            shared_prefix=LANGUAGE,
            shared_tensors=tuple(
                f"{LANGUAGE}{x}.weight" for x in ("model.shared", "model.decoder.embed_tokens", "lm_head")
            ),
        ),
        "decoder": Role(
            "bart", config_key="text_config", weight_prefix=LANGUAGE,
            shared_tensors=(f"{LANGUAGE}model.encoder.embed_tokens.weight",),
        ),
    },
    matches=lambda config: config.get("model_type") == "florence2",
    base_prefixes=("model.", f"{LANGUAGE}model."),  # the latter of Microsoft's own
    renames={
        "model.language_model.": f"{LANGUAGE}model.",
        "lm_head.": f"{LANGUAGE}lm_head.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
    },
    inputs=("image", "text"),
    # each prompt is by itself: of a conversation the last message is read
    chat_format=ChatFormat(images="first", template="{{ messages[-1]['content'] }}"),
    image_processors=(IMAGES,),
    tokenizer_rules=tokenizer_rules,
    added_tokens=ADDED_TOKENS,
    generation_settings=_generation,
    prompt_tasks=PromptTasks(TASKS, default="CAPTION", answer=answer),
    page_prompts={"": "<OCR>"},  # whatever the model is called
    architectures={
        "florence-2-base": lambda: _florence(128, 768, 6),
        "florence-2-large": lambda: _florence(256, 1024, 12),
    },
)  # fmt: skip
