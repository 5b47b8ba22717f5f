"""A Hugging Face model that answers the requests of a pipeline: its tokens, and the log-probabilities of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.errors import InputError
from vlm.layers.images.convolution import whole_float32
from vlm_app.reference.huggingface import image_inputs, language_part, load_whole, quiet

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request


class Reference:
    """A Hugging Face model on the device of a pipeline, asked with the pipeline's requests, one at a time."""

    def __init__(self, model: Any, pipeline: Pipeline):
        self.model, self.pipeline = model, pipeline
        self.encoder_decoder = pipeline.config.cross_attention
        self.vocab_size = pipeline.capabilities.vocab_size

    @classmethod
    def load(cls, folder: Path, pipeline: Pipeline, dtype: str | None = None) -> Reference:
        """Loads the folder's model; `dtype` None: the engine's computing type."""
        quiet()
        torch_dtype = getattr(torch, dtype or pipeline.engine.build.dtype)
        model = load_whole(folder, torch_dtype)
        return cls(model.to(pipeline.device).eval(), pipeline)

    # --- what it is asked ---
    def tokens(self, request: Request) -> list[int]:
        """Returns what its own generate gives, up to and with the end token."""
        model, inputs = self._inputs(request)
        prompt = len(request.decoder_prompt_token_ids)
        params, limit = request.params, self._limit(request)
        with torch.inference_mode(), whole_float32():
            out = model.generate(
                **inputs, do_sample=False, num_beams=params.num_beams, length_penalty=params.length_penalty,
                early_stopping=params.early_stopping, repetition_penalty=1.0, no_repeat_ngram_size=0,
                max_new_tokens=limit, min_new_tokens=max(params.min_new_tokens, params.min_length - prompt),
                min_length=0, num_return_sequences=1, eos_token_id=list(self._ends) or None,
                pad_token_id=self.pad_token_id, forced_bos_token_id=params.forced_bos_token_id,
                forced_eos_token_id=params.forced_eos_token_id,
            )  # fmt: skip
        # given embeddings, a decoder returns the new tokens alone
        ids = out[0].tolist()[0 if "inputs_embeds" in inputs and not self.encoder_decoder else prompt :]
        return ids[: next((i + 1 for i, token in enumerate(ids) if token in self._ends), limit)]

    def log_probabilities(self, request: Request, token_ids: list[int]) -> Tensor:
        """Returns all tokens' log-probabilities at each place of `token_ids`, from one pass: [tokens, vocabulary]."""
        model, inputs = self._inputs(request, token_ids[:-1])
        with torch.inference_mode(), whole_float32():
            logits = model(**inputs).logits[0, -len(token_ids) :]
        return logits.float().log_softmax(-1).cpu()

    # --- inputs ---
    @property
    def _ends(self) -> tuple[int, ...]:
        return self.pipeline.capabilities.eos_token_ids

    @property
    def pad_token_id(self) -> int:
        """Returns what pads its inputs and outputs."""
        pad = self.model.config.get_text_config().pad_token_id
        return self._ends[0] if pad is None and self._ends else pad or 0

    def _limit(self, request: Request) -> int:
        """Returns how many new tokens there are at most."""
        prompt, params = len(request.decoder_prompt_token_ids), request.params
        most = self.pipeline.capabilities.max_seq_len
        return params.max_new_tokens or max(1, min(most, params.max_length or most) - prompt)

    def _inputs(self, request: Request, after: list[int] | None = None) -> tuple[Any, dict[str, Any]]:
        """Returns the model, or for a text alone its language part, and what it is given; `after` the prompt go
        these."""
        prompt, after = list(request.decoder_prompt_token_ids), after or []
        inputs: dict[str, Any] = {}
        pixels = self._pixels(request)
        model = language_part(self.model) if pixels is None else self.model
        if self.encoder_decoder:
            inputs["decoder_input_ids"] = self._tensor([*prompt, *after])
            if request.encoder_input_ids is not None:
                inputs |= self._chat_inputs(model, request, list(request.encoder_input_ids))
        else:
            inputs |= self._chat_inputs(model, request, [*prompt, *after])
        return model, inputs if pixels is None else inputs | image_inputs(model, pixels, inputs.get("input_ids"))

    def _chat_inputs(self, model: Any, request: Request, ids: list[int]) -> dict[str, Tensor]:
        """Returns ids with placeholders for the images' rows; embeddings where a prompt table is among them."""
        table = request.prompt_table
        if request.images:
            if table is not None and len(table):
                raise InputError("the accuracy check takes images or a prompt table, not both in one request.")
            ids = [self._placeholder if i >= self.vocab_size else i for i in ids]
        mask = {"attention_mask": self._tensor([1] * len(ids))}
        if table is None or not len(table):
            return {"input_ids": self._tensor(ids), **mask}
        embeddings = model.get_input_embeddings()(self._tensor([min(i, self.vocab_size - 1) for i in ids]))
        rows = table.rows.to(embeddings)
        at = [(place, i - self.vocab_size) for place, i in enumerate(ids) if i >= self.vocab_size]
        with torch.no_grad():
            for place, row in at:
                embeddings[0, place] = rows[row]
        return {"inputs_embeds": embeddings.detach(), **mask}

    @property
    def _placeholder(self) -> int:
        config = self.model.config
        return config.image_token_id if hasattr(config, "image_token_id") else config.image_token_index

    def _pixels(self, request: Request) -> Tensor | None:
        """Returns the images' pixels [images, C, H, W], or None."""
        images = request.images if request.encoder_image is None else (request.encoder_image,)
        if len({image.pixels.shape for image in images}) > 1:
            raise InputError("the accuracy check takes images of one size a request; give each its own.")
        pixels = [image.values for image in images]
        return torch.stack(pixels).to(self.model.device, self.model.dtype) if pixels else None

    def _tensor(self, ids: list[int]) -> Tensor:
        """Returns the ids on the model's device: [1, n]."""
        return torch.tensor([ids], device=self.model.device)
