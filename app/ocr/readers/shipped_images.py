"""How pages become an engine's input, on machines that do not have its folder."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from vlm.processing.image_processor import PLACES
from vlm_app.ocr.documents.page_reading import PageImages


@dataclass(frozen=True)
class ShippedImages:
    """The same with the settings of the image processor by their content, not by their path."""

    images: PageImages
    files: tuple[tuple[str, bytes], ...]  # name, content

    @classmethod
    def packed(cls, images: PageImages) -> ShippedImages:
        """Reads the settings, where the folder is."""
        folder = images.source.folder
        paths = [*(folder / name for name, _ in PLACES), *folder.glob("*.[tT][tT][fF]")] if folder else []
        files = tuple((path.name, path.read_bytes()) for path in paths if path.is_file())
        return cls(replace(images, source=replace(images.source, folder=None)), files)

    def unpacked(self) -> PageImages:
        """Writes them into a folder of this machine, which stays."""
        if not self.files:
            return self.images
        folder = Path(tempfile.mkdtemp(prefix="vlm-images-"))
        for name, content in self.files:
            (folder / name).write_bytes(content)
        return replace(self.images, source=replace(self.images.source, folder=folder))
