"""The engine's tokens -> texts, as a model of Triton's Python backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vlm_app.triton.backend import Tensors, answer, config_of, processor_of
from vlm_app.triton.config import READ_BACK


class Postprocessing:
    """A streamed response holds all tokens so far, so its text is the whole one so far."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self._config, self._processor = config_of(args), processor_of(args)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        return answer(request, self._tensors, self._config)

    def _tensors(self, inputs: Tensors) -> Tensors:
        ids, lengths, prompts = (inputs[name] for name in READ_BACK)
        texts = np.empty(lengths.shape, object)
        for row, beam in np.ndindex(lengths.shape):
            generated = ids[row, beam, int(prompts[row, beam]) : int(lengths[row, beam])].tolist()
            texts[row, beam] = self._processor.text_of(generated).encode("utf-8", "replace")
        return {"text_output": texts}
