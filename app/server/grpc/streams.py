"""Triton's bidirectional stream: requests come one by one, and each is answered as it is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from tritonclient.grpc import service_pb2 as pb

from vlm_app.server.descriptions import find
from vlm_app.server.grpc import messages
from vlm_app.server.grpc.failures import code_of, told
from vlm_app.server.grpc.interceptors import UNREADABLE
from vlm_app.server.inferences import read_inference
from vlm_app.server.service import Services

AT_ONCE = 256  # requests of a stream; the next is read when one has ended
FINAL, STRICT = "triton_final_response", ("triton_grpc_error", "true")


class InferStream:
    """One client's stream. What is wrong with a request is its response, and ends the stream where the client's
    metadata ask for that (Triton's `triton_grpc_error: true`)."""

    def __init__(self, services: Services, context: grpc.aio.ServicerContext):
        self._services, self._context = services, context
        self._strict = STRICT in [(key, value) for key, value in context.invocation_metadata() or ()]
        self._writing, self._room = asyncio.Lock(), asyncio.Semaphore(AT_ONCE)
        self._failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def serve(self, requests: AsyncIterator[pb.ModelInferRequest]) -> None:
        """Returns when all requests have been answered; leaving it ends those that run."""
        reading = asyncio.ensure_future(self._read(requests))
        try:
            await asyncio.wait((reading, self._failed), return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                error = self._failed.result()
                await self._context.abort(code_of(error), told(error))
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[pb.ModelInferRequest]) -> None:
        last: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as group:
            async for message in requests:
                await self._room.acquire()
                last = group.create_task(self._answer(message, last))
                last.add_done_callback(lambda _: self._room.release())

    async def _answer(self, message: pb.ModelInferRequest | None, before: asyncio.Task[None] | None) -> None:
        """`before`: answers the stream's last request, which comes first of those that get one response each."""
        try:
            if message is None:
                raise UNREADABLE
            service = find(self._services, message.model_name, message.model_version)
            request = await asyncio.to_thread(messages.read, message)
            inference = await asyncio.to_thread(read_inference, service, request)
            empty_final = inference.parameters.empty_final and service.decoupled
            async with aclosing(inference.responses()) as responses:
                async for each in responses:
                    made = messages.written((service.name, service.version), request, each.outputs)
                    if before is not None and not service.decoupled:
                        await asyncio.wait((before,))
                    await self._send(made, final=each.last and not empty_final)
            if empty_final:
                await self._send(_empty(message), final=True)
        except Exception as error:
            await self._fail(message, error)

    async def _send(self, response: pb.ModelInferResponse, *, final: bool, error: str = "") -> None:
        response.parameters[FINAL].bool_param = final
        async with self._writing:
            await self._context.write(pb.ModelStreamInferResponse(infer_response=response, error_message=error))

    async def _fail(self, message: pb.ModelInferRequest | None, error: Exception) -> None:
        if not self._strict:
            await self._send(_empty(message or pb.ModelInferRequest()), final=True, error=told(error))
        elif not self._failed.done():
            self._failed.set_result(error)


def _empty(message: pb.ModelInferRequest) -> pb.ModelInferResponse:
    return pb.ModelInferResponse(model_name=message.model_name, model_version=message.model_version, id=message.id)
