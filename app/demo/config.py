"""What the demo is started with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from vlm.processing.worker_process import Budget
from vlm_app.core.listening import check_names, check_port, listener


@dataclass(frozen=True)
class DemoConfig:
    host: str = "127.0.0.1"
    port: int = 7860  # 0: any that is free
    share: bool = False  # a public address through gradio's servers
    allowed_hosts: tuple[str, ...] = ()  # as ServerConfig's
    allowed_origins: tuple[str, ...] = ()
    preprocess_workers: int = 2  # processes that read what is uploaded
    media: Budget = field(default_factory=Budget)  # of a file

    def __post_init__(self) -> None:
        check_port(self.port)
        check_names(self.allowed_hosts, self.allowed_origins)

    def on_free_port(self) -> DemoConfig:
        """The same with a port that can be listened at now; InputError when it cannot."""
        with listener(self.host, self.port) as bound:
            return replace(self, port=bound.getsockname()[1])
