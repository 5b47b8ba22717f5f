"""Donut: images of documents to structured fields, or answers to questions about them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from visual_engines.answers.donut_json import to_json
from visual_engines.families.nougat import ENCODER, TOKENS, decoder_shape, is_swin_and_mbart
from vlm.registry.images.processor import ImageProcessorSpec
from vlm.registry.images.transforms import Settings
from vlm.registry.spec import FamilySpec, Role
from vlm.registry.tasks import QUESTION, TaskPrompts
from vlm.registry.tokenizer_rules import TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROCESSOR = "DonutImageProcessor"
OPENING = re.compile(r"<s_(.+)>")
HIDDEN = ("<s>", "</s>", "<pad>")  # all other special tokens are the structure of a text
PRETRAINING = ("iitcdip", "synthdog")  # tasks that every tuned model still names
DIALOGUE = ("<s_question>", "</s_question>", "<s_answer>")


def is_donut(config: Mapping[str, Any]) -> bool:
    """Tells Donut from Nougat, whose networks are the same, by the image processor, or by what it was made from."""
    if not is_swin_and_mbart(config):
        return False
    kind = str(config.get("image_processor_type") or "")
    return kind.startswith("Donut") or (not kind and "donut" in str(config.get("_name_or_path")))


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns the tasks that the tokenizer shows: of a field there is an end, too. One that the model was tuned for is
    the usual one, where there are no others."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    names = sorted(match[1] for match in map(OPENING.fullmatch, added) if match)
    tasks = [name for name in names if f"</s_{name}>" not in added]
    tuned = [name for name in tasks if name not in PRETRAINING]
    asks = added.issuperset(DIALOGUE)
    prompts = {name: _prompt(name, asks and name in tuned and (len(tuned) == 1 or "vqa" in name)) for name in tasks}
    default = tuned[0] if len(tuned) == 1 else None
    return TokenizerRules(tasks=TaskPrompts(prompts, default), shown=frozenset(added.difference(HIDDEN)))


def _prompt(task: str, asks: bool) -> str:
    question = f"<s_question>{QUESTION}</s_question><s_answer>" if asks else ""
    return f"<s_{task}>{question}"


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings the shorter side to the frame's; the longer one may be scaled further down."""
    frame = settings.get("size")
    sides = list(frame.values()) if isinstance(frame, Mapping) else frame
    return min(sides) / min(size) if settings.get("do_resize", True) and sides else None


def _donut(vocab_size: int, image_size: tuple[int, int], max_positions: int) -> dict[str, Any]:
    """Returns the published shapes of naver-clova-ix/donut-*."""
    return {
        "model_type": "vision-encoder-decoder",
        "image_processor_type": PROCESSOR,
        **TOKENS,
        "tie_word_embeddings": False,
        "encoder": ENCODER | {"image_size": list(image_size), "window_size": 10},
        "decoder": decoder_shape(4, max_positions) | {"vocab_size": vocab_size},
    }


DONUT = FamilySpec(
    name="donut",
    summary="Document images to fields or answers, as JSON: Swin encoder, mBART decoder (naver-clova-ix/donut-*)",
    roles={
        "visual": Role("donut-swin", config_key="encoder", weight_prefix="encoder."),
        "decoder": Role("bart", config_key="decoder", weight_prefix="decoder."),
    },
    matches=is_donut,
    inputs=("image",),
    image_processors=(ImageProcessorSpec(PROCESSOR, scale=_scale),),
    tokenizer_rules=tokenizer_rules,
    postprocess=to_json,
    reads_prompt=True,
    architectures={
        "donut-base": lambda: _donut(57525, (2560, 1920), 1536),
        "donut-base-cord-v2": lambda: _donut(57580, (1280, 960), 768),
    },
)
