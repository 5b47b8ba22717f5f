"""A Hugging Face model folder, or what a converter takes, -> our checkpoint."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vlm.artifacts.hugging_face.chat_template import NAMED_DEFAULT, TEMPLATE, read_text
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Check, Checkpoint, write_checkpoint
from vlm.artifacts.progress import Progress
from vlm.convert.quantized.roles import QuantizedRoles, quantized_roles
from vlm.convert.quantized.source import read_quantized
from vlm.convert.roles import convert_roles, named_tensors, role_configs
from vlm.convert.tokenizer_files import completed_settings, completed_tokenizer, make_tokenizer
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, InputError, listed
from vlm.registry.catalogs import check_model, converter_of, converters, match_family
from vlm.registry.images.settings import image_settings
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec


def convert_folder(
    source: Path,
    out: Path,
    *,
    progress: Progress | None = None,
    tokenizer: str | None = None,
    check: Check | None = None,
) -> Checkpoint:
    """Converts a Hugging Face model folder (or what a converter takes) to our checkpoint at `out`, written whole or not
    at all.

    `tokenizer`: what splits texts before BPE where a folder does not say, for a converter that takes it. `check` is
    called with the networks of another program's model before they are written: a config.json tells of itself. Raises
    ConfigError for a model or field that is not supported; one CheckpointError with every reason why the weights do not
    fit, or for a folder that is damaged.
    """
    if Path(source).exists():
        check_model(Path(source))
    with invalid_values(source):
        return _convert_folder(Path(source), Path(out), progress, tokenizer, check)


def convert_file(
    source: Path,
    out: Path,
    *,
    progress: Progress | None = None,
    tokenizer: str | None = None,
    check: Check | None = None,
) -> Path:
    """Converts what `convert_folder` does, and what was tuned beside a model and saved alone: prompts and adapters
    become folders of their own. Returns its path."""
    converter = converter_of(source)
    if converter is None or "tuned" not in converter.options or tokenizer is not None:
        return convert_folder(source, out, progress=progress, tokenizer=tokenizer, check=check).path
    check_model(source)
    with invalid_values(source):
        return converter.load()(source, out, progress=progress, check=check, tuned=True).path


def _convert_folder(
    source: Path, out: Path, progress: Progress | None, tokenizer: str | None, check: Check | None
) -> Checkpoint:
    options = {} if tokenizer is None else {"tokenizer": tokenizer}
    converter = converter_of(source)
    if options and (converter is None or "tokenizer" not in converter.options):
        programs = listed(f"{ref.program}'s" for ref in converters() if "tokenizer" in ref.options)
        raise InputError(
            f"`tokenizer` is for {programs} models, {source} is none; leave it out.", settings=("tokenizer",)
        )
    if converter is not None:
        return converter.load()(source, out, progress=progress, check=check, **options)
    folder = HFFolder(source)
    spec = match_family(folder.config, folder.path)
    configs = role_configs(spec, folder.config)
    _check_images(folder, spec, configs)
    result = _roles(folder, spec, configs)
    with _processor_files(folder, spec) as files:
        return write_checkpoint(
            out,
            family=spec.name,
            roles=result.roles,
            generation=spec.generation_settings(folder.config, folder.generation),
            source=folder.path.resolve().name,
            processor_files=files,
            quantization=result.quantization,
            quantization_options=result.options,
            progress=progress,
        )


def _check_images(folder: HFFolder, spec: FamilySpec, configs: RoleConfigs) -> None:
    """Raises CheckpointError for settings of images that none can be read by."""
    if configs.visual is not None and spec.image_processors:
        settings = image_settings(folder.path, spec.image_processors, CheckpointError)
        if settings is not None:
            visual = configs.visual
            settings.check_sizes(CheckpointError, visual.image_size, side_step=visual.side_step)


def _roles(folder: HFFolder, spec: FamilySpec, configs: RoleConfigs) -> QuantizedRoles:
    """Returns the networks of a folder; where its layers are quantized, they stay so."""
    quantized = read_quantized(folder)
    tensors = folder.tensors if quantized is None else quantized.tensors
    converted = convert_roles(named_tensors(tensors, spec), spec, configs, folder.path)
    if quantized is None:
        return QuantizedRoles({role: each.weights for role, each in converted.items()})
    return quantized_roles(converted, quantized, named_tensors(quantized.names, spec))


@contextlib.contextmanager
def _processor_files(folder: HFFolder, spec: FamilySpec) -> Iterator[list[Path]]:
    """Yields the folder's files, and those of its tokenizer that are made where there are none, or completed."""
    files = {file.name: file for file in folder.processor_files}
    with tempfile.TemporaryDirectory() as scratch:

        def write(name: str, content: str | None) -> None:
            if content is not None:
                files[name] = Path(scratch) / name
                files[name].write_text(content, encoding="utf-8")

        if TEMPLATE not in files and (named := folder.path / NAMED_DEFAULT).exists():
            write(TEMPLATE, read_text(named))
        for name, content in make_tokenizer(folder.path, spec).items() if "tokenizer.json" not in files else ():
            write(name, content)
        if (tokenizer := files.get("tokenizer.json")) is not None:
            write("tokenizer.json", completed_tokenizer(tokenizer, spec.added_tokens, folder.path))
            write("tokenizer_config.json", completed_settings(folder.path))
        yield [*files.values()]
