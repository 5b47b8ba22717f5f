"""The engine of a job: resolved once, loaded by whatever runs it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vlm.artifacts.files import canonical_json
from vlm.artifacts.hashes import sha256_of
from vlm.artifacts.progress import Progress
from vlm.backends.threads import usable_cpus
from vlm.config import BuildConfig
from vlm.errors import InputError
from vlm.registry.catalogs import family
from vlm.registry.images.processor import QuestionUse
from vlm_app.core.load_options import LoadOptions
from vlm_app.ocr.documents.pages import InProcess

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.registry.spec import FamilySpec
    from vlm_app.ocr.documents.page_reading import PageImages
    from vlm_app.ocr.documents.pages import Renderer


MOST_WORKERS = 32  # each has some hundred MB


@dataclass(frozen=True)
class EngineConfig:
    """A built engine and where it runs."""

    CUDA_BATCH_SIZE: ClassVar[int] = 64  # a decode step costs a GPU about the same for 1 page and for 64

    path: Path
    model: str  # what it was built from
    options: LoadOptions  # how it was resolved, and is loaded
    devices: tuple[str, ...]  # an engine on each
    workers: int | None = None  # processes that read pages; None: by the number of cores
    exact_pixels: bool = False  # pages are drawn at full size, whatever the model keeps of them
    prompt: str | None = None  # what is asked of each page
    question: str | None = None  # which each page's input has, or which is drawn on it
    is_drawn: bool = False  # is the question drawn?

    @classmethod
    def resolved(
        cls,
        model: str,
        devices: tuple[str, ...],
        options: LoadOptions,
        *,
        workers: int | None,
        progress: Progress | None = None,
        elsewhere: bool = False,
        exact_pixels: bool = False,
        prompt: str | None = None,
        question: str | None = None,
    ) -> EngineConfig:
        """Builds what is missing; the devices of other machines (`elsewhere`) are not looked at.

        Raises what `vlm.build.store.resolve` raises, and InputError for a device that is not there, for a model
        that reads no images, or for a prompt or a question to one that takes none.
        """
        from vlm.artifacts.native.engine_dir import EngineDir
        from vlm.backends.devices import resolve_device
        from vlm.build.locate import locate

        kinds = {name.partition(":")[0] if elsewhere else resolve_device(name).type for name in devices}
        on = "cuda" if "cuda" in kinds else "cpu"
        if "max_batch_size" not in options.build and on == "cuda" and locate(model).kind != "engine":
            options = options.overridden_by(LoadOptions({"max_batch_size": cls.CUDA_BATCH_SIZE}))
        path = options.resolve(model, on, progress)
        engine = EngineDir.open(path, verify=False)
        check_reads_images(family(engine.family), model)
        cls._check_adapters(path, options)
        words = page_words(engine, model, prompt, question)
        options = options.overridden_by(LoadOptions({"dtype": engine.build.dtype, "backend": engine.build.backend}))
        return cls(path, model, options, devices, workers=workers, exact_pixels=exact_pixels, **words)

    @staticmethod
    def _check_adapters(path: Path, options: LoadOptions) -> None:
        """Raises InputError for several adapters, and what read_adapter raises for one that cannot be loaded."""
        from vlm.api.model.adapters import read_adapter
        from vlm.artifacts.native.engine_dir import EngineDir

        options.check_one_adapter("all pages are read")
        for folder in options.runtime_config().lora_folders.values():
            read_adapter(EngineDir.open(path, verify=False), folder)

    @property
    def words(self) -> dict[str, str]:
        """Returns what the input of each page has beside its image."""
        said = {"prompt": self.prompt, "question": None if self.is_drawn else self.question}
        return {name: text for name, text in said.items() if text is not None}

    @property
    def adapter(self) -> dict[str, str]:
        """Returns the adapter that all pages are read with, by what `Pipeline.as_completed` calls it."""
        return self.options.adapter

    def here(self) -> EngineConfig:
        """Returns the same engine on another machine, built there where its folder is not shared."""
        if self.path.is_dir():
            return self
        on = self.devices[0].partition(":")[0]
        return replace(self, path=self.options.resolve(self.model, on))

    def settings(self, max_new_tokens: int | None) -> dict[str, object]:
        """Returns what decides on the text of a page."""
        manifest = self._open().manifest
        content = {name: entry["sha256"] for name, entry in manifest.files.items()}
        mark = hashlib.sha256(canonical_json(content).encode()).hexdigest()[:12]
        model = f"{manifest.family} {mark}"
        more = {name: value for name, value in self.options.build.items() if name == "max_seq_len"}
        backend = self.options.build.get("backend", BuildConfig.backend)
        more |= {"backend": backend} if backend != BuildConfig.backend else {}
        more |= {"exact_pixels": True} if self.exact_pixels else {}
        more |= {"prompt": self.question} if self.is_drawn else self.words
        for folder in self.options.runtime_config().lora_folders.values():
            files = {file.name: sha256_of(file) for file in folder.glob("adapter_*")}
            more["adapter"] = hashlib.sha256(canonical_json(files).encode()).hexdigest()[:12]
        return {"model": model, "dtype": manifest.dtype, "max_new_tokens": max_new_tokens, **more}

    @property
    def batch_size(self) -> int:
        """Pages that each engine reads at once."""
        return self.options.build.get("max_batch_size", self._open().limits.max_batch_size)

    def on(self, device: str) -> EngineConfig:
        """Returns one of the engines, with its share of the workers."""
        count = len(self.devices)
        usual = usual_workers(device, count)
        shared = usual if self.workers is None else self.workers and max(1, self.workers // count)
        return replace(self, devices=(device,), workers=shared)

    def pipeline(self) -> Pipeline:
        """Loads the engine on the first device."""
        here = self.options.overridden_by(LoadOptions(runtime={"device": self.devices[0]}))
        # whatever reads its pages, and in whatever order they come, a document has the same text
        return here.load(self.path, batch_invariant=True)

    def _open(self, *, verify: bool = False) -> EngineDir:
        from vlm.artifacts.native.engine_dir import EngineDir

        return EngineDir.open(self.path, verify=verify)

    def page_images(self) -> PageImages | None:
        """Returns how pages become what the engine takes; None: it takes them as pictures."""
        from vlm.processing.processor import processor_source
        from vlm_app.ocr.documents.page_reading import PageImages

        engine = self._open()
        source = None if self._reads_in_steps(engine) else processor_source(engine)
        return (
            None if source is None else PageImages(source, self.exact_pixels, self.question if self.is_drawn else None)
        )

    def _reads_in_steps(self, engine: EngineDir) -> bool:
        """Says whether pages are read part by part: of a model that was published so, and is asked nothing else."""
        from vlm.processing.processor import Processor

        has_steps = not self.words and bool(family(engine.family).page_steps)
        return has_steps and Processor.from_engine(engine).page_steps is not None

    def renderer(self) -> Renderer:
        from vlm_app.ocr.documents.render_pool import RenderPool

        images = self.page_images()
        workers = usual_workers(self.devices[0]) if self.workers is None else self.workers
        return RenderPool(workers, images) if workers else InProcess(images)


def usual_workers(device: str, engines: int = 1) -> int:
    """Returns how many processes read pages for one of so many engines: on the CPU engines need half of the cores."""
    from vlm.backends.devices import resolve_device

    cores = usable_cpus() // engines
    return max(1, min(MOST_WORKERS, cores - 1 if resolve_device(device).type == "cuda" else cores // 2))


def check_reads_images(family: FamilySpec, model: str) -> None:
    """Raises InputError for a model of texts, before a job begins that would fail at each page."""
    if not family.takes_images:
        raise InputError(f"{model} takes {family.inputs[0]}, not images; vlm models lists what takes images.")


def page_words(engine: EngineDir, model: str, prompt: str | None, question: str | None) -> dict[str, Any]:
    """Returns what each page is asked, as fields of an EngineConfig. Raises InputError for a prompt or a question that
    the model does not take, and where it needs one."""
    published = page_prompt(family(engine.family), model, prompt)
    if not draws_questions(engine):
        asked = published if question is None else prompt
        if question is not None:
            check_question(engine, model, asked, question)
        return {"prompt": asked, "question": question}
    if None not in (prompt, question):
        raise InputError("--prompt, --question were given together; the question is drawn on each page: give one.")
    if (drawn := published if question is None else question) is None:
        raise InputError(f"{model} answers a question, which is drawn on each page; give it with --question.")
    return {"question": drawn, "is_drawn": True}


def draws_questions(engine: EngineDir) -> bool:
    """Says whether a question stands on each picture that the engine's model reads."""
    from vlm.processing.processor import processor_source

    source = processor_source(engine) if family(engine.family).takes_question else None
    return source is not None and source.load().question_use is QuestionUse.DRAWN


def page_prompt(family: FamilySpec, model: str, prompt: str | None) -> str | None:
    """Returns what a model is asked of each page: the prompt, or what a publication of that name was trained with.
    Raises InputError for a prompt where none is taken."""
    if prompt is not None and not (family.takes_prompt or family.takes_question):
        raise InputError(f"--prompt is {prompt!r}, but {family.name} reads pages without being asked; leave it out.")
    name = Path(model).name.lower()
    published = (text for begin, text in family.page_prompts.items() if name.startswith(begin.lower()))
    return next(published, None) if prompt is None else prompt


def check_question(engine: EngineDir, model: str, prompt: str | None, question: str) -> None:
    """Raises InputError for a question that the engine's model does not answer, of what the prompt says."""
    from vlm.processing.processor import Processor

    processor = Processor.from_engine(engine)
    if not processor.takes_question:
        other = "ask with --prompt" if processor.family.takes_prompt else "leave it out"
        raise InputError(f"--question is {question!r}, but {model} reads pages without a question; {other}.")
    if processor.family.prompt_tasks is not None:
        processor.family.prompt_tasks.resolve(prompt, None, question)
    elif prompt is not None:
        raise InputError("--prompt, --question were given together; give one of them.")
    elif processor.tasks is not None:
        processor.tasks.prompt(None, question)
