"""Every registered network: each matrix product is a Linear's, whose parts say what its result is made of."""

from __future__ import annotations

import ast
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import llm_engines
import visual_engines
import vlm.layers
from vlm.convert.roles import role_configs
from vlm.errors import ConfigError
from vlm.executor.kv_cache import CacheShape, allocate, block_bytes
from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.adapters.ia3 import Ia3Weights
from vlm.layers.attention import Attention, CrossAttention, SelfAttention
from vlm.layers.context import ModelContext
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import Head, TiedHead
from vlm.layers.linear import Linear
from vlm.layers.metadata.base import AttentionMetadata
from vlm.layers.quant.base import ParameterSpec
from vlm.layers.relative_bias import RelativeBias
from vlm.parallel.mapping import Mapping, Shard
from vlm.registry.catalogs import families, installed, model_spec
from vlm.registry.weights.adapters import put_adapter
from vlm.requests.adapters import NO_ADAPTER

NETWORKS = sorted(ref.name for catalog in installed() for ref in catalog.MODELS)
DECODERS = ["bart", "gpt2", "llama", "opt", "t5"]
TWO = ModelContext(mapping=Mapping(tp=2, rank=1))


@functools.cache
def published(network: str) -> dict[str, Any]:
    """Returns its configurations of all published shapes, by the shape's name."""
    roles = [(family, name) for family in families().values() for name, r in family.roles.items() if r.model == network]
    shapes = [(shape, hf, family, role) for family, role in roles for shape, hf in family.architectures.items()]
    return {shape: role_configs(family, hf())[role] for shape, hf, family, role in shapes}


@functools.cache
def skeletons(network: str) -> dict[str, nn.Module]:
    return {shape: model_spec(network).skeleton(config) for shape, config in published(network).items()}


@pytest.mark.parametrize("network", NETWORKS)
def test_every_product_is_a_linear(network):
    built = skeletons(network)
    assert built
    for module in (module for whole in built.values() for module in whole.modules()):
        assert not isinstance(module, nn.Linear)
        if isinstance(module, Linear):
            assert module.weight.shape == (sum(module.part_sizes.values()), module.in_features)


@pytest.mark.parametrize("network", DECODERS)
def test_heads_are_modules(network):
    for shape, whole in skeletons(network).items():
        config = whole.config
        assert isinstance(whole.head, TiedHead if config.tied else Head), shape
        assert whole.head.weight.shape == (config.vocab_size, config.embedding_size)
        assert ("head.weight" in whole.state_dict()) != config.tied


@pytest.mark.parametrize("network", DECODERS)
def test_a_rank_of_two_has_half_of_what_is_split(network):
    """Sizes and counts come from the Linear layers: nothing else knows how many ranks there are."""
    for shape, config in published(network).items():
        if config.num_heads % 2 or config.num_kv_heads % 2:
            continue  # below
        whole, half = skeletons(network)[shape], model_spec(network).skeleton(config, TWO)
        for (name, all_of_it), part in zip(whole.named_modules(), half.modules(), strict=True):
            if isinstance(part, CrossAttention):
                assert tuple(2 * n for n in part.kv_heads) == all_of_it.kv_heads
                assert 2 * part.q.out_features == all_of_it.q.out_features
            elif isinstance(part, Attention):
                assert tuple(2 * n for n in part.qkv_heads) == all_of_it.qkv_heads, (shape, name)
            if isinstance(part, Attention):
                assert 2 * part.out.in_features == all_of_it.out.in_features
            if isinstance(part, FeedForward):
                assert {n: 2 * size for n, size in part.up.part_sizes.items()} == all_of_it.up.part_sizes
                assert 2 * part.down.in_features == all_of_it.down.in_features
            if isinstance(part, RelativeBias):
                assert 2 * part.embedding_dim == all_of_it.embedding_dim


def sources() -> list[Path]:
    folders = [Path(package.__path__[0]) for package in (llm_engines, visual_engines, vlm.layers)]
    return [path for folder in folders for path in sorted(folder.rglob("*.py")) if path.parent.name != "quant"]


@pytest.mark.parametrize("path", sources(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_multiplies_past_the_layers(path):
    """What calls the op itself is a LinearMethod, of vlm.layers.quant."""
    found = [ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if _multiplies(node)]
    assert not found


def _multiplies(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "vlm.ops.products.linear" or any(name.name == "linear" for name in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("F.linear", "nn.functional.linear", "nn.Linear")


# --- the layer itself ---
def linear(*sizes, context: ModelContext | None = None, **options) -> Linear:
    torch.manual_seed(0)
    layer = Linear(*sizes, context=context or ModelContext(), **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer.requires_grad_(False)


def test_parts_lie_side_by_side():
    layer, x = linear(5, {"q": 4, "k": 2, "v": 2}), torch.randn(3, 5)
    y = layer(x)
    assert layer.out_features == 8 and list(layer.state_dict()) == ["weight", "bias"]
    torch.testing.assert_close(y, x @ layer.weight.t() + layer.bias)
    assert [part.shape[1] for part in y.split(list(layer.part_sizes.values()), 1)] == [4, 2, 2]


def test_any_number_of_leading_dimensions():
    layer, x = linear(5, 3), torch.randn(1, 2, 5)
    torch.testing.assert_close(layer(x)[0], layer(x[0]))


@pytest.mark.parametrize("axis", ["column", "row", None])
def test_what_an_axis_splits(axis):
    layer = linear(6, {"a": 4, "b": 2}, context=TWO, axis=axis)
    assert layer.in_features == (3 if axis == "row" else 6)
    assert layer.part_sizes == ({"a": 2, "b": 1} if axis == "column" else {"a": 4, "b": 2})


@pytest.mark.parametrize(
    ("total", "units", "size", "places"),
    [
        (10, None, 2, [(0, 5), (5, 10)]),
        (10, None, 4, [(0, 3), (3, 6), (6, 8), (8, 10)]),
        (100, 25, 2, [(0, 52), (52, 100)]),  # GPT-2 XL's heads
        (8, 2, 4, [(0, 4), (0, 4), (4, 8), (4, 8)]),  # two heads of keys for four ranks
        (4, 1, 3, [(0, 4)] * 3),
    ],
)
def test_ranks_have_whole_pieces(total, units, size, places):
    found = [Shard(rank, size).place(total, units) for rank in range(size)]
    assert [(place.start, place.stop) for place in found] == places
    assert [Shard(rank, size).share(total, units) for rank in range(size)] == [b - a for a, b in places]


def test_sizes_that_cannot_be_split_are_refused():
    with pytest.raises(ConfigError, match="1 cannot be split among 2 ranks; run the model on fewer GPUs"):
        linear(6, {"a": 4, "b": 1}, context=TWO, axis="column")
    with pytest.raises(ConfigError, match="2 cannot be split among 3 ranks"):
        Shard(0, 3).place(8, 2)
    with pytest.raises(
        ConfigError, match=r"a layer whose heads or groups are 2 .* fewer GPUs: tp_size 2 at most"
    ) as told:
        Shard(0, 3).place(8, 2)
    assert told.value.settings == ("tp_size",)
    with pytest.raises(ValueError, match="rank 2 does not exist"):
        Mapping(tp=2, rank=2)


def test_ranks_stand_on_a_grid():
    """Two pipeline stages of three ranks each."""
    grid = [Mapping(tp=3, pp=2, rank=rank) for rank in range(6)]
    assert [(each.stage.rank, each.shard.rank) for each in grid] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [list(each.stage_ranks) for each in grid] == [[0, 1, 2]] * 3 + [[3, 4, 5]] * 3
    assert [list(each.pipeline_ranks) for each in grid] == [[0, 3], [1, 4], [2, 5]] * 2
    assert [each.layers(5) for each in grid] == [range(3)] * 3 + [range(3, 5)] * 3
    with pytest.raises(
        ConfigError, match="a network of 1 layer cannot be cut into 2 pipeline stages; build with pp_size 1"
    ):
        grid[0].layers(1)


def test_pairs_of_a_stage_s_ranks_have_the_whole_encoder():
    grid = [Mapping(tp=4, pp=2, rank=rank, encoder_tp=2) for rank in range(8)]
    assert [list(each.groups["encoder"]) for each in grid] == [[n, n + 1] for n in (0, 0, 2, 2, 4, 4, 6, 6)]
    assert [each.of_role("encoder") for each in grid] == [Mapping(2, 2, part) for part in (0, 1, 0, 1, 2, 3, 2, 3)]
    assert [each.of_role("decoder").rank for each in grid] == list(range(8))
    assert {each.of_role("visual") for each in grid} == {Mapping()}
    assert "encoder" not in Mapping(4).groups and Mapping(4, rank=3).of_role("encoder") == Mapping(4, rank=3)


def test_a_head_is_not_split():
    """One head of keys for all of queries: its 4 rows could be halved, but both ranks have the whole head."""
    attention = SelfAttention(8, 2, 0, num_kv_heads=1, context=TWO)
    assert attention.qkv_heads == (1, 1, 1) and attention.out.in_features == 4
    assert attention.qkv.rows == [slice(4, 8), slice(8, 12), slice(12, 16)]
    odd = SelfAttention(12, 3, 0, context=TWO)
    assert odd.qkv_heads == (1, 1, 1) and odd.out.columns == slice(8, 12)
    with pytest.raises(ConfigError, match="an attention layer of 3 heads of queries and 1 of keys cannot be split"):
        SelfAttention(12, 3, 0, num_kv_heads=1, context=TWO)


def test_a_rank_holds_the_keys_of_its_heads():
    config = next(iter(published("llama").values()))
    shape, kind = CacheShape(2, 0, 1, 0), {"dtype": torch.float32, "device": torch.device("cpu")}
    mappings = (Mapping(), TWO.mapping)
    whole, half = (allocate(config, shape, 4, mapping=each, **kind).layer(0).keys.shape for each in mappings)
    assert half[1] * 2 == whole[1] == config.num_kv_heads
    assert 2 * block_bytes(config, 4, torch.float32, mappings[1]) == block_bytes(config, 4, torch.float32, mappings[0])


def test_a_stage_holds_the_keys_of_its_layers():
    config = replace(next(iter(published("llama").values())), num_layers=5)
    shape, last = CacheShape(2, 0, 1, 0), Mapping(pp=2, rank=1)
    cache = allocate(config, shape, 4, dtype=torch.float32, device=torch.device("cpu"), mapping=last)
    assert len(cache.blocks) == 2
    assert [cache.layer(number).keys.data_ptr() for number in (3, 4)] == [x[0].data_ptr() for x in cache.blocks]
    assert 5 * block_bytes(config, 4, torch.float32, last) == 2 * block_bytes(config, 4, torch.float32, Mapping())


def test_a_tied_head_follows_its_embedding():
    embedding = nn.Embedding(7, 4)
    head, x = TiedHead(embedding, ModelContext()), torch.randn(2, 4)
    assert not head.state_dict() and not list(head.parameters())
    embedding.weight = nn.Parameter(torch.randn(7, 4))
    bias = torch.randn(7)
    torch.testing.assert_close(head(x, bias=bias), x @ embedding.weight.t() + bias)


class Rounded:
    """A LinearMethod: whole numbers and a scale a row."""

    def layout(self, in_features, part_sizes):
        rows = sum(part_sizes.values())
        return {"values": ParameterSpec((rows, in_features), torch.int8), "scales": ParameterSpec((rows,))}

    def apply(self, linear, x, bias, activation=None):
        y = (x @ linear.values.to(x.dtype).t()) * linear.scales
        return y if bias is None else y + bias


def test_a_method_says_what_a_weight_is():
    layer = Linear(3, {"a": 2, "b": 2}, context=ModelContext())
    layer.keep(Rounded())
    assert {name: tensor.dtype for name, tensor in layer.state_dict().items()} == {
        "values": torch.int8, "scales": torch.float32, "bias": torch.float32,
    }  # fmt: skip
    values, scales, bias = torch.randint(-9, 9, (4, 3), dtype=torch.int8), torch.rand(4), torch.randn(4)
    layer.load_state_dict({"values": values, "scales": scales, "bias": bias})
    x = torch.randn(2, 3)
    torch.testing.assert_close(layer(x), x @ (values * scales[:, None]).t() + bias)


def test_a_head_has_adapters_of_its_rows_too():
    """What a network adds beside its head is none that they change."""
    context = ModelContext(adapters=AdapterRoom(max_loras=2, max_rank=1))
    network = nn.Sequential(head := Head(3, 5, context=context)).requires_grad_(False)
    nn.init.normal_(head.weight)
    bias, kind = torch.randn(5), {"device": torch.device("cpu"), "dtype": torch.float32}
    for slot in range(2):
        weights = Ia3Weights(torch.full((5,), 2.0 + slot), of_inputs=False)
        put_adapter(network, slot, {"0": [weights]}, **kind)
    x, ids = torch.randn(3, 3), torch.tensor([1, NO_ADAPTER, 0], dtype=torch.int32)
    batch = ForwardBatch(torch.arange(3), AttentionMetadata(), adapter_ids=ids)
    torch.testing.assert_close(head(x, batch), head(x) * torch.tensor([[3.0], [1], [2]]))
    torch.testing.assert_close(head(x, batch, bias), head(x) * torch.tensor([[3.0], [1], [2]]) + bias)
    torch.testing.assert_close(head(x[1:], batch.rows(1, 3)), head(x[1:]) * torch.tensor([[1.0], [2]]))
