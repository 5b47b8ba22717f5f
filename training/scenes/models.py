"""The two models by name."""

from __future__ import annotations

from training.scenes.blip2 import MiniBlip2
from training.scenes.llava import MiniLlava
from training.scenes.subject import Subject

MODELS: dict[str, type[Subject]] = {model.name: model for model in (MiniLlava, MiniBlip2)}
