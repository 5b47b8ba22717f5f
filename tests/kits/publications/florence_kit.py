"""Florence-2 as it is published, in small: transformers' layout, and that of the code which Microsoft publishes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    CLIPImageProcessor,
    Florence2Config,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    PreTrainedTokenizerFast,
)

from tests.kits.models import tiny
from tests.kits.publications.published_kit import facts
from visual_engines.answers.florence2_answers import NAMELESS
from visual_engines.families.florence2 import ADDED_TOKENS

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
NAMES = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
VOCAB = len(SPECIAL) + 256 + 1 + len(ADDED_TOKENS) + 1
SETTINGS = {"size": tiny.FLORENCE_SIZE, "do_center_crop": False, "do_resize": True, "resample": 3,
            "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}  # fmt: skip
# what florence-community's processor_config.json has, but for the order of its words
KINDS = ("ocr", "pure_text", "description_with_bboxes", "description_with_polygons", "polygons", "bboxes",
         "description_with_bboxes_or_polygons")  # fmt: skip
ANSWERS = {**{kind: {} for kind in KINDS}, "phrase_grounding": {"banned_grounding_tokens": sorted(NAMELESS)}}


def bart_tokenizer() -> Tokenizer:
    """Returns BART's, whose words are bytes."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "<mask>"]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    tokenizer.add_special_tokens([*SPECIAL, "<mask>"])
    return tokenizer


def processor(images: Any = None, rows: int = 21) -> Florence2Processor:
    """Returns transformers', of the same words as Microsoft's; of pictures that become so many rows."""
    fast = bart_tokenizer()
    fast.add_special_tokens([*ADDED_TOKENS, "<image>"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast, **NAMES, extra_special_tokens={"image_token": "<image>"}
    )  # fmt: skip
    images = images or CLIPImageProcessor(**SETTINGS)
    images.image_seq_length = rows
    return Florence2Processor(images, tokenizer, post_processor_config=ANSWERS)


def florence2(**options: Any) -> Any:
    """Returns a model of these words, which writes boxes mostly."""
    text = {"vocab_size": VOCAB} | options.pop("text", {})
    return tiny.florence2(text=text, image_token_id=VOCAB - 1, **options)


def write(model: Any, folder: Path, *, remote: bool) -> Florence2Processor:
    """Saves a model and its processor in one of the two layouts, and returns transformers' processor."""
    theirs = processor()
    if remote:
        write_remote(model, folder)
        write_words(folder)
        settings = SETTINGS | {"image_processor_type": "CLIPImageProcessor", "image_seq_length": 577}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    else:
        model.save_pretrained(folder)
        theirs.save_pretrained(folder)
    return theirs


def write_remote(model: Any, folder: Path, config: dict[str, Any] | None = None) -> None:
    """Saves a model's configuration and tensors as Microsoft's code names them. `config`: one of Microsoft's that it
    was made of."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config or remote_config(model.config.to_dict())
    (folder / "config.json").write_text(json.dumps(config))
    dtype = getattr(torch, config.get("torch_dtype", "float32"))
    tensors = {remote_name(name): tensor.to(dtype, copy=True) for name, tensor in model.state_dict().items()}
    tensors["image_projection"] = tensors["image_projection"].T.contiguous()
    tensors["language_model.final_logits_bias"] = torch.zeros(1, model.config.text_config.vocab_size)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def remote_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns transformers' configuration under Microsoft's keys, whose defaults are others."""
    vision, text = dict(config["vision_config"]), dict(config["text_config"])
    own = ("patch_size", "patch_stride", "patch_padding", "patch_prenorm", "num_heads", "num_groups", "depths",
           "window_size", "projection_dim")  # fmt: skip
    vision = {key: vision[key] for key in own} | {
        "model_type": "davit",
        "dim_embed": vision["embed_dim"],
        "visual_temporal_embedding": {"type": "COSINE", "max_temporal_embeddings": vision["max_temporal_embeddings"]},
        "image_pos_embed": {"type": "learned_abs_2d", "max_pos_embeddings": vision["max_position_embeddings"]},
        "image_feature_source": ["spatial_avg_pool", "temporal_avg_pool"],
    }
    text = {key: value for key, value in text.items() if key not in ("model_type", "architectures")}
    outer = {"model_type": "florence2", "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
             "is_encoder_decoder": True, "projection_dim": vision["projection_dim"]}  # fmt: skip
    return outer | {"vision_config": vision, "text_config": text}


RENAMED = (
    (r"model\.language_model\.", "language_model.model."),
    (r"lm_head\.", "language_model.lm_head."),
    (r"model\.vision_tower\.", "vision_tower."),
    (r"model\.multi_modal_projector\.image_projection\.weight", "image_projection"),
    (r"model\.multi_modal_projector\.image_position_embed\.", "image_pos_embed."),
    (r"model\.multi_modal_projector\.", ""),
)
WITHIN = (
    (r"(convs\.\d+)\.conv\.", r"\1.proj."),
    (r"_block\.(conv\d)\.", r"_block.\1.fn.dw."),
    (r"_attn\.(qkv|proj)\.", r"_attn.fn.\1."),
    (r"ffn\.(fc\d)\.", r"ffn.fn.net.\1."),
    (r"spatial_block\.norm1\.", "spatial_block.window_attn.norm."),
    (r"channel_block\.norm1\.", "channel_block.channel_attn.norm."),
    (r"_block\.norm2\.", "_block.ffn.norm."),
)


def remote_name(name: str) -> str:
    """Returns what Microsoft's code calls a tensor of transformers' class."""
    for old, new in RENAMED:
        if (found := re.sub(f"^{old}", new, name)) != name:
            name = found
            break
    if name.startswith("vision_tower."):
        for old, new in WITHIN:
            name = re.sub(old, new, name)
    return name


TEXT = {"vocab_size": VOCAB, "d_model": 32, "num_hidden_layers": 2} | {
    f"{side}_{name}": n for side in ("encoder", "decoder")
    for name, n in (("layers", 2), ("ffn_dim", 48), ("attention_heads", 4))
}  # fmt: skip
VISION = {"dim_embed": [4, 8, 8, 16], "num_heads": [1, 2, 2, 4], "num_groups": [1, 2, 2, 4], "projection_dim": 32}
SMALL_SIZE = {"height": 96, "width": 96}


def published(name: str, folder: Path) -> tuple[Any, Florence2Processor]:
    """Writes one of Microsoft's publications in small, and returns what transformers makes of it, as its script that
    converts them does."""
    config, settings = (dict(facts(name, file) or {}) for file in ("config.json", "preprocessor_config.json"))
    config |= {"projection_dim": 32, "vocab_size": VOCAB}
    config |= {"text_config": config["text_config"] | TEXT, "vision_config": config["vision_config"] | VISION}
    vision = {key: value for key, value in config["vision_config"].items() if key != "model_type"}
    vision |= {
        "embed_dim": vision["dim_embed"],
        "max_position_embeddings": vision["image_pos_embed"]["max_pos_embeddings"],
    }
    torch.manual_seed(0)
    model = Florence2ForConditionalGeneration(
        Florence2Config(text_config=config["text_config"], vision_config=vision, image_token_id=VOCAB - 1)
    )
    model = tiny.pull_apart(model, 0, 0.3, end=2)
    model = model.to(getattr(torch, config["torch_dtype"])).float()
    write_remote(model, folder, config)
    write_words(folder)
    settings |= {"size": SMALL_SIZE, "crop_size": SMALL_SIZE}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if generation := facts(name, "generation_config.json"):
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return model, processor(CLIPImageProcessor.from_pretrained(folder), rows=10)


def write_words(folder: Path) -> None:
    """Saves a tokenizer as Microsoft does: BART's, without what its processor adds."""
    bart_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024}))
