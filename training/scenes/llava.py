"""mini-llava: a CLIP tower, a projector of two layers, and a LLaMA."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
)

from training.scenes.loader import Examples
from training.scenes.scene import SIZE
from training.scenes.subject import PATCH, SHADES, TOWER, WIDTH, Batch, Subject, generated, normalized, padded
from training.scenes.tokens import BEGIN, END, IMAGE, PAD, build

TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': ' }}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] }}{% endfor %}"
    "{{ '</s>' if message['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


class MiniLlava(Subject):
    """A scene is a conversation: all its questions one after the other, the picture before the first."""

    name = "mini-llava"
    captured = False  # Hugging Face's forward counts placeholders on the host

    def __init__(self) -> None:
        super().__init__(build(ends="<s> $A"))
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
                given, said = self._prompt(question, first=turn == 0), [*self.ids(" " + answer), END]
                ids += given + said
                wanted += [-100] * len(given) + said
            rows.append(ids)
            labels.append(wanted)
        ids, said = padded(rows, PAD, multiple=WIDTH), padded(labels, -100, multiple=WIDTH)
        return {"pixels": examples.pixels, "ids": ids, "labels": said}

    def loss(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        pictures = normalized(pixels, noisy=True)
        return self.model(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=pictures, labels=labels).loss

    def answers(self, pixels: Tensor, questions: list[str], device: torch.device) -> list[str]:
        """pixels [n, H, W, 3] uint8, a question each"""
        ids = padded([[BEGIN, *self._prompt(q, first=True)] for q in questions], PAD, left=True).to(device)
        out = generated(self.model, ids, pixels)[:, ids.shape[1] :]
        return [text.strip() for text in self.tokenizer.batch_decode(out, skip_special_tokens=True)]

    def _prompt(self, question: str, first: bool) -> list[int]:
        if not first:
            return self.ids(f"USER: {question} ASSISTANT:")
        return [*self.ids("USER: "), *[IMAGE] * self.features, *self.ids(f"\n{question} ASSISTANT:")]

    def processor(self) -> Any:
        images = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=SIZE, **SHADES)
        return LlavaProcessor(images, self.tokenizer, patch_size=PATCH, vision_feature_select_strategy="default",
                              num_additional_image_tokens=1, chat_template=TEMPLATE)  # fmt: skip

    def set_begin(self, settings: Any) -> None:
        settings.bos_token_id = BEGIN
