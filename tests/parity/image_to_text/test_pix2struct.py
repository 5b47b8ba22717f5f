"""Pix2Struct against Hugging Face, FP32 on the CPU: patches, tokens and logits of pictures of any shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.kits.models import tiny
from tests.kits.models.adapted import Adapted
from tests.kits.models.engines import engine_dir, pipeline
from tests.kits.ranks import with_followers
from tests.parity.adapters.test_ia3 import ia3, lora
from tests.parity.adapters.test_merged_adapters import merged, tuned
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError, InputError
from vlm_app.reference.huggingface import flattened

NEW, END = 14, 1
SHAPES = {
    "own head": {},
    "tied, relu, wide heads": {"tie_word_embeddings": True,
                               "text": {"dense_act_fn": "relu", "d_kv": 16, "num_heads": 2},
                               "tower": {"dense_act_fn": "relu", "d_kv": 20, "layer_norm_eps": 1e-3}},
    "few buckets": {"text": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
                             "layer_norm_epsilon": 1e-3}},
}  # fmt: skip
SIZES = ((16, 24), (32, 32), (4, 40), (60, 4), (4, 4), (28, 36))  # (height, width); sides of patches are 4


def padded_patches(image: Tensor) -> dict[str, Tensor]:
    """Returns those of an image [3, H, W] as Hugging Face's processor gives them."""
    given = flattened(image[None], 4)
    gap = 64 - given["flattened_patches"].shape[1]
    return {name: pad(rows, (0, 0, 0, gap) if rows.ndim == 3 else (0, gap)) for name, rows in given.items()}


@torch.no_grad()
def tokens_of(model, image: Tensor, new: int = NEW, **options) -> list[int]:
    """Returns Hugging Face's, start token removed, up to and with the end token."""
    ids = model.generate(**padded_patches(image), max_new_tokens=new, do_sample=False, **options)[0, 1:]
    return tiny.up_to_end(ids.tolist(), END)


class Case:
    """A model, its engine, and images of several shapes."""

    def __init__(self, folder, seed: int = 1, **options):
        self.model = tiny.pix2struct(seed=seed, **options)
        self.engine = engine_dir(self.model, folder, max_batch_size=4)
        generator = torch.Generator().manual_seed(3)
        self.images = [torch.randn(3, *size, generator=generator) for size in SIZES]
        self.inputs = [{"pixel_values": image} for image in self.images]

    def pipe(self, **options) -> Pipeline:
        return Pipeline(self.engine, RuntimeConfig(device="cpu", **options))

    def tokens(self, image: Tensor, new: int = NEW, **options) -> list[int]:
        return tokens_of(self.model, image, new, **options)

    @torch.no_grad()
    def rows(self, image: Tensor) -> Tensor:
        """Returns the encoder's rows that are no padding."""
        given = padded_patches(image)
        return self.model.encoder(**given).last_hidden_state[0, given["attention_mask"][0] > 0]

    def encoded(self, pipe: Pipeline) -> list[Tensor]:
        return [each.last_hidden_state for each in pipe.encode(self.inputs)]


@pytest.mark.parametrize("case", parity({"pix2struct": SHAPES}))
def test_logits_and_tokens(case, tmp_path):
    """A batch that is larger than the engine's, of images of all shapes."""
    subject = Case(tmp_path, **case.make)
    pipe = subject.pipe()
    assert pipe.family.name == case.family
    found = pipe.generate(subject.inputs, max_new_tokens=NEW, top_logprobs=20)
    assert [out.token_ids for out in found] == [subject.tokens(image) for image in subject.images]
    assert len({tuple(out.token_ids) for out in found}) > 3, "the images make no difference"
    for image, out in zip(subject.images, found, strict=True):
        ids = torch.tensor([[0, *out.token_ids[:-1]]])
        with torch.no_grad():
            exact = subject.model(**padded_patches(image), decoder_input_ids=ids).logits[0].log_softmax(-1)
        for got, want in zip(out.top_logprobs, exact, strict=True):
            torch.testing.assert_close(torch.tensor(list(got.values())), want[list(got)], atol=1e-4, rtol=0)
    for options in ({"num_beams": 4}, {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0}):
        found = pipe.generate(subject.inputs, max_new_tokens=NEW, **options)
        assert [out.token_ids for out in found] == [subject.tokens(image, **options) for image in subject.images]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return Case(tmp_path_factory.mktemp("pix2struct"), seed=2)


def test_rows_of_packed_images(case):
    """Several in a pass, and each alone."""
    for options in ({}, {"max_encoder_batch_size": 2}, {"max_encoder_tokens": 1}):
        for got, image in zip(case.encoded(case.pipe(**options)), case.images, strict=True):
            torch.testing.assert_close(got, case.rows(image), atol=1e-4, rtol=1e-5)


def test_any_mix_of_images_gives_the_tokens_of_one(case):
    pipe = case.pipe(burst=4, max_encoder_batch_size=2)
    limits = [20, 3, 14, 1, 12, 9]
    alone = [pipe.generate(one, max_new_tokens=limit) for one, limit in zip(case.inputs, limits, strict=True)]
    longest = [case.tokens(image, 20) for image in case.images]
    assert [out.token_ids for out in alone] == [ids[:limit] for ids, limit in zip(longest, limits, strict=True)]
    assert [out.token_ids for out in pipe.generate(case.inputs, max_new_tokens=20)] == longest


@pytest.mark.parametrize("split", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks(split, tmp_path):
    """They share images of several sizes, and the decoder's heads or layers."""
    case = Case(tmp_path)
    checkpoint = Checkpoint.open(tmp_path / "checkpoint")
    engine = build_engine(checkpoint, tmp_path / "split", BuildConfig(max_batch_size=4, **split))

    def results(pipe: Pipeline) -> tuple[list[Tensor], list[list[int]]]:
        return case.encoded(pipe), [out.token_ids for out in pipe.generate(case.inputs, max_new_tokens=NEW)]

    rows, tokens = with_followers(engine, RuntimeConfig(device="cpu"), results)
    for got, image in zip(rows, case.images, strict=True):
        torch.testing.assert_close(got, case.rows(image), atol=1e-4, rtol=1e-5)
    assert tokens == [case.tokens(image) for image in case.images]


def test_adapters(tmp_path):
    """LoRA and IA3 of the decoder, side by side."""
    decoder = r"decoder\..*\.({})"
    ends = [decoder.format(each) for each in ("key|value|wo", "wo", "query|wi_0|output")]
    kinds = {"ia3": ia3(target_modules=ends[0], feedforward_modules=ends[1]), "lora": lora(target_modules=ends[2])}
    adapted = Adapted(lambda: tiny.pix2struct(seed=2), kinds, tmp_path)
    images = [torch.randn(3, *size, generator=torch.Generator().manual_seed(3)) for size in SIZES[:2]]
    cases = [(name, image) for image in images for name in adapted.names]
    inputs = [{"pixel_values": image, "lora": name} for name, image in cases]
    found = [out.token_ids for out in adapted.pipeline(block_size=4).generate(inputs, max_new_tokens=NEW)]
    models = {name: getattr(model, "get_base_model", lambda: adapted.model)() for name, model in adapted.models.items()}
    assert found == [tokens_of(models[name], image) for name, image in cases] and len(set(map(tuple, found))) > 3


@pytest.mark.parametrize(
    "kind",
    [
        lora(target_modules="all-linear"),
        lora(target_modules="all-linear", use_dora=True),
        ia3(target_modules=["patch_projection"], feedforward_modules=["patch_projection"]),
    ],
    ids=["lora", "dora", "ia3"],
)
def test_an_adapter_of_the_encoder_is_merged(kind, tmp_path):
    """What multiplies pixels, too, whose values lie in another order here."""
    peft = tuned(lambda: tiny.pix2struct(seed=1), kind)
    peft.save_pretrained(tmp_path / "adapter")
    pipe = merged(tiny.pix2struct(seed=1), tmp_path / "adapter", tmp_path)
    images = [torch.randn(3, *size, generator=torch.Generator().manual_seed(3)) for size in SIZES[:3]]
    found = [out.token_ids for out in pipe.generate([{"pixel_values": each} for each in images], max_new_tokens=NEW)]
    assert found == [tokens_of(peft.get_base_model(), image) for image in images]
    assert found != [tokens_of(tiny.pix2struct(seed=1), image) for image in images]


@pytest.mark.parametrize("size", [(260, 4), (4, 256), (36, 32), (0, 4), (6, 8)], ids=str)
def test_sizes_out_of_range(case, size):
    with pytest.raises(InputError, match="multiples of 4, 64 patches of 4 × 4 at most"):
        case.pipe().generate(pixel_values=torch.zeros(3, *size))


def test_only_torch_encodes_any_size(case, tmp_path):
    checkpoint = Checkpoint.open(case.engine.path.parent / "checkpoint")
    with pytest.raises(ConfigError, match="images of several sizes are encoded by torch alone"):
        build_engine(checkpoint, tmp_path / "engine", BuildConfig(backend="onnxruntime"))


REFUSED = {
    "dense_act_fn": ({"text": {"dense_act_fn": "tanh"}}, "dense_act_fn is 'tanh'"),
    "heads": ({"text": {"d_kv": 4}}, r"hidden_size is 32, it must be num_heads · d_kv, 4 · 4"),
    "patches": ({"tower": {"patch_embed_hidden_size": 50}}, "patch_embed_hidden_size is 50, it must be 3 · side²"),
    "widths": ({"tower": {"hidden_size": 24}}, "but the rows of the images are 24 wide"),
}


@pytest.mark.parametrize(("options", "says"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_honour_is_refused_by_name(options, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        pipeline(tiny.pix2struct(**options), tmp_path)
