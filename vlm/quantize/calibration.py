"""What the layers of a dense model are given on a user's inputs: the model runs, and its Linear layers are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vlm.api.pipeline import Pipeline
from vlm.artifacts.progress import Progress
from vlm.config import RuntimeConfig
from vlm.engine.llm_engine import LLMEngine
from vlm.errors import InputError
from vlm.executor.inputs.packing import batched_by_size
from vlm.executor.paged.runner import PagedRunner
from vlm.layers.linear import Linear
from vlm.quantize.layers import Layer
from vlm.quantize.statistics import Needs, Recorder, Statistics
from vlm.requests.request import Request

PASS_BYTES = 2 << 30  # of rows and Hessians that one pass over the inputs records


def recording(runtime: RuntimeConfig) -> RuntimeConfig:
    """Returns how an engine runs whose layers are recorded: all of them at each pass, in no CUDA graph."""
    return replace(runtime, cuda_graphs=False, prefix_sharing=False, encoder_cache_size=0, kv_cache_dtype=None)


def forced(request: Request, token_ids: list[int]) -> Request:
    """Returns the request as one pass over these tokens of its output, which gives the logits of each."""
    params = replace(
        request.params, max_new_tokens=1, min_new_tokens=0, min_length=0, max_length=None, num_beams=1,
        num_return_sequences=1, return_context_logits=True,
    )  # fmt: skip
    prompt = (*request.decoder_prompt_token_ids, *token_ids[:-1])
    return replace(request, decoder_prompt_token_ids=prompt, params=params, stops=None)


@dataclass(frozen=True)
class Calibration:
    """A dense model, run as `recording` says, and requests that go through it, one at a time: no row is padding."""

    pipeline: Pipeline
    requests: list[Request]  # as `forced` has them
    seed: int = 0

    def statistics(
        self, layers: list[Layer], needs: Needs, progress: Progress | None = None
    ) -> Iterator[tuple[Layer, Statistics]]:
        """Yields each layer with what it was given. Raises InputError for layers that no input reaches, and for values
        that the engine's type cannot hold."""
        passes = list(batched_by_size(layers, PASS_BYTES, lambda layer: needs.nbytes(layer.in_features)))
        for number, group in enumerate(passes, 1):
            recorder = Recorder({layer.name: self._linear(layer) for layer in group}, needs, self.seed)
            with recorder:
                self._run(f"Recording, pass {number} of {len(passes)}", progress)
            for layer in group:
                yield layer, _checked(layer, recorder.take(layer.name))

    def _run(self, description: str, progress: Progress | None) -> None:
        for done, request in enumerate(self.requests, 1):
            [completion] = self.pipeline.complete([request])
            if completion.out_of_memory:
                raise self.pipeline.loop.memory_error()
            if progress:
                progress(description, done, len(self.requests))

    def _linear(self, layer: Layer) -> Linear:
        return _networks(self.pipeline)[layer.role].get_submodule(layer.path)


def _checked(layer: Layer, statistics: Statistics | None) -> Statistics:
    if statistics is None:
        raise InputError(
            f"no calibration input reaches {layer.name}; give inputs that do (images, where the model takes them), or"
            f" leave it as it is: --ignore {layer.name}, and what --ignore named before."
        )
    if not statistics.max_abs.isfinite().all():
        raise InputError(
            f"the inputs of {layer.name} are not finite in the type that the model ran in; calibrate with --dtype"
            " float32 or bfloat16."
        )
    return statistics


def _networks(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the modules of an engine's networks by their roles."""
    encoders = pipeline.llm.encoders.networks
    assert isinstance(pipeline.llm, LLMEngine) and isinstance(pipeline.llm.executor.runner, PagedRunner)
    return {"visual": encoders.visual, "encoder": encoders.encoder, "decoder": pipeline.llm.executor.runner.decoder}
