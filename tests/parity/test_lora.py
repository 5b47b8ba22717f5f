"""LoRA against PEFT, FP32 on the CPU: each row of a batch has the tokens of its own adapter, or of the base."""

from __future__ import annotations

import contextlib

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests import tiny
from tests.engines import engine_dir, rebuilt
from tests.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.artifacts.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import InputError, LimitError
from vlm.requests.adapters import NO_ADAPTER

ATTENTION, FFN = ["q_proj", "v_proj"], ["fc1", "fc2", "out_proj"]
# of each model: what two of its adapters change; the third one changes every linear layer
TEXT = {
    "t5": (lambda: tiny.t5(seed=1, tied=False, feed_forward_proj="gated-gelu"), ["q", "v"], ["wi_0", "wo", "k"]),
    "bart": (lambda: tiny.bart(seed=5), ATTENTION, FFN),
    "opt": (lambda: tiny.opt(seed=2), ATTENTION, FFN),
    "llama": (lambda: tiny.llama(seed=3, num_key_value_heads=2), ATTENTION, ["up_proj", "down_proj", "k_proj"]),
    "gpt2": (lambda: tiny.gpt2(seed=1), ["c_attn"], ["c_fc", "c_proj"]),
    "gpt_bigcode of many heads": (lambda: tiny.gpt2(multi_query=False), ["c_attn"], ["c_fc", "c_proj"]),
}
LANGUAGE = r".*language_model\..*\.({})"  # the visual network stays as it is
EVERY = LANGUAGE.format("q|k|v|o|wi_[01]|wo|[a-z]+_proj|fc[12]")
VISION = {
    "llava": (lambda: tiny.llava(seed=3), "q_proj|v_proj", "up_proj|down_proj"),
    "blip2-opt": (lambda: tiny.blip2("opt", seed=1), "q_proj|k_proj", "fc1|fc2"),
    "blip2-t5": (lambda: tiny.blip2("t5", seed=7, spread=0.4), "q|v", "wi_0|wo"),
}
CPU = RuntimeConfig(device="cpu")
BASE, QUESTION = None, [7, 21, 9, 33]
FEW = {  # limits, and too few blocks for all sequences at once
    "t5": ({"max_seq_len": 40, "max_encoder_input_len": 20}, {"max_kv_blocks": 60, "cross_kv_cache_fraction": 0.7}),
    "llama": ({"max_seq_len": 40}, {"max_kv_blocks": 24}),
}


class Adapted:
    """A model, the engine of its base, and three adapters of different ranks, saved by PEFT."""

    def __init__(self, make, first, second, folder, limits=None):
        self.model = make()
        self.engine = engine_dir(self.model, folder, max_batch_size=8, **(limits or {}))
        every = "all-linear" if isinstance(first, list) else EVERY
        first, second = (x if isinstance(x, list) else LANGUAGE.format(x) for x in (first, second))
        kinds = {
            "narrow": {"r": 1, "target_modules": first, "lora_alpha": 4},
            "wide": {"r": 6, "target_modules": every, "use_rslora": True, "lora_alpha": 3},
            # of another rank in the second layer, and stronger in the first
            "uneven": {"r": 2, "target_modules": second, "rank_pattern": {r".*\.1\..*": 4},
                       "alpha_pattern": {r".*\.0\..*": 24}},
        }  # fmt: skip
        turned = type(self.model).__name__ == "GPT2LMHeadModel"  # its weights are [in, out]
        for seed, (name, kind) in enumerate(kinds.items()):
            torch.manual_seed(seed)
            config = LoraConfig(**kind, init_lora_weights=False, fan_in_fan_out=turned)
            if seed == 0:
                self.peft = get_peft_model(self.model, config, adapter_name=name)
            else:
                self.peft.add_adapter(name, config)
        self.peft.save_pretrained(folder / "adapters")
        self.peft.eval()
        self.lora = tuple(f"{name}={folder / 'adapters' / name}" for name in kinds)
        self.names = (BASE, *kinds)

    @contextlib.contextmanager
    def active(self, name):
        """Makes one adapter that of the model, or none."""
        with self.peft.disable_adapter() if name is BASE else contextlib.nullcontext(), torch.no_grad():
            if name is not BASE:
                self.peft.set_adapter(name)
            yield self.model

    def pipeline(self, **options) -> Pipeline:
        return Pipeline(self.engine, RuntimeConfig(device="cpu", lora=self.lora, **options))


class AdaptedText(Adapted):
    """The same of texts."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.is_encoder_decoder = self.model.config.is_encoder_decoder
        make = tiny.texts if self.is_encoder_decoder else tiny.prompts
        self.texts = make(self.model, (17, 9))
        self.key = "encoder_input_ids" if self.is_encoder_decoder else "decoder_prompt_token_ids"
        self.cases = [(name, text) for text in self.texts for name in self.names]  # neighbours of one text

    @property
    def inputs(self):
        return [{self.key: text, "lora": name} for name, text in self.cases]

    def tokens(self, name, text, new, **options):
        with self.active(name) as model:
            find = tiny.hf_text if self.is_encoder_decoder else tiny.hf_continued
            return find(model, text, new, **options)

    def logprobs(self, name, text, tokens):
        with self.active(name) as model:
            if self.is_encoder_decoder:
                ids = torch.tensor([[model.generation_config.decoder_start_token_id, *tokens]])
                logits = model(input_ids=torch.tensor([text]), decoder_input_ids=ids[:, :-1]).logits
            else:
                logits = model(torch.tensor([text + tokens])).logits[:, len(text) - 1 : -1]
        return logits.log_softmax(-1)[0].gather(1, torch.tensor(tokens)[:, None])[:, 0]


@pytest.fixture(scope="module", params=TEXT)
def adapted(request, tmp_path_factory):
    return AdaptedText(*TEXT[request.param], tmp_path_factory.mktemp("lora"))


def test_every_row_has_the_tokens_and_log_probabilities_of_its_adapter(adapted):
    pipe = adapted.pipeline(block_size=4)
    want = [adapted.tokens(*case, 12) for case in adapted.cases]
    assert len(set(map(tuple, want))) > 5, "the adapters make no difference"
    for _ in range(2):  # the second time what can be shared is: of one text, nothing among adapters
        found = pipe.generate(adapted.inputs, max_new_tokens=12)
        assert [out.token_ids for out in found] == want
    for case, out in zip(adapted.cases, found, strict=True):
        exact = adapted.logprobs(*case, out.token_ids)
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)
    for (name, text), tokens in zip(adapted.cases, want, strict=True):  # and alone, named as an option
        number = NO_ADAPTER if name is BASE else adapted.names.index(name) - 1
        assert pipe.generate({adapted.key: text}, max_new_tokens=12, lora=number).token_ids == tokens
    assert pipe.llm.scheduler.blocks.balanced


def test_beams_are_of_their_adapters(adapted):
    want = [adapted.tokens(*case, 8, num_beams=3) for case in adapted.cases]
    # two searches fit at once, so that others take over their slots
    found = adapted.pipeline(max_batch_size=6).generate(adapted.inputs, num_beams=3, max_new_tokens=8)
    assert [out.token_ids for out in found] == want


@pytest.mark.parametrize("family", FEW)
def test_preemption_keeps_the_adapter(family, tmp_path):
    limits, few_blocks = FEW[family]
    adapted = AdaptedText(*TEXT[family], tmp_path, limits)
    want = [adapted.tokens(*case, 16) for case in adapted.cases]
    pipe = adapted.pipeline(block_size=4, burst=4, **few_blocks)
    ids = [pipe.llm.add(pipe.request(given, max_new_tokens=16)) for given in adapted.inputs]
    done = {}
    while pipe.llm.has_work:
        done |= {u.request_id: u.completion for u in pipe.llm.step() if u.finished}
    assert [done[i].token_ids for i in ids] == want
    assert sum(completion.preemptions for completion in done.values()) > 0


@pytest.mark.parametrize("family", ["t5", "llama"])
def test_ranks_have_their_parts_of_adapters(family, tmp_path):
    adapted = AdaptedText(*TEXT[family], tmp_path)
    generated = lambda pipe: [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=12)]  # noqa: E731
    split = rebuilt(adapted.engine, max_batch_size=8, tp_size=2, pp_size=2)
    found = with_followers(split, RuntimeConfig(device="cpu", lora=adapted.lora), generated)
    assert found == [adapted.tokens(*case, 12) for case in adapted.cases]


def test_encodings_are_of_their_adapters(tmp_path):
    adapted = AdaptedText(*TEXT["t5"], tmp_path)
    found = adapted.pipeline().encode(adapted.inputs, hidden_states=True)
    for (name, text), encoding in zip(adapted.cases, found, strict=True):
        with adapted.active(name) as model:
            want = model.encoder(torch.tensor([text])).last_hidden_state[0]
        torch.testing.assert_close(encoding.last_hidden_state, want, atol=1e-4, rtol=1e-4)


class AdaptedVision(Adapted):
    """The same of a question about an image, whose rows stand at the beginning."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        pipe = self.pipeline()
        visual = pipe.llm.encoders.visual.config
        self.has_encoder = pipe.llm.encoders.encoder is not None
        self.rows, generator = visual.num_features, torch.Generator().manual_seed(1)
        self.images = torch.randn(2, 3, *visual.image_size, generator=generator)
        self.cases = [(name, image) for image in range(2) for name in self.names]

    @property
    def inputs(self):
        key = "encoder_input_ids" if self.has_encoder else "decoder_prompt_token_ids"
        ids = [*range(60, 60 + self.rows), *QUESTION]
        return [{key: ids, "pixel_values": self.images[[image]], "lora": name} for name, image in self.cases]

    def tokens(self, name, image, new):
        with self.active(name) as model:
            return answer(model, self.images[[image]], self.rows, new, has_encoder=self.has_encoder)


@torch.no_grad()
def answer(model, pixels, rows, new, *, has_encoder):
    """Hugging Face's tokens about an image of so many rows."""
    ids = torch.tensor([[59] * rows + QUESTION])
    options = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0, "max_new_tokens": new}
    inputs = {"input_ids": ids, "pixel_values": pixels, "attention_mask": torch.ones_like(ids)}
    out = model.generate(**inputs, **options)[0].tolist()[1 if has_encoder else ids.shape[1] :]
    return out[: out.index(2) + 1] if 2 in out else out


@pytest.mark.parametrize("family", VISION)
def test_rows_about_images_have_their_adapters(family, tmp_path):
    adapted = AdaptedVision(*VISION[family], tmp_path)
    want = [adapted.tokens(*case, 10) for case in adapted.cases]
    assert len(set(map(tuple, want))) > 5, "the adapters make no difference"
    pipe = adapted.pipeline(block_size=4)
    for _ in range(2):
        assert [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=10)] == want
    cache = pipe.llm.encoders.encoder_cache  # an adapter leaves the visual network as it is: all share its features
    assert cache.misses == len(adapted.images)


@pytest.mark.parametrize("family", ["gpt2", "llava", "blip2-t5"])
def test_merged_weights_are_those_of_both(family, tmp_path):
    """Of visual networks, too; what is merged is split among ranks and built as any other model."""
    model = (TEXT | VISION)[family][0]()
    model.save_pretrained(tmp_path / "hf")
    config = LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False, fan_in_fan_out=family == "gpt2")
    peft = get_peft_model(model, config).eval()
    peft.save_pretrained(tmp_path / "adapter")
    plain = convert_model(tmp_path / "hf", tmp_path / "plain")
    for source in (tmp_path / "hf", plain):
        merged = convert_model(source, tmp_path / "merged", merge_lora=tmp_path / "adapter")
        pipe = Pipeline(build_engine(Checkpoint.open(merged), tmp_path / "engine", BuildConfig()), CPU)
        if family == "gpt2":
            [prompt] = tiny.prompts(model, (9,))
            assert pipe.generate({"input_ids": prompt}, max_new_tokens=8).token_ids == tiny.hf_continued(
                model, prompt, 8
            )
            continue
        vision, has_encoder = pipe.llm.encoders.visual.config, pipe.llm.encoders.encoder is not None
        pixels = torch.randn(1, 3, *vision.image_size, generator=torch.Generator().manual_seed(1))
        ids = [*range(60, 60 + vision.num_features), *QUESTION]
        key = "encoder_input_ids" if has_encoder else "decoder_prompt_token_ids"
        found = pipe.generate({key: ids, "pixel_values": pixels}, max_new_tokens=8).token_ids
        assert found == answer(model, pixels, vision.num_features, 8, has_encoder=has_encoder)


@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_come_and_go_while_others_run(family, ranks, tmp_path):
    """In as few slots as there are adapters at once: the blocks and the matrices of one are never another one's."""
    adapted = AdaptedText(*TEXT[family], tmp_path)
    folders = dict(each.split("=", 1) for each in adapted.lora)
    [text, _] = adapted.texts

    def run(pipe: Pipeline) -> list[list[int]]:
        source, found = {adapted.key: text}, []
        tokens = lambda name: pipe.generate(source, max_new_tokens=12, lora=name).token_ids  # noqa: E731
        pipe.load_lora("narrow", folders["narrow"])
        found.append(tokens("narrow"))
        running = pipe.llm.add(pipe.request(source, max_new_tokens=12, lora="narrow"))
        updates = pipe.llm.step()
        pipe.unload_lora("narrow")
        with pytest.raises(InputError, match="there is no adapter 'narrow'"):
            pipe.request(source, lora="narrow")
        with pytest.raises(LimitError, match="there is room for 1 adapter at once; unload one"):
            pipe.load_lora("wide", folders["wide"])  # the other one is still in use
        while pipe.llm.has_work:
            updates += pipe.llm.step()
        found += [u.completion.token_ids for u in updates if u.request_id == running and u.completion]
        pipe.load_lora("wide", folders["wide"])  # more layers than there was room for in their banks
        found += [tokens("wide"), tokens(None)]
        with pytest.raises(InputError, match="there is an adapter 'wide' already"):
            pipe.load_lora("wide", folders["wide"])
        return found

    runtime = RuntimeConfig(device="cpu", block_size=4, burst=2, max_loras=1)
    if ranks == 1:
        found = run(Pipeline(adapted.engine, runtime))
    else:
        found = with_followers(rebuilt(adapted.engine, max_batch_size=8, tp_size=2), runtime, run)
    assert found == [adapted.tokens(name, text, 12) for name in ("narrow", "narrow", "wide", BASE)]
