"""The two models, as Hugging Face's classes: how they are made, read a batch, and answer."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessor,
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    T5Config,
)

from training.scenes.loader import Examples, held_out
from training.scenes.scene import SIZE
from training.scenes.tokens import BEGIN, END, IMAGE, PAD, build

PATCH = 8
MEAN, STD = 0.5, 0.25  # of every channel
TOWER = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_attention_heads": 6,
    "image_size": SIZE,
    "patch_size": PATCH,
}
Batch = dict[str, Tensor]  # what `loss` is given
QUERIES = 32
NOISE = 6.0  # shades, in training alone
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}"
    "{{ '</s>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
MAX_NEW_TOKENS = 16
SHADES = {"image_mean": [MEAN] * 3, "image_std": [STD] * 3}
WIDTH = 8  # rows of tokens are padded to a multiple of it, so that few shapes come up in training


def normalized(pixels: Tensor, noise: float = 0.0) -> Tensor:
    """[n, H, W, 3] uint8 -> [n, 3, H, W], as the image processor makes it; `noise`: up to so many shades are added."""
    shades = pixels.permute(0, 3, 1, 2).float()
    if noise:
        strength = torch.rand(len(shades), 1, 1, 1, device=shades.device) * noise
        shades = (shades + torch.randn_like(shades[:, :1]) * strength).clamp(0, 255)
    return (shades / 255 - MEAN) / STD


def padded(rows: list[list[int]], fill: int, left: bool = False, multiple: int = 1) -> Tensor:
    width = math.ceil(max(map(len, rows)) / multiple) * multiple
    sides = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([side + row if left else row + side for row, side in zip(rows, sides, strict=True)])


def generated(model: torch.nn.Module, ids: Tensor, pixels: Tensor) -> Tensor:
    pictures = normalized(pixels.to(ids.device))
    return model.generate(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=pictures, do_sample=False,
                          max_new_tokens=MAX_NEW_TOKENS, eos_token_id=END, pad_token_id=PAD)  # fmt: skip


class MiniLlava:
    """A scene is a conversation: all its questions one after the other, the picture before the first."""

    name = "mini-llava"
    captured = False  # Hugging Face's forward counts placeholders on the host

    def __init__(self) -> None:
        self.tokenizer, self.known = build(ends="<s> $A"), {}
        self.features = (SIZE // PATCH) ** 2
        vision = CLIPVisionConfig(**TOWER, num_hidden_layers=6, projection_dim=192)
        text = LlamaConfig(
            vocab_size=len(self.tokenizer), hidden_size=256, intermediate_size=640, num_hidden_layers=5,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=1024, bos_token_id=BEGIN,
            eos_token_id=END, pad_token_id=PAD,
        )  # fmt: skip
        config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, pad_token_id=PAD,
                             image_seq_length=self.features, vision_feature_layer=-2)  # fmt: skip
        self.model = LlavaForConditionalGeneration(config)

    def batch(self, examples: Examples) -> Batch:
        """pixels [n, H, W, 3] uint8, ids and labels [n, width]"""
        rows, labels = [], []
        for asked in examples.questions:
            ids, wanted = [BEGIN], [-100]
            for turn, (_, question, answer) in enumerate(asked):
                given, said = self._prompt(question, first=turn == 0), [*self._ids(" " + answer), END]
                ids += given + said
                wanted += [-100] * len(given) + said
            rows.append(ids)
            labels.append(wanted)
        ids, said = padded(rows, PAD, multiple=WIDTH), padded(labels, -100, multiple=WIDTH)
        return {"pixels": examples.pixels, "ids": ids, "labels": said}

    def loss(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=normalized(pixels, NOISE),
                          labels=labels).loss  # fmt: skip

    def answers(self, pixels: Tensor, questions: list[str], device: torch.device) -> list[str]:
        """pixels [n, H, W, 3] uint8, a question each"""
        ids = padded([[BEGIN, *self._prompt(q, first=True)] for q in questions], PAD, left=True).to(device)
        out = generated(self.model, ids, pixels)[:, ids.shape[1] :]
        return [text.strip() for text in self.tokenizer.batch_decode(out, skip_special_tokens=True)]

    def _prompt(self, question: str, first: bool) -> list[int]:
        if not first:
            return self._ids(f"USER: {question} ASSISTANT:")
        return [*self._ids("USER: "), *[IMAGE] * self.features, *self._ids(f"\n{question} ASSISTANT:")]

    def _ids(self, text: str) -> list[int]:
        """Kept, as most texts come again and again: tokenizing would take longer than the step."""
        if text not in self.known:
            self.known[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.known[text]

    def processor(self) -> Any:
        images = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=SIZE, **SHADES)
        return LlavaProcessor(images, self.tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
                              num_additional_image_tokens=1, chat_template=TEMPLATE)  # fmt: skip


class MiniBlip2:
    """A picture's queries are made once, and go before each of its questions."""

    name = "mini-blip2"
    captured = True  # steps, as CUDA graphs

    def __init__(self) -> None:
        self.tokenizer, self.known = build(ends="$A </s>"), {}
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
        labels = padded([[*self._ids(answer), END] for _, answer in asked], -100, multiple=WIDTH)
        return {"pixels": examples.pixels, "ids": ids, "labels": labels}

    def loss(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        image = self._image(normalized(pixels, NOISE))
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
        return [*self._ids(f"Question: {question} Answer:"), END]

    def _ids(self, text: str) -> list[int]:
        """Kept, as most texts come again and again: tokenizing would take longer than the step."""
        if text not in self.known:
            self.known[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self.known[text]

    def processor(self) -> Any:
        images = BlipImageProcessor(size={"height": SIZE, "width": SIZE}, **SHADES)
        return Blip2Processor(images, self.tokenizer, num_query_tokens=QUERIES)


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


MODELS = {model.name: model for model in (MiniLlava, MiniBlip2)}


def load(subject: MiniLlava | MiniBlip2, folder: Path) -> None:
    """A folder's weights, and its tokenizer: one that is built anew may number other pieces."""
    subject.model = type(subject.model).from_pretrained(folder, dtype=torch.float32)
    subject.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)


def export(subject: MiniLlava | MiniBlip2, folder: Path) -> None:
    """A Hugging Face folder in float16."""
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(subject.model).cpu().half()
    settings = model.generation_config
    settings.eos_token_id, settings.pad_token_id, settings.max_new_tokens = END, PAD, MAX_NEW_TOKENS
    if subject.name == "mini-blip2":
        settings.decoder_start_token_id = PAD
    else:
        settings.bos_token_id = BEGIN
    model.save_pretrained(folder)
    subject.processor().save_pretrained(folder)
