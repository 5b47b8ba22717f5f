# Triton's own module: it is there within Triton alone
from typing import Any

def __getattr__(name: str) -> Any: ...
