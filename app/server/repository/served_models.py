"""What a server is told to serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir, is_engine
from vlm.artifacts.progress import Progress
from vlm.errors import InputError, VlmError, listed
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader
from vlm_app.server.repository.repository import Entry


@dataclass(frozen=True)
class ServedModels:
    """Models by their names, those of model repositories, and how they are loaded."""

    models: Mapping[str, str]
    urls: Sequence[str]  # of model repositories
    options: LoadOptions
    warm: bool | None = None  # None: on CUDA

    def resolved(self, on: str, progress: Progress | None = None) -> ServedModels:
        """Builds the engines of the models that are named, for cpu or cuda, as far as they are not there."""
        engines = {name: str(self.options.resolve(model, on, progress)) for name, model in self.models.items()}
        return replace(self, models=engines)

    @property
    def ranks(self) -> int:
        """Returns how many ranks run the largest of the engines that are named."""
        engines = [Path(path) for path in self.models.values() if is_engine(Path(path))]
        return max((EngineDir.open(path, verify=False).build.num_ranks for path in engines), default=1)

    def load(
        self, on_failure: Callable[[VlmError], object], progress: Progress | None = None
    ) -> tuple[dict[str, Pipeline], Repositories]:
        """Loads the models. One that was named must load; `on_failure` is told why one of a repository does not."""
        loader = Loader(self.options, warm=self.warm, progress=progress)
        repositories = Repositories(self.urls, loader)
        repositories.scan()
        if both := sorted(self.models.keys() & repositories.entries.keys()):
            raise InputError(f"{listed(both)} is both a MODEL and in a model repository; give it as NAME=MODEL.")
        loader.expect(len(self.models) + repositories.loadable)
        pipelines = {name: loader.model(model) for name, model in self.models.items()}
        for name, entry in list(repositories.entries.items()):
            try:
                pipelines[name] = repositories.load(name)
            except VlmError as error:
                on_failure(_about(name, error, entry))
        if not pipelines:
            raise InputError(f"no model of {listed(self.urls)} could be loaded.")
        return pipelines, repositories


def _about(name: str, error: VlmError, entry: Entry | VlmError) -> VlmError:
    """Returns an error that names the model which does not load. What its configuration says is called as there, not as
    on the command line."""
    given = entry.options if isinstance(entry, Entry) else None  # else its configuration is what cannot be read
    settings = () if given is None else tuple(s for s in error.settings if s not in {**given.build, **given.runtime})
    return VlmError(f"{name} is not served: {error}", settings=settings)
