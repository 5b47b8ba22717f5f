"""Attention over an encoder's rows themselves: it computes what their keys and values do, in every engine that keeps
them. What its kernels compute tests/gpu shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.checkout import ROOT

pytest.importorskip("triton", reason="triton is not installed on this platform")
import vlm
from vlm.api.warm_up import warm_up
from vlm.config import RuntimeConfig
from vlm.executor import kv_cache
from vlm.executor.paged import waiting_kv
from vlm.executor.paged.cross_kv import CrossKV
from vlm.layers import attention
from vlm.layers.attention import CrossAttention
from vlm.layers.context import ModelContext
from vlm.layers.quant.int8 import Int8
from vlm.ops.attention.absorbed_attention import absorbed_attention, has_kernel
from vlm.ops.attention.paged_attention import paged_attention
from vlm.ops.attention_variant import AttentionVariant
from vlm.ops.kernels import absorbed_attention as kernels
from vlm.ops.kernels import nvrtc
from vlm.ops.layouts.paged_kv import HiddenRows, KVCache
from vlm.parallel.mapping import Mapping

EXAMPLES = ROOT / "examples"
PAGES = [{"images": [str(EXAMPLES / f"{name}.png")]} for name in ("page", "table", "math")]
TEXTS = [
    {"text": f"translate English to German: {text}"}
    for text in ("the red house", "a dog", "the old man sees the small bird in the garden")
]


@pytest.mark.parametrize("bias", [True, False])
def test_it_is_attention_over_keys_and_values(bias):
    torch.manual_seed(0)
    rows, heads, dim, width, block = 3, 4, 8, 32, 4
    tables = torch.randperm(18, dtype=torch.int32).view(3, 6)
    slots, lengths = torch.tensor([2, 0, 1], dtype=torch.int32), torch.tensor([24, 1, 9], dtype=torch.int32)
    weight, hidden = torch.randn(2 * heads * dim, width), torch.randn(18, block, width)
    added = torch.randn(len(weight)) if bias else None
    size = {"heads": heads, "block_size": block, "head_dim": dim, "dtype": torch.float32}
    kv = KVCache.zeros(range(1), 18, **size, device=torch.device("cpu")).layer(0)
    k, v = torch.nn.functional.linear(hidden, weight, added).unflatten(2, (2, heads, dim)).unbind(2)
    kv.keys.copy_(k.transpose(1, 2)), kv.values.copy_(v.transpose(1, 2))
    q = torch.randn(rows, heads, dim)
    found = absorbed_attention(q, weight, added, HiddenRows(hidden, tables, slots, lengths), 0.3)
    torch.testing.assert_close(found, paged_attention(q, kv, tables, slots, lengths, 0.3), rtol=1e-5, atol=1e-5)


@pytest.fixture
def absorbing(monkeypatch) -> list[int]:
    """Has every engine attend to encoders' rows from the first one on; the list is of how many rows did each time."""
    met: list[int] = []

    def noted(q: Tensor, *where) -> Tensor:
        met.append(len(q))
        return absorbed_attention(q, *where)

    monkeypatch.setattr(kv_cache, "has_kernel", lambda *_, block_size: True)
    monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", 1)
    monkeypatch.setattr(attention, "absorbed_attention", noted)
    return met


def answers(model: str, cache: Path, inputs: list[dict], runtime: RuntimeConfig, **sampling) -> list[list[int]]:
    pipeline = vlm.load(model, cache_dir=cache, runtime=runtime)
    return [out.token_ids for out in pipeline.generate(inputs, max_new_tokens=24, **sampling)]


@pytest.mark.parametrize(
    ("model", "inputs", "options", "sampling"),
    [
        ("mini-t5", TEXTS, {}, {}),
        ("mini-t5", TEXTS, {}, {"num_beams": 3}),
        ("mini-t5", TEXTS, {"num_speculative_tokens": 3}, {}),
        ("mini-nougat", PAGES, {"max_batch_size": 2, "block_size": 8}, {}),
    ],
)
def test_engines_give_the_same_tokens(model, inputs, options, sampling, tmp_path_factory, absorbing, monkeypatch):
    cache, runtime = tmp_path_factory.getbasetemp() / "absorbed-cache", RuntimeConfig(device="cpu", **options)
    found = answers(model, cache, inputs, runtime, **sampling)
    assert absorbing
    monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", 10**9)
    absorbing.clear()
    assert found == answers(model, cache, inputs, runtime, **sampling) and not absorbing


def test_sequences_that_are_preempted_have_their_rows_again(tmp_path_factory, absorbing):
    cache, settings = tmp_path_factory.getbasetemp() / "absorbed-cache", {"max_new_tokens": 80, "ignore_eos": True}
    texts = [{"text": f"{text['text']} and {number}"} for number in range(3) for text in TEXTS][:8]
    whole = vlm.load("mini-t5", cache_dir=cache, device="cpu").generate(texts, **settings)
    few = vlm.load("mini-t5", cache_dir=cache, runtime=RuntimeConfig(device="cpu", max_kv_blocks=64))
    preempted, preempt = [], few.llm.scheduler._preempt

    def noted(sequence, plan):
        preempted.append(sequence.id)
        preempt(sequence, plan)

    few.llm.scheduler._preempt = noted
    found = few.generate(texts, **settings)
    assert preempted and [out.token_ids for out in found] == [out.token_ids for out in whole]


@pytest.fixture
def waiting(monkeypatch) -> list[int]:
    """Has keys and values of every pass wait; the list is of how many sequences' were computed after all."""
    written: list[int] = []
    write = CrossKV._write_kv

    def noted(self: CrossKV, sequences) -> None:
        written.append(len(sequences))
        write(self, sequences)

    monkeypatch.setattr(waiting_kv, "LONG_ROWS", 0)
    monkeypatch.setattr(CrossKV, "_write_kv", noted)
    return written


class TestKeysAndValuesThatWait:
    """What steps that attend to encoders' rows themselves do not read is computed for those that do."""

    def runs(self, tmp_path_factory, inputs: list[dict], *, model: str = "mini-t5", **sampling) -> list[list[int]]:
        cache = tmp_path_factory.getbasetemp() / "absorbed-cache"
        return answers(model, cache, inputs, RuntimeConfig(device="cpu"), **sampling)

    @pytest.mark.parametrize("sampling", [{}, {"num_beams": 3}])
    def test_nobody_computes_them_where_nobody_reads_them(self, sampling, tmp_path_factory, absorbing, waiting):
        whole = self.runs(tmp_path_factory, TEXTS, **sampling)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CrossAttention, "write", None)  # which would be a call of None
            assert self.runs(tmp_path_factory, TEXTS, **sampling) == whole
        assert not waiting and absorbing

    def test_they_are_computed_once_a_step_reads_them(self, tmp_path_factory, absorbing, waiting, monkeypatch):
        """As soon as one of three texts has ended the others are too few rows to attend to."""
        monkeypatch.setattr(waiting_kv, "LONG_ROWS", 10**9)
        whole = self.runs(tmp_path_factory, TEXTS)
        assert len({len(tokens) for tokens in whole}) > 1 and not waiting
        monkeypatch.setattr(waiting_kv, "LONG_ROWS", 0)
        pipeline = vlm.load("mini-t5", cache_dir=tmp_path_factory.getbasetemp() / "absorbed-cache", device="cpu")
        rows = [len(pipeline.request(text).encoder_input_ids or ()) for text in TEXTS]
        least = pipeline.config.hidden_size * (sum(rows) - min(rows) + 1)
        monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", least)
        assert self.runs(tmp_path_factory, TEXTS) == whole
        assert waiting and sum(waiting) < len(TEXTS)

    def test_those_of_short_texts_do_not_wait(self, tmp_path_factory, absorbing, waiting, monkeypatch):
        """Steps read them even where every slot has a text as long as these."""
        cache = tmp_path_factory.getbasetemp() / "absorbed-cache"
        pipeline = vlm.load("mini-t5", cache_dir=cache, device="cpu")
        longest = max(len(pipeline.request(text).encoder_input_ids or ()) for text in TEXTS)
        most = pipeline.llm.limits.max_batch_size * longest
        monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", pipeline.config.hidden_size * most + 1)
        pipeline.generate(TEXTS, max_new_tokens=4)
        assert pipeline.llm.executor.runner.keeps_hidden_rows and not waiting and not absorbing

    def test_prompts_read_them(self, tmp_path_factory, absorbing, waiting):
        texts = [{**text, "decoder_prompt_token_ids": [0, *range(5, 5 + 2 * n)]} for n, text in enumerate(TEXTS)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(waiting_kv, "LONG_ROWS", 10**9)
            whole = self.runs(tmp_path_factory, texts)
        assert self.runs(tmp_path_factory, texts) == whole
        assert waiting == [2]  # one has no prompt

    def test_what_has_ended_is_forgotten(self, tmp_path_factory, absorbing, waiting):
        cache = tmp_path_factory.getbasetemp() / "absorbed-cache"
        pipeline = vlm.load("mini-t5", cache_dir=cache, device="cpu")
        for _ in range(3):
            pipeline.generate(TEXTS, max_new_tokens=4)
        waiting_kv = pipeline.llm.executor.runner.cross_kv.waiting
        assert len(waiting_kv._sequences) == len(TEXTS) and not waiting_kv.take()


def test_an_engine_whose_batches_are_too_small_keeps_no_rows(tmp_path_factory, absorbing, monkeypatch):
    monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", 8 * 512 * 10**4)
    pipeline = vlm.load("mini-t5", cache_dir=tmp_path_factory.getbasetemp() / "absorbed-cache", device="cpu")
    assert not pipeline.llm.executor.runner.keeps_hidden_rows


def test_keys_and_values_of_8_bits_are_as_few_bytes(tmp_path_factory, absorbing):
    cache = tmp_path_factory.getbasetemp() / "absorbed-cache"
    answers("mini-t5", cache, TEXTS, RuntimeConfig(device="cpu", kv_cache_dtype="int8"))
    assert not absorbing


def layer(**options) -> CrossAttention:
    context = options.pop("context", ModelContext())
    return CrossAttention(64, 4, 0, context=context, **options)


def test_which_layers_can():
    assert layer().absorbs and layer(encoder_size=96).absorbs
    quantized = layer()
    quantized.kv.keep(Int8())
    for other in (
        quantized,
        layer(num_kv_heads=2),
        layer(encoder_size=128),
        layer(variant=AttentionVariant(softcap=5.0)),
        layer(context=ModelContext(Mapping(tp=2))),
    ):
        assert not other.absorbs


def test_the_cpu_has_no_kernel():
    assert not has_kernel(16, 64, 1024, torch.bfloat16, torch.device("cpu"), block_size=16)


def test_room_is_counted_with_the_blocks(tmp_path_factory, absorbing, monkeypatch):
    sizes, plan = [], kv_cache.plan_cache

    def noted(*args, **options):
        sizes.append(options["hidden_size"])
        return plan(*args, **options)

    monkeypatch.setattr(kv_cache, "plan_cache", noted)
    answers("mini-t5", tmp_path_factory.getbasetemp() / "absorbed-cache", TEXTS[:1], RuntimeConfig(device="cpu"))
    [size] = sizes
    config = vlm.load("mini-t5", cache_dir=tmp_path_factory.getbasetemp() / "absorbed-cache", device="cpu").config
    with_rows, without = (
        kv_cache.block_bytes(config, 16, torch.bfloat16, Mapping(), hidden_size=each) for each in (size, 0)
    )
    assert with_rows == without + 16 * 2 * config.hidden_size


def test_warming_up_meets_both_kinds_of_steps(tmp_path_factory, absorbing, monkeypatch):
    pipeline = vlm.load("mini-t5", cache_dir=tmp_path_factory.getbasetemp() / "absorbed-cache", device="cpu")
    longest = pipeline.llm.limits.max_encoder_input_len
    monkeypatch.setattr(kv_cache, "ABSORBED_NUMBERS", 4 * longest * pipeline.config.hidden_size)
    warm_up(pipeline)
    assert {4, 8} == set(absorbing)  # of 1, 2, 4 and 8 rows


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("x_type", (0, 1))
@pytest.mark.parametrize(("heads", "width"), [(16, 1024), (12, 768), (3, 256)])
def test_its_kernel_compiles(heads, width, x_type):
    size = {"HEADS": heads, "WIDTH": width, "BLOCK": 16, "STAGES": kernels.STAGES}
    for splits in (1, 2, 4):
        values = size | {"SPLITS": splits, "X_TYPE": x_type}
        assert nvrtc.compiled("absorbed_attention.cu", tuple(sorted(values.items())), "sm_90a")[:4] == b"\x7fELF"


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize(("heads", "width", "x_type"), [(32, 1024, 0), (32, 1024, 1), (24, 512, 1)])
def test_its_kernel_of_two_programs_a_row_compiles(heads, width, x_type):
    size = {"HEADS": heads, "WIDTH": width, "BLOCK": 16, "STAGES": kernels.PAIR_STAGES, "WARPS": kernels.PAIR_WARPS}
    values = size | {"X_TYPE": x_type}
    assert nvrtc.compiled("absorbed_pair.cu", tuple(sorted(values.items())), "sm_90a")[:4] == b"\x7fELF"
    assert kernels.pair_shared_memory(heads, width) <= 227 * 1024


def test_two_programs_have_a_row_where_keys_and_values_are_far_wider():
    t5_3b, flan_t5_xl, bart_large = (32, 128, 1024), (32, 64, 2048), (16, 64, 1024)
    assert kernels.fits_pair(*t5_3b) and not kernels.fits_program(32, 1024)
    assert not kernels.fits_pair(*flan_t5_xl) and not kernels.fits_pair(*bart_large)
    assert not kernels.fits_pair(32, 64, 1024) and not kernels.fits_pair(48, 128, 1024)


def test_programs_share_a_context_where_processors_are_left():
    splits = {rows: kernels.num_splits(rows, 132) for rows in (1, 16, 17, 66, 67, 256)}
    assert splits == {1: 4, 16: 4, 17: 2, 66: 2, 67: 1, 256: 1}
