"""What a number was measured on: commit, device, versions."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from vlm import __version__
from vlm.backends.threads import usable_cpus


def environment(device: torch.device) -> dict[str, Any]:
    return {
        "commit": commit(),
        "device": device_name(device),
        "vlm": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "transformers": _version("transformers"),
        "onnxruntime": _version("onnxruntime"),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpus": usable_cpus(),
        "load": round(os.getloadavg()[1], 1),  # processes that wanted to run, over the last five minutes
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def commit() -> str | None:
    """Returns the checkout's commit, `+` for uncommitted changes; `$VLM_COMMIT` where there is no checkout;
    else None."""
    if name := os.environ.get("VLM_COMMIT"):
        return name
    head = _git("rev-parse", "--short=12", "HEAD")
    return head and head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ("git", *arguments), cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
