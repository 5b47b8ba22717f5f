"""What parity tests share of models that read images of any number and size among words."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from PIL import Image as Picture

from vlm.api.pipeline import Pipeline
from vlm.artifacts.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.requests.request import Request

BATCHES = ({}, {"burst": 1, "block_size": 4, "max_batch_size": 2}, {"max_prefill_tokens": 6})
BEAMS = {"num_beams": 3, "length_penalty": 0.5}


def cpu(**options: Any) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


class Case(Protocol):
    """An engine, its inputs, and what Hugging Face's class makes of the same prompts."""

    engine: EngineDir
    inputs: list[dict[str, Any]]
    prompts: list[Any]

    def theirs(self, *given: Any, **options: Any) -> list[int]: ...

    def theirs_in_full(self, *given: Any, **options: Any) -> Any: ...


def check_mixed_batches(case: Case, *more: dict[str, Any], new: int) -> None:
    """Checks `new` tokens of all prompts at once, under the options of BATCHES and `more`, and with beams."""
    want = [case.theirs(*given) for given in case.prompts]
    assert len({tuple(tokens) for tokens in want}) == len(want), "the images make no difference"
    for options in (*BATCHES, *more):
        pipe = Pipeline(case.engine, cpu(**options))
        for _ in range(2):  # the second time what can be shared is
            found = pipe.generate(case.inputs, max_new_tokens=new, loop_detection=False)
            assert [out.token_ids for out in found] == want
        assert pipe.llm.scheduler.blocks.balanced
    found = pipe.generate(case.inputs, max_new_tokens=new, loop_detection=False, **BEAMS)
    assert [out.token_ids for out in found] == [case.theirs(*given, **BEAMS) for given in case.prompts]


def check_log_probabilities(case: Case, new: int) -> None:
    """Checks those of `new` greedy tokens of each prompt, within 1e-4."""
    found = Pipeline(case.engine, cpu()).generate(case.inputs, max_new_tokens=new, loop_detection=False)
    for given, out in zip(case.prompts, found, strict=True):
        steps = case.theirs_in_full(*given, output_logits=True, return_dict_in_generate=True).logits
        exact = torch.cat(steps)[: len(out.token_ids)].log_softmax(-1)
        exact = exact.gather(1, torch.tensor(out.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


# --- messages, of four pictures ---
def image_part(picture: Picture.Image) -> dict[str, Any]:
    return {"type": "image", "image": picture}


READ = {"type": "text", "text": "read"}
CONTENTS = {
    "a page and words": lambda images: [image_part(images[0]), READ],
    "several": lambda images: [READ, *map(image_part, images[1:3]), READ, image_part(images[3])],
    "words alone": lambda images: [READ],
}


def asked(pipe: Pipeline, processor: Any, content: str | list[dict[str, Any]]) -> tuple[Request, Any]:
    """Returns the request of a message and what the published processor makes of it, whose token ids are checked."""
    messages = [{"role": "user", "content": content}]
    parts = [] if isinstance(content, str) else content
    images = [part["image"] for part in parts if part["type"] == "image"]
    text = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(text=[text], images=images or None, return_tensors="pt")
    request = pipe.request({"messages": messages})
    mark, vocab = processor.image_token_id, pipe.config.vocab_size
    assert [mark if i >= vocab else i for i in request.decoder_prompt_token_ids] == inputs["input_ids"][0].tolist()
    return request, inputs
