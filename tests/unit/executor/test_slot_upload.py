"""What the host tells the slots of a batch in one copy."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.executor.inputs.packing import PackedChunks, PackedInputs, PackedTexts, padded
from vlm.executor.state.slot_upload import SlotUpload, _fields
from vlm.requests.request import Request
from vlm.requests.sequence import PrefillChunk, Sequence

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64, torch.bool])
def test_each_type_is_written_as_torch_would(dtype):
    targets = [torch.zeros(7, dtype=dtype), torch.ones(7, 5, dtype=dtype)]
    expected = [target.clone() for target in targets]
    values = [[3, 0, 1], [[1, 2, 0], [0, 0, 1], [7, 1, 1]]]
    slots, upload = [4, 0, 6], SlotUpload([4, 0, 6], CPU)
    for target, value, want in zip(targets, values, expected, strict=True):
        upload.put(target, value)
        new = torch.tensor(value, dtype=dtype)
        (want if want.ndim == 1 else want[:, :3])[slots] = new
    upload.write()
    for target, want in zip(targets, expected, strict=True):
        assert torch.equal(target, want)


def test_seeds_of_63_bits_and_fractions_are_kept():
    seeds, fractions = torch.zeros(2, dtype=torch.int64), torch.zeros(2)
    upload = SlotUpload([1, 0], CPU)
    upload.put(seeds, [2**62 + 1, 5])
    upload.put(fractions, [0.1, -1e30])
    upload.write()
    assert seeds.tolist() == [5, 2**62 + 1] and torch.equal(fractions, torch.tensor([-1e30, 0.1]))


def test_a_kernel_can_write_all_that_an_admission_tells(tmp_path, monkeypatch):
    """With every kind of setting, and beams: rows of tensors that lie in one piece."""
    told = []

    def write(upload: SlotUpload) -> None:
        told.extend(_fields(*each, 0) for each in zip(upload._targets, upload._parts[1:], strict=True))
        write_one_by_one(upload)

    write_one_by_one = SlotUpload.write
    monkeypatch.setattr(SlotUpload, "write", write)
    engine = engine_dir(tiny.llama(seed=1), tmp_path, max_batch_size=6, max_seq_len=40)
    pipe = Pipeline(engine, RuntimeConfig(device="cpu", num_speculative_tokens=2))
    for settings in (
        {"loop_detection": True, "temperature": 0.8, "typical_p": 0.9, "exponential_decay_length_penalty": (3, 1.1)},
        {"num_beams": 3, "bad_words_ids": [[5]], "stop_token_ids": [7], "no_repeat_ngram_size": 2},
    ):
        assert pipe.generate({"decoder_prompt_token_ids": [3, 4, 5]}, max_new_tokens=4, **settings).token_ids
    assert len(told) > 60 and {size for *_, size in told} == {1, 4}
    assert all(width <= stride for _, width, stride, _, _ in told)


def test_a_slot_forgets_settings_that_few_requests_have(tmp_path):
    """What they set is written once any request has: a plain one after it finds nothing of it, in whatever slot."""
    engine = engine_dir(tiny.llama(seed=1), tmp_path, max_batch_size=3, max_seq_len=40)
    plain = {"max_new_tokens": 8, "ignore_eos": True}
    inputs = [{"decoder_prompt_token_ids": [3, 4, n]} for n in (5, 6, 7)]
    tokens = lambda pipe, **settings: [out.token_ids for out in pipe.generate(inputs, **plain | settings)]  # noqa: E731
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    want = tokens(pipe)
    for settings in (
        {"temperature": 1.3, "top_k": 3, "seed": 5},
        {"repetition_penalty": 9.0, "min_new_tokens": 5, "no_repeat_ngram_size": 1},
        {"forced_bos_token_id": 9, "forced_eos_token_id": 8},
        {"loop_detection": True},
        {"num_beams": 3},
    ):
        assert tokens(pipe, **settings) == tokens(Pipeline(engine, RuntimeConfig(device="cpu")), **settings)
        assert tokens(pipe) == want


def test_rows_of_different_lengths_are_padded():
    rows = [[1, 2], [], [3]]
    assert padded(rows, -1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    assert padded(rows, 0, 3).tolist() == [[1, 2, 0], [0, 0, 0], [3, 0, 0]]
    assert padded([[], []], 0).shape == (2, 0)


@pytest.mark.parametrize("padding_slot", [None, 9])
def test_rows_of_texts(padding_slot):
    inputs = PackedTexts.from_texts([(5, 6, 7), (8,)], [2, 4]).inputs(CPU, padding_slot).to_device(CPU)
    extra = 0 if padding_slot is None else len(inputs.token_ids) - 4
    assert inputs.token_ids.tolist() == [5, 6, 7, 8] + [0] * extra
    assert inputs.positions.tolist() == [0, 1, 2, 0] + [0] * extra
    assert inputs.slots.tolist() == [2, 2, 2, 4] + [9] * extra
    assert inputs.tiles.tolist() == [[0, 0, 3], [3, 3, 4]] and all(part.dtype == torch.int32 for part in inputs)


@pytest.mark.parametrize("padding_slot", [None, 9])
def test_rows_of_prompts(padding_slot):
    """The rows of two whole prompts' last tokens are named, not that of a chunk which another one follows."""
    lengths, ends = (3, 5, 2), (3, 4, 2)
    sequences = [Sequence(n, Request((7,) * n), 40, 0, [7] * n, slots=[n]) for n in lengths]
    prefills = [(s, PrefillChunk(0, 1, end)) for s, end in zip(sequences, ends, strict=True)]
    inputs = PackedChunks.from_prefills(prefills, 9).inputs(CPU, padding_slot).to_device(CPU)
    extra = 0 if padding_slot is None else len(inputs.token_ids) - 6
    assert inputs.positions.tolist() == [1, 2, 1, 2, 3, 1] + [0] * extra
    assert inputs.slots.tolist() == [3, 3, 5, 5, 5, 2] + [9] * extra
    assert inputs.ends.tolist() == [[1, 3], [5, 2]] + ([] if padding_slot is None else [[0, 9]] * 2)
    assert len(inputs.tiles) == (3 if padding_slot is None else 4)


def test_parts_of_one_copy_begin_where_kernels_were_compiled_for():
    inputs: PackedInputs = PackedTexts.from_texts([(5, 6, 7), (8,)], [2, 4]).to_device(CPU)
    first = inputs.token_ids.data_ptr()
    assert all((part.data_ptr() - first) % 16 == 0 for part in inputs)
