"""M2M100 and NLLB-200, which translate from any of their languages into any other."""

from __future__ import annotations
