# protobuf makes the messages when the module is imported: nothing of them stands in its source
from typing import Any

def __getattr__(name: str) -> Any: ...
