"""A Hugging Face model on requests of token ids in batches, by its own generate, with the settings that they have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.requests.sampling_params import SamplingParams
from vlm_app.reference.huggingface import language_part
from vlm_app.reference.reference import Reference

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.requests.request import Request

# settings that count or read a decoder's prompt, to which Hugging Face's generate counts its padding
OF_PROMPT = ("repetition_penalty", "no_repeat_ngram_size", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
             "min_length", "forced_bos_token_id")  # fmt: skip
PLAIN = SamplingParams()


class BatchedReference:
    """A Hugging Face model on the device of a pipeline, asked with the pipeline's requests of texts, whose settings are
    all the same, `size` at a time."""

    def __init__(self, model: Any, pipeline: Pipeline, size: int, pad_token_id: int):
        self.model, self.pipeline, self.size, self.pad_token_id = model, pipeline, size, pad_token_id

    @classmethod
    def load(cls, folder: Path, pipeline: Pipeline, dtype: str, size: int) -> BatchedReference:
        """Loads the folder's model, and of one with images keeps what texts alone go through."""
        reference = Reference.load(folder, pipeline, dtype)
        return cls(language_part(reference.model), pipeline, size, reference.pad_token_id)

    def tokens(self, requests: Sequence[Request]) -> list[list[int]]:
        """Returns the outputs' tokens, up to and with the end token, in the requests' order."""
        found: dict[int, list[int]] = {}
        for batch in _batches(requests, self.size):
            found |= zip(batch, self._generate([requests[i] for i in batch]), strict=True)
        return [found[i] for i in range(len(requests))]

    @torch.inference_mode()
    def _generate(self, requests: list[Request]) -> list[list[int]]:
        params, inputs = requests[0].params, self._inputs(requests)
        prompt, ends = len(requests[0].decoder_prompt_token_ids), self._ends(params)
        out = self.model.generate(
            **inputs, do_sample=False, num_beams=params.num_beams, length_penalty=params.length_penalty,
            early_stopping=params.early_stopping, repetition_penalty=params.repetition_penalty,
            no_repeat_ngram_size=params.no_repeat_ngram_size, num_return_sequences=1,
            max_new_tokens=self._limit(params, prompt), min_length=0,
            min_new_tokens=max(params.min_new_tokens, params.min_length - prompt),
            bad_words_ids=[list(word) for word in params.bad_words_ids] or None,
            eos_token_id=[*ends] or None, pad_token_id=self.pad_token_id,
            forced_bos_token_id=params.forced_bos_token_id, forced_eos_token_id=params.forced_eos_token_id,
        )  # fmt: skip
        start = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]
        return [_up_to_end(row[start:], ends) for row in out.tolist()]

    def _limit(self, params: SamplingParams, prompt: int) -> int:
        """Returns how many tokens may follow so long a prompt, as the engine has it."""
        if params.max_new_tokens is not None:
            return params.max_new_tokens
        most = self.pipeline.capabilities.max_seq_len
        room = max(1, min(most, params.max_length or most) - prompt)
        return min(room, params.default_max_new_tokens or room)

    def _ends(self, params: SamplingParams) -> tuple[int, ...]:
        return (*self.pipeline.capabilities.eos_token_ids, *params.stop_token_ids)

    def _inputs(self, requests: list[Request]) -> dict[str, Tensor]:
        """Returns ids and their masks, [requests, longest]: of texts padded behind, of a decoder's prompts in front."""
        prompts = [request.decoder_prompt_token_ids for request in requests]
        texts = [request.encoder_input_ids for request in requests if request.encoder_input_ids is not None]
        ids, mask = self._padded(texts or prompts, in_front=not texts)
        inputs = {"input_ids": ids, "attention_mask": mask}
        return {**inputs, "decoder_input_ids": self._tensor(prompts)} if texts else inputs

    def _padded(self, rows: Sequence[Sequence[int]], *, in_front: bool) -> tuple[Tensor, Tensor]:
        longest = max(map(len, rows))
        padding = [[self.pad_token_id] * (longest - len(row)) for row in rows]
        masks = [([0] * len(pads), [1] * len(row)) for pads, row in zip(padding, rows, strict=True)]
        if in_front:
            ids = [[*pads, *row] for pads, row in zip(padding, rows, strict=True)]
            return self._tensor(ids), self._tensor([none + own for none, own in masks])
        ids = [[*row, *pads] for pads, row in zip(padding, rows, strict=True)]
        return self._tensor(ids), self._tensor([own + none for none, own in masks])

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, device=self.model.device)


def _batches(requests: Sequence[Request], size: int) -> Iterator[list[int]]:
    """Yields the places of requests that go together: prompts of one length where padding would change outputs."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, request in enumerate(requests):
        groups[len(request.decoder_prompt_token_ids) if _counts_prompt(request) else 0].append(place)
    for group in groups.values():
        yield from (group[at : at + size] for at in range(0, len(group), size))


def _counts_prompt(request: Request) -> bool:
    params = request.params
    if request.encoder_input_ids is not None:
        return False
    return params.max_new_tokens is None or any(getattr(params, name) != getattr(PLAIN, name) for name in OF_PROMPT)


def _up_to_end(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    at = next((i for i, token in enumerate(tokens) if token in ends), len(tokens) - 1)
    return tokens[: at + 1]
