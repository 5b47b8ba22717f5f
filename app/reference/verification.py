"""Is an engine's output that of Hugging Face? Random inputs, decoded by both, and what may differ by rounding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm_app.reference.accuracy import comparable, fitting_beside
from vlm_app.reference.huggingface import check_family
from vlm_app.reference.random_inputs import RandomInputs
from vlm_app.reference.reference import Reference
from vlm_app.reference.teacher_forcing import Distance, Place, distances, places

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.config import BuildConfig
    from vlm.requests.request import Request

# of an engine's computing type: the mean error of a request, and the percentage of equal tokens at least. Measured on
# the packaged models and on tiny random ones; noise of 10% in one matrix of such a model is beyond most.
TOLERANCE = {"float32": 1e-4, "float16": 0.02, "bfloat16": 0.1}
AGREEMENT = {"float32": 99.0, "float16": 95.0, "bfloat16": 85.0}
QUANTIZED = (0.2, 80.0)  # both, of quantized weights, whatever the computing type
LARGEST = 10  # times the tolerance: what the largest error may be
TIE = 4  # times the tolerance: another token is a near tie where the reference's margin is smaller


@dataclass(frozen=True)
class Tolerances:
    """What an engine may differ by: errors and margins in standard deviations, agreement in percent."""

    mean_error: float
    agreement: float

    @classmethod
    def for_build(cls, build: BuildConfig, tolerance: float | None = None) -> Tolerances:
        usual = (TOLERANCE[build.dtype], AGREEMENT[build.dtype]) if build.quantization is None else QUANTIZED
        return cls(usual[0] if tolerance is None else tolerance, usual[1])

    @property
    def largest_error(self) -> float:
        return LARGEST * self.mean_error

    @property
    def tie(self) -> float:
        return TIE * self.mean_error


@dataclass(frozen=True)
class Verdict:
    """One request of a verification: a distance for each of the reference's tokens."""

    request: str  # what it was
    distances: tuple[Distance, ...]

    @property
    def tokens(self) -> int:
        return len(self.distances)

    @property
    def agreement(self) -> float:
        """Returns the percentage of the reference's tokens that the engine chooses after those before."""
        return 100 * sum(one.same for one in self.distances) / max(self.tokens, 1)

    @property
    def mean_error(self) -> float:
        return sum(one.error for one in self.distances) / max(self.tokens, 1)

    @property
    def largest_error(self) -> float:
        return max((one.error for one in self.distances), default=0.0)

    def near_ties(self, tolerances: Tolerances) -> int:
        return sum(not one.same and one.margin <= tolerances.tie for one in self.distances)

    def beyond(self, tolerances: Tolerances) -> list[str]:
        """Names what rounding does not explain; a NaN is beyond everything."""
        mismatches = self.tokens - self.near_ties(tolerances) - sum(one.same for one in self.distances)
        reasons = [f"{mismatches} wrong token{'s' if mismatches > 1 else ''}"] if mismatches else []
        reasons += [] if self.mean_error <= tolerances.mean_error else ["mean error"]
        return reasons + ([] if self.largest_error <= tolerances.largest_error else ["largest error"])


def agreement(verdicts: list[Verdict]) -> float:
    """Returns the percentage of equal tokens of all requests."""
    return Verdict("", tuple(one for each in verdicts for one in each.distances)).agreement


def verify(
    pipeline: Pipeline, folder: Path, new_tokens: int, seed: int = 0, reference_dtype: str | None = None
) -> list[Verdict]:
    """Compares the pipeline with the folder's model on every kind of input, all in one batch.

    `reference_dtype` None: the engine's. Raises InputError where so many tokens leave no room, and OutOfMemoryError.
    """
    check_family(folder, pipeline)
    config = HFFolder(folder).config
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    inputs = RandomInputs(pipeline, placeholder, new_tokens, seed).all()
    sampling = comparable({"max_new_tokens": new_tokens, "min_new_tokens": new_tokens})  # none ends early
    requests = [pipeline.request(source, **sampling) for _, source in inputs]
    with fitting_beside():
        reference = Reference.load(folder, pipeline, reference_dtype)
        theirs = [reference.tokens(request) for request in requests]
    ours = places(pipeline, requests, theirs)
    return [
        Verdict(name, tuple(_distances(own, tokens, reference, request)))
        for (name, _), own, tokens, request in zip(inputs, ours, theirs, requests, strict=True)
    ]


def _distances(ours: list[Place], tokens: list[int], reference: Reference, request: Request) -> list[Distance]:
    """Returns how far the engine's places are from the reference's tokens of a request."""
    exact = reference.log_probabilities(request, tokens)
    return distances(ours, tokens, exact, forced=request.params.forced_tokens)
