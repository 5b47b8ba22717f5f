"""What visual networks share: Hugging Face's names of activations, patches, windows, the feed-forward layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlm.convert.config_reader import ACTIVATION_NAMES, ConfigReader
from vlm.errors import shown
from vlm.layers.context import ModelContext
from vlm.layers.images.convolution import PatchConv2d
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer
from vlm.ops.activation import Activation

ACTIVATIONS = ACTIVATION_NAMES | {"quick_gelu": "quick_gelu"}  # Hugging Face's names -> vlm.ops.activation's


def activation_of(name: str) -> Activation:
    """Returns what a name of Hugging Face's stands for, one of ACTIVATIONS."""
    return Activation(ACTIVATIONS[name])


class PatchEmbed(nn.Module):
    """Turns squares of pixels into rows, under timm's names. A grid that is not whole is padded with zeros."""

    def __init__(
        self,
        patch_size: int | tuple[int, int],
        channels: int,
        width: int,
        *,
        bias: bool = True,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        self.proj = PatchConv2d(channels, width, patch_size, bias=bias)
        self.norm = norm or nn.Identity()

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, rows, columns, width]"""
        missing = [-side % patch for side, patch in zip(pixel_values.shape[2:], self.proj.stride, strict=True)]
        if any(missing):
            pixel_values = F.pad(pixel_values, (0, missing[1], 0, missing[0]))
        return self.norm(self.proj(pixel_values))


def window_partition(x: Tensor, side: int) -> Tensor:
    """Maps [n, rows, columns, C] -> [n · windows, side, side, C]; rows and columns are multiples of the side"""
    images, rows, columns, channels = x.shape
    x = x.view(images, rows // side, side, columns // side, side, channels)
    return x.transpose(2, 3).reshape(-1, side, side, channels)


def window_reverse(windows: Tensor, rows: int, columns: int) -> Tensor:
    """Maps [n · windows, side, side, C] -> [n, rows, columns, C]"""
    side, channels = windows.shape[1], windows.shape[-1]
    x = windows.view(-1, rows // side, columns // side, side, side, channels)
    return x.transpose(2, 3).reshape(-1, rows, columns, channels)


def grid_theta(reader: ConfigReader) -> float:
    """Returns the base of a tower's rotary positions, wherever its configuration says it; another kind of positions is
    added to the reader's errors."""
    said = reader.values.get("rope_scaling") or reader.values.get("rope_parameters") or {}
    if (kind := said.get("rope_type") or said.get("type") or "axial") not in ("axial", "default"):
        reader.errors.append(f"rope_type is {shown(kind)}, supported are 'axial' and 'default'")
    return float(said.get("rope_theta") or reader.values.get("rope_theta") or 10000.0)


class GridRotary(nn.Module):
    """Turns rows and columns into cosines and sines, the rows' frequencies before the columns'. Call `init_buffers`
    before.

    Of a head's frequencies the even ones are the rows' and the odd ones the columns', or with `alike` the even ones
    both's.
    """

    def __init__(self, head_dim: int, theta: float, *, alike: bool = False):
        super().__init__()
        self.head_dim, self.theta, self.alike = head_dim, theta, alike

    def init_buffers(self, device: torch.device) -> None:
        inverse = 1.0 / self.theta ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.inverse = torch.stack((inverse[0::2], inverse[int(not self.alike) :: 2])).to(device)

    def forward(self, positions: Tensor) -> Tensor:
        """Returns the cosines and sines [R, 2, head_dim / 2] float32 of positions [2, R]."""
        angles = (positions[:, :, None].float() * self.inverse[:, None]).transpose(0, 1).flatten(1)
        return torch.stack((angles.cos(), angles.sin()), 1)


class Mlp(nn.Module):
    """Computes fc2(activation(fc1(x))), under timm's names. `activation`: a name of ACTIVATIONS."""

    def __init__(self, width: int, inner: int, activation: str, *, context: ModelContext):
        super().__init__()
        self.fc1 = Linear(width, {"up": inner}, axis="column", context=context)
        self.fc2 = Linear(inner, width, axis="row", context=context)
        self.activation = activation_of(activation)
        self.producers = {"fc2": Producer("fc1", "up")} if activation == "relu" else {}

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [..., width] -> the same"""
        return self.fc2(self.fc1(x, activation=self.activation))
