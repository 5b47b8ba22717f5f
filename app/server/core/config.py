"""What the server is started with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlm.backends.threads import usable_cpus
from vlm.engine.step_watch import STEP_SECONDS
from vlm.errors import InputError
from vlm.limits import MAX_PIXELS, MAX_PROCESSES
from vlm.options import check_limits, option, same_option
from vlm.processing.media.pool import MediaConfig
from vlm.processing.workers.process import Budget
from vlm.ranges import Range, at_least, positive
from vlm_app.core.listening import PORTS, check_host, check_names, check_root_path

SECONDS = positive("it must be a number above 0")
NONE_OR_MORE = at_least(0, "it must be 0 or more")


def default_workers() -> int:
    """Returns two processes at least: one may be held up by a file, as long as its budget lasts."""
    return max(2, min(8, usable_cpus() // 2))


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may take. Raises InputError for a value that is not allowed."""

    header_seconds: float = option(10.0, "For a request's line and headers to come.", default="10", allowed=SECONDS)
    body_seconds: float = option(
        30.0, "For a body to come, or an answer to be read; and a second for every 64 KB.", default="30",
        allowed=SECONDS,
    )  # fmt: skip
    idle_seconds: float = option(75.0, "Between two requests of a connection.", default="75", allowed=SECONDS)
    max_connections: int = option(512, "At once; more end those that wait, or get 503.", allowed=at_least(1))

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True)
class ServerConfig(ConnectionLimits):
    """How a server listens, and what it holds and takes. Raises InputError for a value that is not allowed."""

    host: str = option("127.0.0.1", "Where to listen; 0.0.0.0 is everywhere.")
    port: int = option(8000, "0: any that is free.", allowed=PORTS)
    api_key: str | None = option(None, "Clients must send it.", env="VLM_API_KEY", default="none is needed")
    max_requests: int = option(256, "Outputs a model holds, running or waiting; more get 429.", allowed=at_least(1))
    max_body_mb: int = option(64, "Of a request.", allowed=at_least(1))
    max_images: int = option(16, "Of a request; pages of PDFs count.", allowed=at_least(1))
    max_image_pixels: int = option(MAX_PIXELS, "Of an image.", allowed=at_least(1))
    preprocess_workers: int = option(
        help="Processes that decode images; 0: threads of the server, which no budget bounds.",
        factory=default_workers, allowed=Range(0, MAX_PROCESSES),
    )  # fmt: skip
    media_seconds: float = option(Budget.seconds, "For decoding all images and pages of a request; then it is refused.")
    media_memory_mb: int = option(
        Budget.memory_mb, "That decoding a request may take in its process.", allowed=at_least(1)
    )
    exact_pixels: bool = same_option(MediaConfig, "exact_pixels")
    drain_seconds: int = option(30, "For what runs at SIGTERM, or when its model is unloaded.", allowed=NONE_OR_MORE)
    step_seconds: float = option(
        STEP_SECONDS, "An engine that takes longer over one step hangs, and has broken.", default=f"{STEP_SECONDS:g}",
        allowed=SECONDS,
    )  # fmt: skip
    model_control: bool = option(False, "Clients may load and unload the models of repositories, and adapters.")
    exit_when_broken: bool = option(  # for a supervisor to start it again
        True, "At an engine's end, exit 70 or answer 503.", flags=("--exit-when-broken/--stay-when-broken",),
        default="exit-when-broken",
    )  # fmt: skip
    grpc_port: int | None = option(
        None, "Serve KServe's protocol over gRPC, too; Triton's is 8001, 0: any that is free.", allowed=PORTS
    )
    grpc_socket: Path | None = None  # instead, of a replica
    allowed_hosts: tuple[str, ...] = option(  # a loopback has no others
        (), "A name that clients may have for this server, or *; again for more.", flags=("--allowed-host",),
        default="its own",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = option(
        (), "Of web pages that may ask (https://a.example), or *; again for more.", flags=("--allowed-origin",),
        default="none",
    )  # fmt: skip
    root_path: str = option("", "Under which a proxy shows the server, like /llm: /docs asks there.", default="none")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port and self.port == self.grpc_port:
            raise InputError(f"port {self.port} is given to HTTP and gRPC; give another --grpc-port.")
        check_host(self.host)
        check_names(self.allowed_hosts, self.allowed_origins)
        check_root_path(self.root_path)
        if self.api_key is not None and not (self.api_key and self.api_key.isascii()):
            raise InputError("the API key must be a non-empty ASCII text.")

    @property
    def grpc_address(self) -> str | None:
        """Returns where gRPC is spoken; None: nowhere."""
        if self.grpc_socket is not None:
            return f"unix:{self.grpc_socket}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return None if self.grpc_port is None else f"{host}:{self.grpc_port}"

    @property
    def media(self) -> MediaConfig:
        """Returns how images are read, and what those of a request may cost."""
        budget = Budget(self.media_seconds, self.media_memory_mb)
        limits = {"max_images": self.max_images, "max_pixels": self.max_image_pixels, "budget": budget}
        return MediaConfig(self.preprocess_workers, **limits, exact_pixels=self.exact_pixels)
