"""What the runtime needs to know of a network: of a decoder, and of a visual encoder."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.config.base import Config


@dataclass(frozen=True)
class ModelConfig(Config):
    """What the runtime needs to know of any decoder. Families extend it."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    max_positions: int
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    decoder_start_token_id: int

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def embedding_size(self) -> int:
        """Returns the width of an embedding, and of a prompt table's row."""
        return self.hidden_size

    @property
    def position_axes(self) -> int:
        """Returns how many numbers a token's position is; several where rows of images stand in a plane."""
        return 1

    @property
    def cross_attention(self) -> bool:
        """Says whether it looks at an encoder's output. A decoder alone does not."""
        return True

    @property
    def encoder_size(self) -> int:
        """Returns the width of the rows of the encoder that it looks at."""
        return self.hidden_size

    @property
    def position_limit(self) -> int | None:
        """Tokens that positions allow; None where they are relative: `max_positions` is but the default then."""
        return self.max_positions


@dataclass(frozen=True)
class VisionConfig(Config):
    """What the runtime needs to know of any visual encoder. Towers extend it.

    A network whose images have all one size says `num_features` alone. One that takes several says which
    (`fixed_size`, `takes`, `shapes`), and how many rows each becomes (`rows_of`, `grid_of`, `min_rows`).
    """

    image_size: tuple[int, int]  # (height, width), pixels; where there are several sizes, the one of the most rows
    num_channels: int

    @property
    def num_features(self) -> int:
        """Feature rows of an image of `image_size`."""
        raise NotImplementedError

    @property
    def fixed_size(self) -> bool:
        """Says whether all images have `image_size`."""
        return True

    @property
    def network_size(self) -> tuple[int, int] | None:
        """(height, width) of all that the network takes, images or tiles of them; None where these have several."""
        return self.image_size if self.fixed_size else None

    @property
    def network_rows(self) -> int:
        """Feature rows of what the network takes, at most."""
        return self.max_rows

    def takes(self, height: int, width: int) -> bool:
        """Says whether images of so many pixels are read."""
        return (height, width) == tuple(self.image_size)

    @property
    def side_step(self) -> int:
        """Pixels of which the sides of all images that are read are multiples."""
        return 1

    @property
    def usual_size(self) -> tuple[int, int]:
        """(height, width) of an image as people bring them: what is measured, and warmed up for."""
        return self.image_size

    @property
    def shapes(self) -> str:
        """Returns the shapes of pixel values that are read, as errors name them."""
        return str((self.num_channels, *self.image_size))

    def rows_of(self, height: int, width: int) -> int:
        """Returns the feature rows of an image of a size that it takes, in pixels."""
        return self.num_features

    def grid_of(self, height: int, width: int) -> tuple[int, ...] | None:
        """Returns how the rows of such an image lie, (down, across), where anything depends on it."""
        return None

    @property
    def min_rows(self) -> int:
        """Feature rows of the smallest image."""
        return self.num_features

    @property
    def max_rows(self) -> int:
        """Feature rows of the largest image."""
        height, width = self.image_size
        return self.rows_of(height, width)

    @property
    def hidden_size(self) -> int:
        """Width of a feature row."""
        raise NotImplementedError

    @property
    def image_token_id(self) -> int | None:
        """The token that Hugging Face repeats for an image's rows in a decoder's prompt; None: there is none."""
        return None
