"""What the demo is started with; the command line takes its defaults from here."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace

from vlm.errors import InputError


@dataclass(frozen=True)
class DemoConfig:
    host: str = "127.0.0.1"
    port: int = 7860  # 0: any that is free
    share: bool = False  # a public address through gradio's servers

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise InputError(f"port is {self.port}; it must lie in [0, 65535], 0 is any that is free.")

    def on_free_port(self) -> DemoConfig:
        """The same with a port that can be listened at now; InputError when it cannot."""
        with socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((self.host, self.port))
            except OSError as error:
                raise InputError(
                    f"{self.host}:{self.port} cannot be listened at: {error.strerror}; give another --host or --port."
                ) from None
            return replace(self, port=listener.getsockname()[1])
