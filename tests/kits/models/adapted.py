"""Tiny models with adapters of PEFT's beside them: what PEFT computes with each, and pipelines that have them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel, get_peft_model

from tests.kits.models import families, tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.requests.adapters import NO_ADAPTER
from vlm_app.reference.huggingface import image_inputs

BASE, QUESTION = None, [7, 21, 9, 33]
FEW = {  # limits, and too few blocks for all sequences at once
    "t5": ({"max_seq_len": 40, "max_encoder_input_len": 20}, {"max_kv_blocks": 60, "cross_kv_cache_fraction": 0.7}),
    "llama": ({"max_seq_len": 40}, {"max_kv_blocks": 24}),
}


class Adapted:
    """A model, the engine of its base, and adapters, each saved by PEFT; inputs of each and of the base side by
    side."""

    def __init__(self, make: Callable, kinds: Mapping[str, PeftConfig], folder: Path, limits: Mapping | None = None):
        self.model = make()
        self.engine = engine_dir(self.model, folder, max_batch_size=8, **(limits or {}))
        self.models = {BASE: self.model}
        for seed, (name, config) in enumerate(kinds.items()):
            torch.manual_seed(seed)
            self.models[name] = trained(get_peft_model(make(), config).eval())
            self.models[name].save_pretrained(folder / "adapters" / name)
        self.lora = tuple(f"{name}={folder / 'adapters' / name}" for name in kinds)
        self.names = (BASE, *kinds)

    def pipeline(self, **options) -> Pipeline:
        return Pipeline(self.engine, RuntimeConfig(device="cpu", lora=self.lora, **options))


def trained(model: PeftModel) -> PeftModel:
    """A model whose DoRAs give other lengths to rows than these have without."""
    for name, values in model.named_parameters():
        if "lora_magnitude_vector" in name:
            values.data *= torch.rand_like(values) + 0.5
    return model


class AdaptedText(Adapted):
    """The same of texts."""

    def __init__(self, make: Callable, kinds: Mapping[str, PeftConfig], folder: Path, limits: Mapping | None = None):
        super().__init__(make, kinds, folder, limits)
        self.is_encoder_decoder = self.model.config.is_encoder_decoder
        draw = tiny.texts if self.is_encoder_decoder else tiny.prompts
        self.texts = draw(self.model, (17, 9))
        self.key = "encoder_input_ids" if self.is_encoder_decoder else "decoder_prompt_token_ids"
        self.cases = [(name, text) for text in self.texts for name in self.names]  # neighbours of one text

    @property
    def inputs(self) -> list[dict]:
        return [{self.key: text, "lora": name} for name, text in self.cases]

    def tokens(self, name: str | None, text: list[int], new: int, **options) -> list[int]:
        model = self.models[name]
        # Hugging Face's class, with PEFT's layers in it: its `generate` takes ids by position
        model = model.get_base_model() if isinstance(model, PeftModel) else model
        find = tiny.hf_text if self.is_encoder_decoder else tiny.hf_continued
        return find(model, text, new, **options)

    @torch.no_grad()
    def logprobs(self, name: str | None, text: list[int], tokens: list[int]) -> torch.Tensor:
        model = self.models[name]
        if self.is_encoder_decoder:
            ids = torch.tensor([[self.model.generation_config.decoder_start_token_id, *tokens]])
            logits = model(input_ids=torch.tensor([text]), decoder_input_ids=ids[:, :-1]).logits
        else:
            logits = model(input_ids=torch.tensor([text + tokens])).logits[:, len(text) - 1 : -1]
        return logits.log_softmax(-1)[0].gather(1, torch.tensor(tokens)[:, None])[:, 0]

    def check(self, new: int, atol: float = 1e-4, fewest: int = 6) -> None:
        """Checks `new` tokens and log-probabilities of all inputs at once, of which so many differ at least, then the
        tokens of each alone."""
        pipe, want = self.pipeline(block_size=4), [self.tokens(*case, new) for case in self.cases]
        assert len(set(map(tuple, want))) >= fewest, "the adapters make no difference"
        for _ in range(2):  # the second time what can be shared is: of one text, nothing among adapters
            found = pipe.generate(self.inputs, max_new_tokens=new)
            assert [out.token_ids for out in found] == want
        for case, out in zip(self.cases, found, strict=True):
            exact = self.logprobs(*case, out.token_ids)
            torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=atol, rtol=0)
        for given, (name, text), tokens in zip(self.inputs, self.cases, want, strict=True):
            assert pipe.generate(given, max_new_tokens=new).token_ids == tokens
            number = NO_ADAPTER if name is BASE else self.names.index(name) - 1  # as an option
            assert pipe.generate({self.key: text}, max_new_tokens=new, lora=number).token_ids == tokens
        assert pipe.llm.scheduler.blocks.balanced

    def check_beams(self, new: int, **options) -> None:
        """Checks `new` tokens of three beams each. Two searches fit at once, so that others take over their slots."""
        want = [self.tokens(*case, new, num_beams=3) for case in self.cases]
        found = self.pipeline(max_batch_size=6, **options).generate(self.inputs, num_beams=3, max_new_tokens=new)
        assert [out.token_ids for out in found] == want

    def check_preempted(self, new: int, **few_blocks) -> None:
        """Checks `new` tokens of inputs of which some begin again."""
        found, preemptions = preempted(self, new, **few_blocks)
        assert found == [self.tokens(*case, new) for case in self.cases] and preemptions > 0

    def check_split(self, new: int, **sizes) -> None:
        """Checks `new` tokens where ranks share the model, and all adapters with it."""
        generated = lambda pipe: [out.token_ids for out in pipe.generate(self.inputs, max_new_tokens=new)]  # noqa: E731
        split = rebuilt(self.engine, max_batch_size=8, **sizes)
        found = with_followers(split, RuntimeConfig(device="cpu", lora=self.lora), generated)
        assert found == [self.tokens(*case, new) for case in self.cases]


class AdaptedVision(Adapted):
    """The same of a question about an image, whose rows stand at the beginning."""

    def __init__(self, make: Callable, kinds: Mapping[str, PeftConfig], folder: Path):
        super().__init__(make, kinds, folder)
        pipe = self.pipeline()
        visual = pipe.llm.encoders.visual.config
        self.has_encoder = pipe.llm.encoders.encoder is not None
        size, generator = families.image_size(visual), torch.Generator().manual_seed(1)
        self.rows, self.images = visual.rows_of(*size), torch.randn(2, 3, *size, generator=generator)
        self.cases = [(name, image) for image in range(2) for name in self.names]

    @property
    def inputs(self) -> list[dict]:
        key = "encoder_input_ids" if self.has_encoder else "decoder_prompt_token_ids"
        ids = [*range(60, 60 + self.rows), *QUESTION]
        return [{key: ids, "pixel_values": self.images[[image]], "lora": name} for name, image in self.cases]

    def tokens(self, name: str | None, image: int, new: int) -> list[int]:
        return answer(self.models[name], self.images[[image]], self.rows, new, has_encoder=self.has_encoder)


@torch.no_grad()
def answer(model, pixels: torch.Tensor, rows: int, new: int, *, has_encoder: bool) -> list[int]:
    """Hugging Face's tokens about an image of so many rows."""
    ids = torch.tensor([[59] * rows + QUESTION])
    options = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0, "max_new_tokens": new}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **image_inputs(model, pixels, ids)}
    out = model.generate(**inputs, **options)[0].tolist()[1 if has_encoder else ids.shape[1] :]
    return out[: out.index(2) + 1] if 2 in out else out


def preempted(adapted: AdaptedText, new: int, **few_blocks) -> tuple[list[list[int]], int]:
    """Each input's tokens where there are too few blocks for all at once, and how many sequences began again."""
    pipe = adapted.pipeline(block_size=4, burst=4, **few_blocks)
    ids = [pipe.llm.add([pipe.request(each, max_new_tokens=new)])[0] for each in adapted.inputs]
    done = {}
    while pipe.llm.has_work:
        done |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
    return [done[i].token_ids for i in ids], sum(completion.preemptions for completion in done.values())
