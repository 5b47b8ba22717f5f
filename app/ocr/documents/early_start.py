"""What workers are forked from, started before this process imports torch: both import it side by side."""

from __future__ import annotations

import contextlib
from pathlib import Path

from vlm.build.kinds import family_of, kind_of
from vlm.build.store import packaged_models
from vlm.errors import VlmError
from vlm.processing.fork_server import start_fork_server
from vlm_app.ocr.documents.render_pool import PRELOAD


def start_early(model: str) -> None:
    """Starts it with the image processor of a model's family. It is left to the pool of workers for a model that is not
    on this disk, or of which its converter alone can tell the family."""
    path = packaged_models().get(model, Path(model).expanduser())
    with contextlib.suppress(VlmError):  # it is told when the model is loaded
        if (kind := kind_of(path)) is None or (family := family_of(path, kind)) is None or not family.image_processors:
            return
        from vlm.processing.image_processor import ProcessorSource
        from vlm.processing.media_reading import WarmUp

        folder = path if kind == "hf" else path / "processor"
        source = ProcessorSource(folder, family.image_processors, (8, 8), fixed_size=False)  # made for any size
        start_fork_server(PRELOAD, [WarmUp(source)])
