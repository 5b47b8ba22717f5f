"""Frozen configurations: what a model is (`ModelConfig`, `VisionConfig`), what an engine is built for
(`BuildConfig`) and holds (`EngineLimits`), and how it is run (`RuntimeConfig`)."""

from vlm.config.base import Config
from vlm.config.build import BuildConfig, EngineLimits
from vlm.config.model import ModelConfig, VisionConfig
from vlm.config.runtime import RuntimeConfig

__all__ = ["Config", "ModelConfig", "VisionConfig", "BuildConfig", "EngineLimits", "RuntimeConfig"]
