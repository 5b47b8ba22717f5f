"""What this package brings: a network by its name, and the families that are made of it. A light module: no torch."""

from vlm.registry.spec import ModelRef
from vlm_gpt_neox.families import DOLLY, PYTHIA

MODELS = (ModelRef("gpt-neox", "vlm_gpt_neox.network:SPEC"),)
FAMILIES = (DOLLY, PYTHIA)  # the first that matches a config.json is taken
