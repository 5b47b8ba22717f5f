"""What comes with the package: trained models and adapters, a folder each."""

from __future__ import annotations

from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
MODEL, ADAPTER = "config.json", "adapter_config.json"  # the files that say which one a folder holds


def packaged(file: str) -> dict[str, Path]:
    """Returns names and folders of what comes with the package and has a file of this name."""
    folders = sorted(ASSETS.iterdir()) if ASSETS.is_dir() else []
    return {folder.name: folder for folder in folders if (folder / file).is_file()}


def adapter_folder(name: str) -> Path:
    """Returns the folder of an adapter; a packaged name stands for that one, unless a folder here is called so."""
    here = Path(name).expanduser()
    return here if here.exists() else packaged(ADAPTER).get(name, here)
