"""What a repository is exported with; the command line takes its defaults from here."""

from __future__ import annotations

from dataclasses import dataclass

from vlm.errors import InputError

ENSEMBLE, BEFORE, ENGINE, AFTER = "ensemble", "preprocessing", "engine", "postprocessing"
CONFIG = "config.pbtxt"  # in a model's folder
ENGINE_FOLDER, FRONTEND_FOLDER = "engine", "frontend"  # in that of a version
KINDS = {"auto": "KIND_AUTO", "cpu": "KIND_CPU", "cuda": "KIND_GPU"}


@dataclass(frozen=True)
class ExportConfig:
    name: str
    max_batch_size: int  # rows of a request, and sequences decoded at once
    instances: int = 1  # processes that each load the engine
    device: str = "auto"  # "auto" | "cpu" | "cuda" | "cuda:N"
    stream: bool = False  # answers come as they are decoded (Triton: decoupled)

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip(". ") or "/" in self.name:
            raise InputError(f"{self.name!r} is no name of a model; give a folder's name with --name.")
        if self.instances < 1:
            raise InputError(f"instances is {self.instances}; it must be at least 1.")
        kind, _, number = self.device.partition(":")
        if kind not in KINDS or (number and (kind != "cuda" or not number.isdigit())):
            raise InputError(f"device is {self.device!r}; allowed are auto, cpu, cuda and cuda:N.")

    @property
    def folders(self) -> dict[str, str]:
        """Of the parts of the ensemble, by what they do."""
        return {part: f"{self.name}-{part}" for part in (BEFORE, ENGINE, AFTER)}
