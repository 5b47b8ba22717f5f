"""What this package brings: a visual network, and the family that puts vlm's own Llama beside it. No torch."""

from vlm.registry.spec import ModelRef
from vlm_deepseek_vl.family import DEEPSEEK_VL

MODELS = (ModelRef("deepseek-vl-vision", "vlm_deepseek_vl.network:SPEC"),)
FAMILIES = (DEEPSEEK_VL,)
