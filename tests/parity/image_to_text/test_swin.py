"""The Swin encoder against Hugging Face's DonutSwinModel, FP32: its features and its refusals."""

from __future__ import annotations

import pytest
import torch
from transformers import DonutSwinConfig, DonutSwinModel

from visual_engines.models import swin
from vlm.convert.conversion import convert
from vlm.errors import ConfigError
from vlm.layers.context import ModelContext

SHAPES = {
    "even": {"image_size": [64, 48], "window_size": 4, "depths": [2, 2], "num_heads": [2, 4]},
    "padded windows": {"image_size": [88, 72], "window_size": 5, "depths": [2, 2], "num_heads": [2, 4]},
    "odd grids": {"image_size": [100, 76], "window_size": 3, "depths": [2, 3, 2], "num_heads": [1, 2, 4]},
    "a grid as wide as a window": {"image_size": [112, 56], "window_size": 7, "depths": [2, 2], "num_heads": [2, 4]},
    "patches that do not divide": {"image_size": [70, 51], "window_size": 4, "depths": [3], "num_heads": [2]},
    "no qkv bias": {"image_size": 56, "window_size": 7, "depths": [1, 4], "num_heads": [4, 8], "qkv_bias": False},
    "another eps and ratio": {"image_size": 64, "window_size": 4, "depths": [2], "num_heads": [2],
                              "layer_norm_eps": 1e-2, "mlp_ratio": 2.5, "hidden_act": "relu"},
}  # fmt: skip


def pair(shape: dict) -> tuple[DonutSwinModel, swin.SwinEncoder]:
    torch.manual_seed(0)
    model = DonutSwinModel(DonutSwinConfig(embed_dim=16, patch_size=4, **shape)).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.2
    config = swin.parse(model.config.to_dict())
    with torch.device("meta"):
        ours = swin.SwinEncoder(config, ModelContext())
    targets = {name: tuple(t.shape) for name, t in ours.state_dict().items()}
    ours.load_state_dict(convert(model.state_dict(), swin.rules(config), targets), assign=True)
    ours.init_buffers(torch.device("cpu"))
    return model, ours.eval()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@torch.no_grad()
def test_features(shape):
    model, ours = pair(shape)
    pixels = torch.randn(3, 3, *ours.config.image_size)
    want, found = model(pixels).last_hidden_state, ours(pixels)
    assert found.shape == want.shape == (3, ours.config.num_features, ours.config.hidden_size)
    torch.testing.assert_close(found, want, atol=1e-4 * want.abs().max().item(), rtol=0)
    torch.testing.assert_close(ours(pixels[1:2]), found[1:2], atol=1e-5 * want.abs().max().item(), rtol=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        ({"window_size": 9}, "window"),
        ({"hidden_act": "tanh"}, "hidden_act"),
        ({"num_heads": [3, 4]}, "heads"),
        ({"num_heads": [0, 4]}, "num_heads"),
        ({"image_size": None}, "image_size"),
        ({"patch_size": [4, 4, 4]}, "patch_size"),
        ({"mlp_ratio": "4"}, "mlp_ratio"),
    ],
)
def test_what_it_cannot_honour_is_refused_by_name(change, named):
    hf = DonutSwinConfig(embed_dim=16, **SHAPES["even"]).to_dict()
    swin.parse(hf)
    with pytest.raises(ConfigError, match=named):
        swin.parse(hf | change)
