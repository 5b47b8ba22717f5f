"""VILA, of which transformers has no class: assembled of its LLaMA and SigLIP or CLIP, as the published code does it.

Lin et al., VILA (arXiv:2312.07533); its folders hold `llm/`, `vision_tower/` and `mm_projector/`.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlm.artifacts.files import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
DOWNSAMPLE = "mlp_downsample"


class Vila(nn.Module):
    """A tower, a projector and a language model. `settings`: config.json's, with the projector's type."""

    llm: Any  # what an Auto class of transformers makes has no type that can generate
    tower: PreTrainedModel
    projector: nn.Module

    def __init__(self, llm: Any, tower: PreTrainedModel, projector: nn.Module, settings: dict[str, Any]):
        super().__init__()
        self.llm, self.tower, self.projector, self.settings = llm, tower, projector, settings

    @classmethod
    def random(cls, hf: dict[str, Any], dtype: torch.dtype, device: torch.device) -> Self:
        """Makes a model of the registry's configuration: {"visual": …, "decoder": …}."""
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

        visual = dict(hf["visual"])
        tower = AutoConfig.for_model(**visual.pop("vision_tower"))
        language = AutoConfig.for_model(**hf["decoder"])
        with device:
            projector = _projector(visual["mm_projector_type"], tower.hidden_size, language.hidden_size).to(dtype)
            return cls(
                AutoModelForCausalLM.from_config(language, dtype=dtype),
                AutoModel.from_config(tower, dtype=dtype),
                projector,
                visual,
            )

    @classmethod
    def from_pretrained(cls, folder: Path, dtype: torch.dtype) -> Self:
        """Loads a folder in parts."""
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM

        llm = AutoModelForCausalLM.from_pretrained(folder / "llm", dtype=dtype)
        tower = _tower_class(folder / "vision_tower").from_pretrained(folder / "vision_tower", dtype=dtype)
        kind = read_json(folder / "mm_projector" / CONFIG, ValueError, "projector")["mm_projector_type"]
        projector = _projector(kind, tower.config.hidden_size, llm.config.hidden_size)
        weights = load_file(folder / "mm_projector" / "model.safetensors")
        projector.load_state_dict({name.removeprefix("layers."): x for name, x in weights.items()})
        settings = read_json(folder / CONFIG, ValueError, "VILA")
        return cls(llm, tower, projector.to(dtype), settings | {"mm_projector_type": kind})

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import save_file

        self.llm.save_pretrained(folder / "llm")
        self.tower.save_pretrained(folder / "vision_tower")
        (folder / "mm_projector").mkdir()
        weights = {f"layers.{name}": x.contiguous() for name, x in self.projector.state_dict().items()}
        save_file(weights, folder / "mm_projector" / "model.safetensors")
        kind = {"model_type": "v2l_projector", "mm_projector_type": self.settings["mm_projector_type"]}
        (folder / "mm_projector" / CONFIG).write_text(json.dumps(kind))
        (folder / CONFIG).write_text(json.dumps({"model_type": "llava_llama"} | self.settings))

    @property
    def config(self) -> Any:
        """Returns the language model's configuration."""
        return self.llm.config

    @property
    def dtype(self) -> torch.dtype:
        return self.llm.dtype

    def get_image_features(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, C, H, W] -> [n, rows, width]"""
        layer = self.settings.get("mm_vision_select_layer", -2)
        x = self.tower(pixel_values, output_hidden_states=True).hidden_states[layer]
        if self.settings.get("mm_vision_select_feature", "patch") == "patch":
            x = x[:, 1:]
        return self.projector(_cells(x) if self.settings["mm_projector_type"] == DOWNSAMPLE else x)

    def generate(self, input_ids: Tensor, pixel_values: Tensor | None = None, **options: Any) -> Tensor:
        """Maps input_ids [B, rows + T], of which the images' rows are but places -> the new tokens [B, n]"""
        embeds = self.llm.get_input_embeddings()(input_ids)
        if pixel_values is not None:
            rows = self.get_image_features(pixel_values).reshape(len(embeds), -1, embeds.shape[-1])
            embeds = torch.cat((rows, embeds[:, rows.shape[1] :]), dim=1)
        return self.llm.generate(inputs_embeds=embeds, **options)


def _projector(kind: str, width: int, out: int) -> nn.Module:
    """Makes a projector under the published names of its weights."""
    down = kind == DOWNSAMPLE
    depth = {"linear": 1, DOWNSAMPLE: 2}.get(kind) or int(kind.removeprefix("mlp").partition("x")[0])
    width *= 4 if down else 1
    # the place of the regrouping, which has no weights
    layers: list[nn.Module] = [nn.Identity(), nn.LayerNorm(width)] if down else []
    for i, (a, b) in enumerate(itertools.pairwise([width] + [out] * depth)):
        layers += [nn.GELU()] if i else []
        layers.append(nn.Linear(a, b))
    return nn.Sequential(*layers) if len(layers) > 1 else layers[0]


def _tower_class(folder: Path) -> Any:
    """Returns the vision side's, also of a folder that describes both sides."""
    import transformers

    kind = read_json(folder / CONFIG, ValueError, "vision tower")["model_type"]
    return transformers.SiglipVisionModel if kind.startswith("siglip") else transformers.CLIPVisionModel


def _cells(x: Tensor) -> Tensor:
    """Turns a square's rows [n, side², C] into its 2 × 2 cells, down the columns; zeros beyond an odd side."""
    n, count, width = x.shape
    side = int(count**0.5)
    x = x.view(n, side, side, width)
    x = F.pad(x, (0, 0, 0, side % 2, 0, side % 2))
    half = x.shape[1] // 2
    x = x.view(n, half, 2, half, 2, width).permute(0, 3, 1, 2, 4, 5)
    return x.reshape(n, half * half, 4 * width)
