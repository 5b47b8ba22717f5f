"""What parity tests share of models that read images of any number and size among words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from PIL import Image as Picture

from tests.kits.models.engines import engine_dir
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError
from vlm.requests.image import Image
from vlm.requests.request import Request

BATCHES = ({}, {"burst": 1, "block_size": 4, "max_batch_size": 2}, {"max_prefill_tokens": 6})
BEAMS = {"num_beams": 3, "length_penalty": 0.5}
# of tiny models: an image's placeholder, what ends an output, how many ids there are; new tokens
MARK, END, VOCAB, NEW = 59, 2, 60, 12


def cpu(**options: Any) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


class Case(Protocol):
    """An engine, its inputs, and what Hugging Face's class makes of the same prompts."""

    engine: EngineDir
    inputs: list[dict[str, Any]]
    prompts: list[Any]

    def theirs(self, *given: Any, **options: Any) -> list[int]: ...

    def theirs_in_full(self, *given: Any, **options: Any) -> Any: ...


class MarkedCase:
    """A model in whose prompts images have a placeholder, several of them, and prompts with none, one and three."""

    images: list[torch.Tensor]
    prompts: list[tuple[list[int], list[int]]]  # ids, and numbers of images

    def __init__(self, model: Any, folder: Path):
        self.model, self.engine = model, engine_dir(model, folder, max_batch_size=8)
        self.vision = Pipeline(self.engine, cpu()).processor.vision

    def rows(self, image: int) -> int:
        """Returns how many rows of features an image has."""
        raise NotImplementedError

    def pixels(self, images: list[int]) -> dict[str, Any]:
        """Returns what Hugging Face's class takes of images."""
        raise NotImplementedError

    def ours(self, prompt: list[int], images: list[int]) -> dict[str, Any]:
        ids, end, left = [], VOCAB, iter(images)
        for token in prompt:
            begin = end
            end += self.rows(next(left)) if token == MARK else 0
            ids += range(begin, end) if token == MARK else [token]
        return {"decoder_prompt_token_ids": ids, "pixel_values": [self.images[i] for i in images] or None}

    @property
    def inputs(self) -> list[dict[str, Any]]:
        return [self.ours(*given) for given in self.prompts]

    def marked(self, prompt: list[int], images: list[int]) -> torch.Tensor:
        """Returns ids [1, T] with a placeholder for each row of an image."""
        ids = self.ours(prompt, images)["decoder_prompt_token_ids"]
        return torch.tensor([[MARK if token >= VOCAB else token for token in ids]])

    def theirs(self, prompt: list[int], images: list[int], **options: Any) -> list[int]:
        before = self.marked(prompt, images).shape[1]
        out = self.theirs_in_full(prompt, images, **options)[0, before:].tolist()
        return out[: out.index(END) + 1] if END in out else out

    @torch.no_grad()
    def theirs_in_full(self, prompt: list[int], images: list[int], **options: Any) -> Any:
        ids = self.marked(prompt, images)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **self.pixels(images)}
        options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": END, "pad_token_id": 0} | options
        return self.model.generate(**inputs, **options)

    def encoded(self, pipe: Pipeline) -> list[torch.Tensor]:
        """Returns features of all images but one at once, and of that."""
        *several, last = [{"pixel_values": image} for image in self.images]
        return [each.last_hidden_state for each in (*pipe.encode(several), pipe.encode(last))]

    def check_features(self, want: list[torch.Tensor], *options: dict[str, Any]) -> None:
        """Checks those of all images, encoded in passes as the options say."""
        for given in ({}, *options):
            encoders = Pipeline(self.engine, cpu(**given)).llm.encoders
            found = encoders.encode_pixels([Image.from_pixels(image, self.vision) for image in self.images])
            for got, exact in zip(found, want, strict=True):
                torch.testing.assert_close(got, exact, atol=1e-4, rtol=1e-5)


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


def checkpoint_of(engine: EngineDir) -> Checkpoint:
    """Returns what an engine was built of, which lies beside it."""
    return Checkpoint.open(engine.path.parent / "checkpoint")


def check_shared_images(case: MarkedCase, split: dict[str, int]) -> EngineDir:
    """Checks rows of images that ranks share; returns the engine that they run."""
    engine = build_engine(checkpoint_of(case.engine), case.engine.path.parent / str(split), BuildConfig(**split))
    alone = case.encoded(Pipeline(case.engine, cpu()))
    for got, exact in zip(with_followers(engine, cpu(), case.encoded), alone, strict=True):
        torch.testing.assert_close(got, exact, atol=1e-4, rtol=1e-5)
    return engine


def check_ranks(case: MarkedCase, split: dict[str, int], *, new: int) -> None:
    """Checks rows of images and `new` tokens of all prompts, which ranks share."""
    ask = lambda pipe: pipe.generate(case.inputs, max_new_tokens=new, loop_detection=False)  # noqa: E731
    found = with_followers(check_shared_images(case, split), cpu(), ask)
    assert [out.token_ids for out in found] == [out.token_ids for out in ask(Pipeline(case.engine, cpu()))]


def check_torch_alone_encodes(case: MarkedCase, folder: Path) -> None:
    """Checks that an engine of another backend is refused for images of any size."""
    with pytest.raises(ConfigError, match="images of several sizes are encoded by torch alone"):
        build_engine(checkpoint_of(case.engine), folder, BuildConfig(backend="onnxruntime"))


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
