"""What workers are forked from, started before this process imports torch: both import it side by side."""

from __future__ import annotations

from collections.abc import Iterable

from vlm.build.kinds import family_of, kind_of
from vlm.build.locate import packaged_models
from vlm.errors import VlmError
from vlm.packaged import user_path
from vlm.processing.workers.fork_server import Preparation, start_fork_server


def start_early(models: Iterable[str], preload: str) -> None:
    """Starts it with the image processors of these models' families, where one reads images. It is left to the pool of
    workers, who are told of all of them, for a model that is not on this disk, or of which its converter alone can tell
    the family. With this process it ends."""
    preparations: list[Preparation] = []
    for model in models:
        try:
            own = _preparations(model)
        except VlmError:  # it is told when the model is loaded
            return
        if own is None:
            return
        preparations += own
    if preparations:
        start_fork_server(preload, preparations)


def _preparations(model: str) -> list[Preparation] | None:
    """Returns what reading a model's images takes, nothing for a model of texts; None: that is not known yet."""
    path = packaged_models().get(model, user_path(model))
    if (kind := kind_of(path)) is None or (family := family_of(path, kind)) is None:
        return None
    if not family.image_processors:
        return []
    from vlm.processing.media.image_processor import ProcessorSource
    from vlm.processing.media.reading import WarmUp

    folder = path if kind == "hf" else path / "processor"
    # made for images of any size
    return [WarmUp(ProcessorSource(folder, family.image_processors, (8, 8), fixed_size=False))]
