"""The configurations of a model's networks, by role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, overload

from vlm.config import Config, ModelConfig, VisionConfig
from vlm.errors import ConfigError, listed


@dataclass(frozen=True)
class RoleConfigs:
    """What each network of a model is built by; None where the model has no such role. Iterates over those it has."""

    visual: VisionConfig | None = None
    encoder: ModelConfig | None = None  # of texts
    decoder: ModelConfig | None = None

    @classmethod
    def from_roles(cls, configs: Mapping[str, Any]) -> Self:
        """Raises ConfigError for roles that no model has."""
        names = [field.name for field in fields(cls)]
        if unknown := sorted(set(configs) - set(names)):
            raise ConfigError(f"a model's roles are {listed(names)}, not {listed(unknown)}.")
        return cls(**configs)

    def __iter__(self) -> Iterator[str]:
        return (field.name for field in fields(self) if getattr(self, field.name) is not None)

    @overload
    def __getitem__(self, role: Literal["visual"]) -> VisionConfig: ...
    @overload
    def __getitem__(self, role: Literal["encoder", "decoder"]) -> ModelConfig: ...
    @overload
    def __getitem__(self, role: str) -> Config: ...
    def __getitem__(self, role: str) -> Config:
        """Raises KeyError for a role that the model does not have."""
        if role not in list(self):
            raise KeyError(role)
        return getattr(self, role)

    @property
    def reader(self) -> ModelConfig:
        """What a request's text is read by: the encoder, or a decoder alone."""
        return self.encoder or self["decoder"]

    @property
    def writer(self) -> ModelConfig:
        """What is asked for tokens: the decoder, or an encoder alone."""
        return self.decoder or self["encoder"]
