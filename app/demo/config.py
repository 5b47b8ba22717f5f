"""What the demo is started with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vlm.options import check_limits, option
from vlm.processing.media.pool import MediaConfig
from vlm.processing.workers.process import Budget
from vlm.ranges import at_least, positive
from vlm_app.core.listening import PORTS, check_host, check_names, listener


@dataclass(frozen=True)
class DemoConfig:
    """How the demo listens, and what reading a file may cost. Raises InputError for a value that is not allowed."""

    host: str = option("127.0.0.1", "Where to listen; 0.0.0.0 is everywhere.")
    port: int = option(7860, "0: any that is free.", allowed=PORTS)
    share: bool = option(False, "A public address, through gradio's servers.")
    allowed_hosts: tuple[str, ...] = option(
        (), "A name that browsers may have for the page, or *; again for more.", flags=("--allowed-host",),
        default="its own",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = option(
        (), "Of other sites that may use it (https://a.example), or *; again for more.", flags=("--allowed-origin",),
        default="none",
    )  # fmt: skip
    media_seconds: float = option(
        Budget.seconds, "For reading a file; then it is refused.", allowed=positive("it must be more than 0")
    )
    media_memory_mb: int = option(Budget.memory_mb, "That reading a file may take in its process.", allowed=at_least(1))
    preprocess_workers: int = 2  # processes that read what is uploaded

    def __post_init__(self) -> None:
        check_limits(self)
        check_host(self.host)
        check_names(self.allowed_hosts, self.allowed_origins)

    @property
    def media(self) -> MediaConfig:
        """Returns how files are read, and what that may cost."""
        return MediaConfig(self.preprocess_workers, budget=Budget(self.media_seconds, self.media_memory_mb))

    def on_free_port(self) -> DemoConfig:
        """Returns the same with a port that can be listened at now. Raises InputError where none can."""
        with listener(self.host, self.port) as bound:
            return replace(self, port=bound.getsockname()[1])
