"""How pages become an engine's input, on machines that do not have its folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256

from vlm.artifacts.cache import cache_errors, cache_root
from vlm.artifacts.files import write_atomically
from vlm.registry.images.settings import PLACES
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
        """Writes them into a folder of this machine's cache, one for all that have the same content."""
        if not self.files:
            return self.images
        root = cache_root()
        folder = root / "image-processors" / sha256(repr(self.files).encode()).hexdigest()[:32]
        with cache_errors(root):
            for name, content in self.files:
                write_atomically(folder / name, content)
        return replace(self.images, source=replace(self.images.source, folder=folder))
