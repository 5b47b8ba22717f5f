from __future__ import annotations

import pytest
import torch

from vlm.convert.conversion import convert
from vlm.convert.rules import Apply, Drop, Fuse, Rename, Split, Transpose
from vlm.errors import CheckpointError


class Lazy(dict):
    """Counts the tensors read."""

    reads = 0

    def __getitem__(self, name):
        self.reads += 1
        return super().__getitem__(name)


def layers(count: int) -> dict[str, torch.Tensor]:
    return {
        f"l.{i}.{p}.weight": torch.full((2, 3), float(10 * i + j)) for i in range(count) for j, p in enumerate("qkv")
    }


def test_fuses_parts_in_order_for_each_layer():
    result = convert(layers(12), [Fuse("l.{}.{q,k,v}.weight", "b.{}.qkv")], {f"b.{i}.qkv": (6, 3) for i in range(12)})
    assert result["b.11.qkv"][:, 0].tolist() == [110, 110, 111, 111, 112, 112]


def test_fuses_along_another_dimension():
    source = {"a": torch.zeros(2, 1), "b": torch.ones(2, 2)}
    assert convert(source, [Fuse("{a,b}", "c", dim=1)], {"c": (2, 3)})["c"].tolist() == [[0, 1, 1]] * 2


def test_rules_of_every_kind():
    source = {
        "h.0.kv": torch.arange(8.0).reshape(4, 2),
        "w": torch.arange(6.0).reshape(2, 3),
        "p": torch.tensor([1.0, 2.0]),
        "mask": torch.ones(9),
    }
    rules = [
        Split("h.{}.kv", "b.{}.{k,v}"),
        Transpose("w", "w.t"),
        Apply("p", "p.flipped", lambda t: t.flip(0), "stored last first"),
        Drop("mask", "computed"),
    ]
    result = convert(source, rules, {"b.0.k": (2, 2), "b.0.v": (2, 2), "w.t": (3, 2), "p.flipped": (2,)})
    assert result["b.0.v"].tolist() == [[4, 5], [6, 7]]
    assert result["w.t"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert result["p.flipped"].tolist() == [2, 1]


def test_a_name_is_matched_whole_and_its_dots_are_dots():
    source = {"a.b": torch.zeros(1), "aXb": torch.zeros(1), "a.b.c": torch.zeros(1)}
    rules = [Rename("a.b", "x"), Drop("aXb", "other"), Drop("a.b.c", "other")]
    assert list(convert(source, rules, {"x": (1,)})) == ["x"]


def test_every_reason_is_collected_in_the_sources_names():
    source = layers(2) | {"stray": torch.zeros(1), "bias": torch.zeros(5), "l.7.norm": torch.zeros(1)}
    del source["l.1.k.weight"]
    rules = [
        Fuse("l.{}.{q,k,v}.weight", "b.{}.qkv"),
        Rename("bias", "b.bias"),
        Rename("l.{}.norm", "b.{}.norm", optional=True),
        Rename("scale", "b.scale"),
    ]
    targets = {"b.0.qkv": (6, 3), "b.1.qkv": (6, 3), "b.bias": (4,), "b.0.norm": (1,), "b.scale": (1,), "b.new": (1,)}
    with pytest.raises(CheckpointError) as caught:
        convert(source, rules, targets)
    text = str(caught.value)
    assert "missing tensors l.1.k.weight, l.0.norm, scale, for b.new" in text
    assert "unexpected tensors stray, l.7.norm" in text
    assert "bias: shape [5] should be [4]" in text


@pytest.mark.parametrize(
    ("source", "rules", "reason"),
    [
        ({"q": torch.zeros(2, 3), "k": torch.zeros(2, 4)}, [Fuse("{q,k}", "t")], "cannot be joined along 0"),
        ({"q": torch.zeros(2), "k": torch.zeros(())}, [Fuse("{q,k}", "t")], "cannot be joined along 0"),
        ({"a": torch.zeros(2, 3, 4)}, [Transpose("a", "t")], "is no matrix"),
        ({"a": torch.zeros(3)}, [Split("a", "{t,u}")], "has no 2 equal parts"),
        ({"a": torch.zeros(3)}, [Apply("a", "t", lambda x: x.reshape(2, 2), "test")], "invalid for input of size 3"),
        ({"a": torch.zeros(3)}, [Rename("a", "t"), Drop("a", "twice")], "a is used by 2 rules"),
        ({"a": torch.zeros(3, dtype=torch.int8)}, [Rename("a", "t")], r"a: torch.int8 is no type that weights have"),
        ({"a": torch.zeros(3) * 1j}, [Rename("a", "t")], r"a: torch.complex64 is no type that weights have"),
        ({"a": torch.zeros(3), "b": torch.zeros(3)}, [Rename("a", "t"), Rename("b", "t")], "t is filled by 2 rules"),
    ],
)
def test_tensors_that_do_not_fit_a_rule(source, rules, reason):
    with pytest.raises(CheckpointError, match=reason):
        convert(source, rules, {"t": (3,)} | ({"u": (3,)} if isinstance(rules[0], Split) else {}))


def test_a_rule_without_a_match_is_an_error_unless_optional():
    source = {"a": torch.zeros(1)}
    with pytest.raises(CheckpointError, match="missing tensors gone"):
        convert(source, [Rename("a", "a"), Drop("gone", "unused")], {"a": (1,)})
    convert(source, [Rename("a", "a"), Drop("gone", "unused", optional=True)], {"a": (1,)})


@pytest.mark.parametrize("kind", [Rename, Transpose])
def test_optional_is_known_to_every_rule(kind):
    assert convert({}, [kind("a", "b", optional=True), Fuse("{c,d}", "e", optional=True)], {}) == {}


def test_a_tied_duplicate_must_be_one():
    rules = [Rename("embed", "e"), Drop("head", "tied", same_as="embed", optional=True)]
    embed = torch.arange(3.0)
    assert list(convert({"embed": embed}, rules, {"e": (3,)})) == ["e"]
    assert list(convert({"embed": embed, "head": embed.clone()}, rules, {"e": (3,)})) == ["e"]
    with pytest.raises(CheckpointError, match="head: differs from embed"):
        convert({"embed": embed, "head": embed + 1}, rules, {"e": (3,)})


def test_reads_each_tensor_once_and_dropped_ones_never():
    source = Lazy(layers(2) | {"mask": torch.zeros(1)})
    convert(
        source,
        [Fuse("l.{}.{q,k,v}.weight", "b.{}.qkv"), Drop("mask", "computed")],
        dict.fromkeys(["b.0.qkv", "b.1.qkv"], (6, 3)),
    )
    assert source.reads == 6


def test_patterns_that_cannot_work_are_refused_when_written():
    with pytest.raises(ValueError, match="one list of parts"):
        Fuse("{a,b}.{c,d}", "x")
    with pytest.raises(ValueError, match="more indices"):
        Rename("a.{}", "b.{}.{}")
