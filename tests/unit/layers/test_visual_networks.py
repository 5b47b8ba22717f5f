"""Every matrix product of the visual networks is a Linear's, which keeps its weight as the context says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.kits.models import tiny
from tests.kits.models.families import image_size
from visual_engines.catalog import MODELS
from vlm.executor.encoding.packed_images import PatchEncoder
from vlm.layers.context import ModelContext
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.images.tiles import TiledVisionConfig
from vlm.layers.linear import Linear
from vlm.layers.quant.base import ParameterSpec
from vlm.layers.quant.quantization import Quantization
from vlm.ops.products.activated import activated
from vlm.registry.catalogs import model_spec
from vlm.requests.image import Image
from vlm_app.reference.huggingface import in_tiles

VILA = {
    "vision_tower": {"model_type": "siglip_vision_model", "hidden_size": 24, "intermediate_size": 40,
                     "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 20, "patch_size": 4},
    "mm_projector_type": "mlp_downsample", "mm_vision_select_feature": "cls_patch", "hidden_size": 32,
}  # fmt: skip
CONFIGS = {
    "donut-swin": lambda: tiny.nougat_config().encoder.to_dict(),
    "florence2-vision": lambda: tiny.florence2().config.to_dict() | {"image_processor_size": tiny.FLORENCE_SIZE},
    "lighton-ocr-vision": lambda: tiny.lighton_ocr(seed=1).config.to_dict(),
    "idefics3-vision": lambda: tiny.idefics3().config.to_dict(),
    "llava-vision": lambda: tiny.llava(seed=3).config.to_dict(),
    "blip2-vision": lambda: tiny.blip2("opt", seed=1).config.to_dict(),
    "pix2struct-vision": lambda: tiny.pix2struct().config.vision_config.to_dict(),
    "qwen-vl-vision": lambda: tiny.qwen_vl().config.to_dict(),
    "t5gemma2-vision": lambda: tiny.t5gemma2().config.to_dict(),
    "vila-vision": lambda: VILA,
    "vit": lambda: tiny.trocr(encoder={"deit": True}).config.encoder.to_dict(),
}


class Transposed:
    """Keeps weights the other way round."""

    def layout(self, in_features, part_sizes):
        return {"kept": ParameterSpec((in_features, sum(part_sizes.values())))}

    def apply(self, linear, x, bias, activation=None):
        return activated(torch.matmul(x, linear.kept) + (0 if bias is None else bias), activation)


def test_all_networks_are_here():
    assert CONFIGS.keys() == {ref.name for ref in MODELS}


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_the_context_reaches_every_matrix_product(name):
    spec = model_spec(name)
    config = spec.parse(CONFIGS[name]())
    plain, kept = (
        spec.skeleton(config, context) for context in (None, ModelContext(quantization=Quantization(Transposed())))
    )
    assert not [path for path, module in plain.named_modules() if isinstance(module, nn.Linear)]
    linears = {path for path, module in plain.named_modules() if isinstance(module, Linear)}
    generator = torch.Generator().manual_seed(0)
    weights = {key: torch.randn(x.shape, generator=generator) * 0.2 for key, x in plain.state_dict().items()}
    turned = {_kept(key, linears): x.t() if _kept(key, linears) != key else x for key, x in weights.items()}
    assert sum(key.endswith(".kept") for key in turned) == len(linears) > 0
    pixels = torch.randn(2, config.num_channels, *image_size(config), generator=generator)
    found = []
    for network, state in ((plain, weights), (kept, turned)):
        network.load_state_dict(state, strict=True, assign=True)
        if hasattr(network, "init_buffers"):
            network.init_buffers(torch.device("cpu"))
        found.append(features_of(network, pixels))
    assert found[0].shape == (2, config.rows_of(*image_size(config)), config.hidden_size)
    torch.testing.assert_close(found[1], found[0])


def features_of(network, pixels):
    """[n, channels, H, W] -> [n, rows, hidden], packed or cut where a network takes patches or tiles"""
    if isinstance(network.config, TiledVisionConfig):
        tiles = in_tiles(pixels, network.config.tile_size)[0]
        return network(tiles).reshape(len(pixels), -1, network.config.hidden_size)
    if not isinstance(network.config, PatchedVisionConfig):
        return network(pixels)
    encoder = PatchEncoder(network, torch.device("cpu"), torch.float32, most=8, most_patches=10_000)
    return torch.stack(encoder.encode([Image.from_pixels(image, network.config) for image in pixels]))


def _kept(key: str, linears: set[str]) -> str:
    path, _, kind = key.rpartition(".")
    return f"{path}.kept" if path in linears and kind == "weight" else key
