"""What the demo is started with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.errors import InputError


@dataclass(frozen=True)
class DemoConfig:
    host: str = "127.0.0.1"
    port: int = 7860
    share: bool = False  # a public address through gradio's servers

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"port is {self.port}; it must lie in [0, 65535], 0 is any that is free.")
