"""Files of tensors: made ahead in threads, the same bytes each time, read by the library of the format."""

from __future__ import annotations

import hashlib
import threading

import pytest
import torch
from safetensors.torch import load_file

from vlm.artifacts import read_ahead as module
from vlm.artifacts.read_ahead import read_ahead
from vlm.artifacts.weights import CODES, TensorSource, write_hashed


def test_results_come_in_order_and_a_few_are_under_way():
    waiting, most, lock = set[str](), [0], threading.Lock()

    def read(name: str) -> str:
        with lock:
            waiting.add(name)
            most[0] = max(most[0], len(waiting))
        return name

    names = [f"t{i}" for i in range(100)]
    found = []
    for result in read_ahead(read, ((name, 10) for name in names)):
        with lock:
            waiting.discard(result)
        found.append(result)
    assert found == names and most[0] <= module.THREADS + 2


def test_large_ones_wait_for_their_turn(monkeypatch):
    monkeypatch.setattr(module, "AHEAD_BYTES", 100)
    begun: list[str] = []
    results = read_ahead(lambda name: begun.append(name) or name, ((name, 90) for name in "abcd"))
    assert next(results) == "a" and begun == ["a"], "the second would be beyond the limit"
    assert list(results) == ["b", "c", "d"]


def test_an_error_comes_in_its_turn():
    def read(name: str) -> str:
        if name == "c":
            raise ValueError(name)
        return name

    found = []
    with pytest.raises(ValueError, match="c"):
        for result in read_ahead(read, ((name, 1) for name in "abcd")):
            found.append(result)
    assert found == ["a", "b"]


def test_every_tensor_starts_at_a_multiple_of_its_element(tmp_path):
    torch.manual_seed(0)
    shapes = [(3,), (), (0, 4), (8, 8), (7, 5), (2, 3, 4)]
    tensors = {
        f"{code}.{number}": (torch.randn(shape) * 9).to(dtype)
        for number, shape in enumerate(shapes)
        for dtype, code in CODES.items()
    }
    counts: list[int] = []
    written = write_hashed(tmp_path / "a.safetensors", TensorSource.from_tensors(tensors), counts.append)
    content = (tmp_path / "a.safetensors").read_bytes()
    assert written == {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    assert sum(counts) == sum(t.nbytes for t in tensors.values())
    found = load_file(tmp_path / "a.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].data_ptr() % tensor.itemsize == 0
        assert torch.equal(found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), name
    again = write_hashed(tmp_path / "b.safetensors", TensorSource.from_tensors(dict(reversed(tensors.items()))))
    assert again == written
