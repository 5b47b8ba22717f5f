"""mini-blip2: a ViT, a Q-Former and a T5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessor,
    LlavaForConditionalGeneration,
    T5Config,
)

from training.scenes.loader import Examples, held_out
from training.scenes.scene import SIZE
from training.scenes.subject import SHADES, TOWER, WIDTH, Batch, Subject, generated, normalized, padded
from training.scenes.tokens import END, IMAGE, PAD, build

QUERIES = 32


class MiniBlip2(Subject):
    """A picture's queries are made once, and go before each of its questions."""

    name = "mini-blip2"
    captured = True  # steps, as CUDA graphs

    def __init__(self) -> None:
        super().__init__(build(ends="$A </s>"))
        text = T5Config(
            vocab_size=len(self.tokenizer), d_model=192, d_kv=32, d_ff=384, num_layers=3, num_decoder_layers=3,
            num_heads=6, feed_forward_proj="gated-gelu", dropout_rate=0.0, tie_word_embeddings=True,
            decoder_start_token_id=PAD, eos_token_id=END, pad_token_id=PAD,
        )  # fmt: skip
        queries = {"hidden_size": 192, "intermediate_size": 768, "num_hidden_layers": 3, "num_attention_heads": 6,
                   "encoder_hidden_size": 192, "cross_attention_frequency": 1, "hidden_dropout_prob": 0.0,
                   "attention_probs_dropout_prob": 0.0, "vocab_size": 1, "max_position_embeddings": 1}  # fmt: skip
        config = Blip2Config(
            vision_config=TOWER | {"num_hidden_layers": 5, "hidden_act": "quick_gelu"}, qformer_config=queries,
            text_config=text.to_dict(),
            num_query_tokens=QUERIES, image_token_index=IMAGE, image_text_hidden_size=16,
        )  # fmt: skip
        self.model = Blip2ForConditionalGeneration(config)
        # Hugging Face begins with queries of zeros, which never become different ones
        torch.nn.init.normal_(self.model.query_tokens, std=0.5)
        for parameter in self.model.vision_model.parameters():
            if parameter.ndim >= 2:  # … and with a tower of zeros, made to be loaded
                torch.nn.init.normal_(parameter, std=0.02)
        look_at_neighbours(self.model)

    def batch(self, examples: Examples) -> Batch:
        """pixels [n, H, W, 3] uint8, ids and labels [n * questions, width]"""
        asked = [(question, answer) for scene in examples.questions for _, question, answer in scene]
        ids = padded([self._question(question) for question, _ in asked], PAD, multiple=WIDTH)
        labels = padded([[*self.ids(answer), END] for _, answer in asked], -100, multiple=WIDTH)
        return {"pixels": examples.pixels, "ids": ids, "labels": labels}

    def loss(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        image = self._image(normalized(pixels, noisy=True))
        image = image[:, None].expand(-1, len(ids) // len(image), -1, -1).flatten(0, 1)
        language = self.model.language_model
        given = torch.cat([image, language.get_input_embeddings()(ids)], 1)
        mask = torch.cat([ids.new_ones(image.shape[:2]), (ids != PAD).long()], 1)
        return language(inputs_embeds=given, attention_mask=mask, labels=labels).loss

    def _image(self, pixels: Tensor) -> Tensor:
        """[n, 3, H, W] -> [n, QUERIES, d_model]"""
        model = self.model
        seen = model.vision_model(pixel_values=pixels).last_hidden_state
        queries = model.query_tokens.expand(len(seen), -1, -1)
        out = model.qformer(query_embeds=queries, encoder_hidden_states=seen).last_hidden_state
        return model.language_projection(out)

    def answers(self, pixels: Tensor, questions: list[str], device: torch.device) -> list[str]:
        """pixels [n, H, W, 3] uint8, a question each"""
        ids = padded([[IMAGE] * QUERIES + self._question(question) for question in questions], PAD).to(device)
        out = generated(self.model, ids, pixels)
        return [text.strip() for text in self.tokenizer.batch_decode(out, skip_special_tokens=True)]

    def _question(self, question: str) -> list[int]:
        return [*self.ids(f"Question: {question} Answer:"), END]

    def processor(self) -> Any:
        images = BlipImageProcessor(size={"height": SIZE, "width": SIZE}, **SHADES)
        return Blip2Processor(images, self.tokenizer, num_query_tokens=QUERIES)

    def set_begin(self, settings: Any) -> None:
        settings.decoder_start_token_id = PAD


@torch.no_grad()
def look_at_neighbours(model: Blip2ForConditionalGeneration) -> None:
    """Three heads of T5's encoder begin with a look at the word before, the word after, and those before that: which
    object was named first is learnt in half the steps then."""
    by_distance = model.language_model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    after = len(by_distance) // 2  # buckets: 0 itself, 1 the one before, …; the half from here on lies after it
    for head, buckets, bias in ((0, [1], 4.0), (1, [after + 1], 4.0), (2, [2, 3], 3.0)):
        by_distance[buckets, head] = bias


@torch.no_grad()
def take_tower(model: Blip2ForConditionalGeneration, folder: Path) -> None:
    """BLIP-2 begins with a tower that has learnt to see. CLIP's norm after its embeddings, which BLIP-2's has not, is
    folded into them as far as it is the same for all."""
    clip = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).model.vision_tower
    state = {name.removeprefix("vision_model."): x for name, x in clip.state_dict().items()}
    held = held_out(64, 1).pixels
    embedded = clip.get_submodule("embeddings")(normalized(held))
    scale = state["pre_layrnorm.weight"] / embedded.std(-1).mean()
    shift = state["pre_layrnorm.bias"]
    tower = model.vision_model
    tower.embeddings.class_embedding.copy_(state["embeddings.class_embedding"] * scale)
    tower.embeddings.patch_embedding.weight.copy_(
        state["embeddings.patch_embedding.weight"] * scale[:, None, None, None]
    )
    tower.embeddings.patch_embedding.bias.zero_()
    tower.embeddings.position_embedding.copy_(state["embeddings.position_embedding.weight"] * scale + shift)
    for i, layer in enumerate(tower.encoder.layers):
        theirs = {
            n.removeprefix(f"encoder.layers.{i}."): x for n, x in state.items() if n.startswith(f"encoder.layers.{i}.")
        }
        for kind in ("weight", "bias"):
            fused = torch.cat([theirs.pop(f"self_attn.{x}_proj.{kind}") for x in "qkv"])
            getattr(layer.self_attn.qkv, kind).copy_(fused)
            getattr(layer.self_attn.projection, kind).copy_(theirs.pop(f"self_attn.out_proj.{kind}"))
        layer.load_state_dict(theirs, strict=False)
