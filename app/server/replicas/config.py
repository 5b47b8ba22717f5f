"""How many replicas there are, and where each one runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from vlm.backends.devices import resolve_device, separate_devices
from vlm.errors import InputError
from vlm.limits import MAX_PROCESSES
from vlm.options import check_limits, option
from vlm.ranges import Range, at_least, positive

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class ReplicaConfig:
    """Replicas of a server's models. Raises InputError for a value that is not allowed."""

    replicas: int | None = option(
        None, "Processes behind the one port, each with all models and a device of its own, or its share of the CPU.",
        default="none: the server itself", allowed=Range(1, MAX_PROCESSES),
    )  # fmt: skip
    devices: str | None = option(None, "A replica on each: cuda:0,cuda:1, or all.", default="--device")
    unresponsive_seconds: float = option(
        30.0, "A replica that lives and does not answer for so long is started again.", default="30",
        allowed=positive("it must be a number above 0"),
    )  # fmt: skip

    ray: bool = option(False, "By Ray Serve, on the cluster of $RAY_ADDRESS, or one started on this machine.")
    max_replicas: int | None = option(
        None, "That Ray Serve starts as load grows.", default="as many as --replicas", allowed=at_least(1)
    )

    def __post_init__(self) -> None:
        check_limits(self, flags=True)
        if self.ray and self.devices:
            raise InputError("--devices is for one machine; with --ray, --replicas says how many.")
        if self.ray and self.unresponsive_seconds != type(self).unresponsive_seconds:
            raise InputError("--unresponsive-seconds is for one machine; with --ray, Ray Serve watches its replicas.")
        if self.max_replicas is not None and not self.ray:
            raise InputError("--max-replicas is for --ray; on one machine, --replicas says how many.")
        if self.max_replicas is not None and self.max_replicas < (self.replicas or 1):
            raise InputError(
                f"--max-replicas is {self.max_replicas}, and --replicas is {self.replicas}; give no fewer."
            )

    @property
    def has_replicas(self) -> bool:
        return self.ray or self.replicas is not None or self.devices is not None


@dataclass(frozen=True)
class Placement:
    """The devices of one replica."""

    devices: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Returns cpu or cuda."""
        return self.devices[0].partition(":")[0]

    @property
    def visible(self) -> str | None:
        """Returns the CUDA devices that its process may see, in terms of those that this one sees; None: all."""
        if self.kind == "cpu":
            return None
        indices = [int(name.partition(":")[2] or 0) for name in self.devices]
        seen = os.environ[VISIBLE].split(",") if os.environ.get(VISIBLE) else None
        return ",".join(seen[index].strip() if seen else f"{index}" for index in indices)

    def __str__(self) -> str:
        return ",".join(self.devices)


def placements(config: ReplicaConfig, device: str | None, ranks: int = 1) -> list[Placement]:
    """Places each replica, whose largest engine runs on so many `ranks`; `device`: of all, as the command line has it.
    Raises InputError for devices that are not there, and for counts that disagree."""
    names = _named(config, device) if config.devices is not None else _counted(config.replicas or 1, device, ranks)
    kinds = {resolve_device(name).type for name in names}
    size = ranks if "cuda" in kinds else 1  # ranks on the CPU share it
    if len(names) % size:
        raise InputError(
            f"--devices names {len(names)} GPUs, and each replica takes {size}, for its engine is built so; give a"
            f" multiple of {size}."
        )
    found = [Placement(tuple(names[start : start + size])) for start in range(0, len(names), size)]
    if config.replicas not in (None, len(found)):
        raise InputError(
            f"--replicas is {config.replicas}, and --devices has room for {len(found)}; leave one of the two out."
        )
    return found


def _named(config: ReplicaConfig, device: str | None) -> Sequence[str]:
    if device is not None:
        raise InputError("--device and --devices are both given; leave one of the two out.")
    assert config.devices is not None
    return separate_devices(config.devices)


def _counted(replicas: int, device: str | None, ranks: int) -> Sequence[str]:
    """Returns the devices of so many replicas: the first GPUs, or the CPU again and again."""
    kind = resolve_device(device or "auto")
    if kind.type == "cpu":
        return ["cpu"] * replicas
    if kind.index is not None:
        raise InputError(f"--device is {device}, and a replica takes a device of its own; give --devices, or cuda.")
    return [f"cuda:{index}" for index in range(replicas * ranks)]
