"""A sample -> an input of a pipeline, for models of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlm.errors import InputError
from vlm.registry.spec import FamilySpec
from vlm_app.quantize.samples import Sample
from vlm_app.text.tasks import ToInput

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline


def input_of(pipeline: Pipeline, sample: Sample, to_input: ToInput) -> dict[str, Any]:
    """Returns what the pipeline takes for a sample; `to_input` makes it of a text for a model of texts alone. Raises
    InputError for a sample of a kind that the model does not take."""
    able = pipeline.capabilities
    check_kind(pipeline.family, sample)
    if able.takes_prompt:
        images = {"images": list(sample.images)} if sample.images else {}
        words = {"messages": sample.messages} if sample.messages is not None else {"prompt": sample.text}
        said = {name: value for name, value in {**images, **words}.items() if value != ""}
        # what is measured is one request, not the parts of a page
        return said | ({"prompt": ""} if able.reads_pages_in_steps and said.keys() == {"images"} else {})
    if sample.images:
        asked = {"question": sample.text} if sample.text and able.takes_question else {}
        return {"images": list(sample.images), **asked}
    return to_input(sample.text)


def check_kind(family: FamilySpec, sample: Sample) -> None:
    """Raises InputError for a sample of a kind that the models of a family do not take."""
    if sample.images and not family.takes_images:
        raise InputError(f"{sample.place} is an image, and {family.name} takes texts; calibrate with a file of texts.")
    if not sample.images and not (family.takes_text or family.takes_prompt):
        raise InputError(f"{sample.place} is a text, and {family.name} reads images; calibrate with a folder of pages.")
