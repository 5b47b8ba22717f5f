"""Ray: a cluster that is there, or one of this machine alone."""

from __future__ import annotations

import importlib
import logging
import os

from vlm.errors import InputError


def join_cluster(module: str, install: str) -> bool:
    """Joins the cluster that $RAY_ADDRESS names, or starts one on this machine; `module` of Ray is used there. Says
    whether it has GPUs. Raises InputError, with the command that installs what is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray = importlib.import_module("ray")
        importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"--ray needs the package {error.name}: {install}.") from None
    if not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise InputError(f"no Ray cluster can be reached or started: {first_line(error)}.") from None
    return bool(ray.cluster_resources().get("GPU"))


def first_line(error: Exception) -> str:
    """Returns the reason itself, without the trace that Ray puts before it."""
    cause = getattr(error, "cause", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[-1].rstrip(".")
