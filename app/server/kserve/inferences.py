"""A request of KServe's protocol, read for the kind of model that it is for."""

from __future__ import annotations

from vlm_app.server.core.setting_names import calling
from vlm_app.server.kserve.encoder_inference import EncoderInference
from vlm_app.server.kserve.inference import Inference
from vlm_app.server.repository.service import Service
from vlm_app.server.tensors.wire import InferRequest


def read_inference(service: Service, request: InferRequest, stop: tuple[str, ...] = ()) -> Inference:
    """Raises InputError with one sentence. `stop`: strings that end every row's text."""
    kind = Inference if service.pipeline.capabilities.generates else EncoderInference
    service.tensors.check_outputs(request.outputs or ())
    with calling(request.sent_names):
        return kind(service, request, stop)
