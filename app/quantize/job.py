"""The whole way of `vlm quantize`: a model, calibrated on a user's inputs, quantized, and both compared on others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Check, Checkpoint, check_output, scratch_beside
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.progress import Progress
from vlm.build.ahead import roles_of_weights, roles_to_quantize
from vlm.build.from_model import checkpoint_of
from vlm.build.kinds import family_of
from vlm.build.locate import Source, locate
from vlm.convert.quantized.export import export_compressed_tensors
from vlm.convert.quantized.exportable import check_export_folder, check_exportable
from vlm.convert.quantized.in_transformers import must_dequantize
from vlm.errors import InputError
from vlm.layers.quant.methods import quantization_of
from vlm.packaged import new_path
from vlm.quantize.calibration import Calibration, forced
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.model import quantize_checkpoint
from vlm.quantize.plan import Plan, plan_of
from vlm.registry.catalogs import family
from vlm.registry.spec import FamilySpec
from vlm_app.core.load_options import LoadOptions
from vlm_app.quantize.config import InputsConfig
from vlm_app.quantize.engines import Engines
from vlm_app.quantize.inputs import check_kind
from vlm_app.quantize.measure import Decoded, decode, said, sequences
from vlm_app.quantize.report import System, check_installed, compared
from vlm_app.quantize.samples import Sample, Samples
from vlm_app.text.tasks import ToInput

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


# what compressed-tensors has no place for -> how a model is quantized without it
REMEDIES = {"pre_quant_scale": "with --scales folded", "input_order": "without --act-order"}
WARM_UP = 2  # inputs before the speed of the quantized model is taken; the dense one has the calibration's


@dataclass(frozen=True)
class QuantizeJob:
    """What is asked for. `framing` returns what makes an input of a text for a model of texts."""

    model: str
    out: Path
    config: QuantizeConfig
    inputs: InputsConfig
    options: LoadOptions
    framing: Callable[[Pipeline], ToInput]
    progress: Progress
    export: Path | None = None  # where a Hugging Face folder of compressed-tensors goes

    def __post_init__(self) -> None:
        for name in ("out", "export"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, new_path(path, name))

    def run(self) -> dict[str, Any]:
        """Writes the quantized checkpoint and returns the figures of its report. Raises a VlmError, for what can be
        told at once before anything is computed."""
        check_output(self.out)
        samples, source = self._samples(), self._source()
        self._check_ahead(source, samples)
        with scratch_beside(self.out) as scratch:
            checkpoint = checkpoint_of(source, scratch, self.progress, check=self._networks_check(samples))
            self._check_plan(plan_of(checkpoint, self.config), source)
            if samples is None:
                quantized = quantize_checkpoint(checkpoint, self.out, self.config, progress=self.progress)
                result = self.figures(checkpoint, quantized)
            else:
                engines = Engines(self.options, scratch, self.progress)
                result = _CalibratedRun(self, checkpoint, samples, engines).record()
        if self.export is not None:
            quantized = Checkpoint.open(self.out)
            export_compressed_tensors(quantized, self.export, like=source.path)
            result["export"] = {"folder": str(self.export), "must_dequantize": must_dequantize(quantized)}
        return result

    def _samples(self) -> Samples | None:
        if (path := self.inputs.calibrate) is None:
            if self.config.needs_inputs:
                what = "--static-activations" if self.config.static_activations else f"--format {self.config.format}"
                raise InputError(f"{what} is calibrated on inputs of yours: add --calibrate pages/ or texts.jsonl.")
            return None
        samples = Samples.read(path, self.config.samples + self.inputs.report_samples, self.config.seed)
        check_installed(samples.drawn)
        return samples

    def _source(self) -> Source:
        source = locate(self.model, progress=self.progress)
        if source.kind == "engine":
            raise InputError(f"{self.model} is an engine; quantize the checkpoint or the folder that it was built of.")
        if source.path.resolve() == self.out.resolve():
            raise InputError(f"--out {self.out} is the model itself; choose another place.")
        if self.export is not None:
            self._check_export(self.export, source)
        return source

    def _check_ahead(self, source: Source, samples: Samples | None) -> None:
        """Raises, before a long conversion, InputError for inputs of a kind that the model does not take, or that do
        not reach what is quantized, and ConfigError for layers that the format cannot keep."""
        if (spec := family_of(source.path, source.kind)) is not None:
            self._check_kinds(spec, samples)
        options = self.config.quantization_options
        roles = roles_to_quantize(source.path, source.kind, self.config.quantization, options)
        self._check_images(roles or [], samples)

    def _networks_check(self, samples: Samples | None) -> Check:
        """Returns what says the same as `_check_ahead` of another program's networks, which are about to be written."""

        def check(name: str, roles: Mapping[str, RoleWeights]) -> None:
            self._check_kinds(family(name), samples)
            config = self.config
            self._check_images(roles_of_weights(roles, config.quantization, config.quantization_options), samples)

        return check

    def _check_kinds(self, spec: FamilySpec, samples: Samples | None) -> None:
        for sample in samples.drawn if samples is not None else ():
            check_kind(spec, sample)

    def _check_images(self, roles: Collection[str], samples: Samples | None) -> None:
        """Raises InputError where a visual network is calibrated and no input may have an image."""
        needs_images = self.config.needs_inputs and "visual" in roles
        drawn = [] if samples is None else samples.drawn
        if needs_images and not any(sample.images or sample.messages for sample in drawn):
            raise InputError(
                f"--calibrate {self.inputs.calibrate} holds no images, and --ignore leaves the visual network to be"
                " quantized, which reads them; give inputs with images, or name visual in --ignore, too."
            )

    def _check_export(self, export: Path, source: Source) -> None:
        """Raises InputError for an export that there is no form for, CheckpointError for a place where none can be."""
        if source.kind != "hf":
            raise InputError(f"--export is made like a Hugging Face folder, and {self.model} is none; leave it out.")
        if export.resolve() == self.out.resolve():
            raise InputError(f"--export {export} is the folder of --out; give each a place of its own.")
        check_export_folder(export)

    def _check_plan(self, plan: Plan, source: Source) -> None:
        """Raises InputError for an export of layers whose inputs are scaled or ordered in front of them, ConfigError of
        layers that are no Linear in Hugging Face's model."""
        if self.export is None:
            return
        if names := [name for name in REMEDIES if plan.options.get(name)]:
            raise InputError(
                f"--export writes compressed-tensors, which has no place for {names[0]}; leave it out, or quantize"
                f" {REMEDIES[names[0]]}."
            )
        check_exportable(HFFolder(source.path), quantization_of(self.config.quantization, plan.options))

    def figures(self, dense: Checkpoint, quantized: Checkpoint) -> dict[str, Any]:
        """Returns what is known without a run."""
        sizes = {"dense": _nbytes(dense), "quantized": _nbytes(quantized)}
        own = {"quantization": quantized.quantization, "quantization_options": quantized.quantization_options}
        return {"model": self.model, "out": str(self.out), "format": self.config.format, **own, "bytes": sizes}


@dataclass(frozen=True)
class _CalibratedRun:
    """A job with inputs: the dense model decodes them and is recorded, its weights are quantized, both are compared."""

    job: QuantizeJob
    checkpoint: Checkpoint
    samples: Samples
    engines: Engines

    def record(self) -> dict[str, Any]:
        """Returns the figures of the report."""
        calibrating, comparing = self.samples.split(self.job.config.samples, self.job.inputs.report_samples)
        engine = self.engines.build(self.checkpoint, "dense")
        with self.engines.loaded(engine) as pipeline:
            calibrated = self._decoded(pipeline, calibrating, "Decoding the inputs of the calibration")
            dense = self._system(pipeline, self._decoded(pipeline, comparing, "Decoding those of the report"))
            device = str(pipeline.device)
        with self.engines.recording(engine) as pipeline:
            result = self._quantized(pipeline, calibrated)
        with self.engines.loaded(self.engines.build(result, "quantized")) as pipeline:
            self._decoded(pipeline, dense.decoded.samples[:WARM_UP], "Warming up")
            decoded = self._decoded(pipeline, dense.decoded.samples, "Decoding with the quantized model")
            quantized = self._system(pipeline, decoded, dense.decoded)
        return {
            **self.job.figures(self.checkpoint, result),
            "device": device,
            "dtype": engine.build.dtype,
            "calibrated_on": len(calibrated.samples),
            "compared_on": len(dense.decoded.samples),
            "held_out": comparing[0] not in calibrating,
            "left_out": [*self.samples.errors, *calibrated.errors, *dense.decoded.errors],
            **compared(dense, quantized),
        }

    def _decoded(self, pipeline: Pipeline, samples: list[Sample], description: str) -> Decoded:
        to_input, progress = self.job.framing(pipeline), self.job.progress
        show = lambda done: progress(description, done, len(samples))  # noqa: E731
        return decode(pipeline, samples, to_input, max_new_tokens=self.job.inputs.max_new_tokens, show=show)

    def _system(self, pipeline: Pipeline, decoded: Decoded, dense: Decoded | None = None) -> System:
        """Returns a system with what it says of the dense model's tokens, which are its own where there is no other."""
        pairs = sequences(dense or decoded)
        return System(decoded, [said(pipeline, request, tokens) for request, tokens in pairs])

    def _quantized(self, pipeline: Pipeline, calibrated: Decoded) -> Checkpoint:
        requests = [forced(request, tokens) for request, tokens in sequences(calibrated)]
        calibration = Calibration(pipeline, requests, self.job.config.seed)
        job = self.job
        return quantize_checkpoint(self.checkpoint, job.out, job.config, calibration=calibration, progress=job.progress)


def _nbytes(checkpoint: Checkpoint) -> int:
    return sum(checkpoint.weight_file(role).stat().st_size for role in checkpoint.roles)
