"""What comes with the package: trained models and adapters, a folder each; and what a user names instead."""

from __future__ import annotations

import os
from pathlib import Path

from vlm.errors import NAME_A_PLACE, InputError, shown

ASSETS = Path(__file__).parent / "assets"
MODEL, ADAPTER = "config.json", "adapter_config.json"  # the files that say which one a folder holds


def packaged(file: str) -> dict[str, Path]:
    """Returns names and folders of what comes with the package and has a file of this name."""
    folders = sorted(ASSETS.iterdir()) if ASSETS.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / file).is_file()}


def adapter_folder(name: str) -> Path:
    """Returns the folder of an adapter; a packaged name stands for that one, unless a folder here is called so."""
    here = user_path(name)
    return here if os.path.exists(here) else packaged(ADAPTER).get(name, here)


def user_path(name: str | Path) -> Path:
    """Returns a path as a user writes it: `~` is their home. Whether something is there os.path says, which raises for
    no name, however long; pathlib does."""
    try:
        return Path(os.path.expanduser(name))
    except ValueError:  # a null byte in a user's name
        return Path(name)


def named_path(path: str | Path, setting: str) -> Path:
    """Returns a path that a caller gave as a setting. Raises InputError for what is none, and for an empty one: pathlib
    takes it for the folder that the program runs in."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{setting} is {shown(path)}; {NAME_A_PLACE}.", settings=(setting,))
    if path == "":
        raise InputError(f"{setting} is empty; {NAME_A_PLACE}.", settings=(setting,))
    return Path(path)


def new_path(path: str | Path, setting: str) -> Path:
    """Returns the path of what is to be written, as `named_path` does. Raises InputError for a packaged model's name,
    too: that model, not what was written, is what the name stands for wherever a model is named."""
    if str(path := named_path(path, setting)) in packaged(MODEL):
        raise InputError(
            f"{setting} {path} is the name of a packaged model, which comes before a folder of that name; give another"
            f" one ({path}.vlm).",
            settings=(setting,),
        )
    return path


def is_adapter_name(name: str) -> bool:
    """Says whether requests and logs can name an adapter so: printable words."""
    return name.isprintable() and name == name.strip() and any(map(str.isalnum, name))
