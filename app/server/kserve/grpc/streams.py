"""Triton's bidirectional stream: requests come one by one, and each is answered as it is decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
from tritonclient.grpc import service_pb2 as pb

from vlm.errors import InputError
from vlm_app.server.kserve.descriptions import find
from vlm_app.server.kserve.grpc import messages
from vlm_app.server.kserve.grpc.failures import cancelled_when_over, error_text, refusals
from vlm_app.server.kserve.grpc.receiving import END, next_message
from vlm_app.server.kserve.inferences import read_inference
from vlm_app.server.repository.room import Room
from vlm_app.server.repository.service import Services

AT_ONCE = 256  # requests of a stream; the next is read when one has ended
IDLE_SECONDS = 600  # in which neither a request comes nor one runs
STRICT = ("triton_grpc_error", "true")
Message = pb.ModelInferRequest | InputError  # or what is wrong with it


class InferStream:
    """One client's stream. What is wrong with a request is its response, and ends the stream where the client's
    metadata ask for that (Triton's `triton_grpc_error: true`)."""

    def __init__(self, services: Services, context: grpc.aio.ServicerContext, max_bytes: int):
        """`max_bytes`: of the requests that run at once."""
        self._services, self._context, self._max_bytes = services, context, max_bytes
        self._strict = STRICT in [(key, value) for key, value in context.invocation_metadata() or ()]
        self._write_lock, self._turns = asyncio.Lock(), asyncio.Lock()
        self._tasks: dict[asyncio.Task[None], int] = {}  # a request's bytes
        self._failure: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def serve(self, requests: AsyncIterator[Message]) -> None:
        """Returns when all requests have been answered; leaving it ends those that run."""
        reader = asyncio.ensure_future(self._read(requests))
        try:
            await asyncio.wait((reader, self._failure), return_when=asyncio.FIRST_COMPLETED)
            async with refusals(self._context):
                if self._failure.done():
                    raise self._failure.result()
                reader.result()
        finally:
            tasks = [reader, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, requests: AsyncIterator[Message]) -> None:
        last: asyncio.Task[None] | None = None
        while (message := await next_message(requests, IDLE_SECONDS, busy=lambda: bool(self._tasks))) is not END:
            size = 0 if isinstance(message, InputError) else message.ByteSize()
            await self._wait_for_room(size)
            last = asyncio.create_task(self._answer(message, last))
            self._tasks[last] = size
            last.add_done_callback(self._tasks.pop)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _wait_for_room(self, size: int) -> None:
        tasks = self._tasks
        while tasks and (len(tasks) >= AT_ONCE or sum(tasks.values()) + size > self._max_bytes):
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _answer(self, message: Message, before: asyncio.Task[None] | None) -> None:
        """Answers one message. `before`: answers the stream's last request, which comes first of those that get one
        response each."""
        try:
            if isinstance(message, InputError):
                raise message
            service = find(self._services, message.model_name, message.model_version)
            request = await asyncio.to_thread(messages.read, message)
            inference = await asyncio.to_thread(read_inference, service, request)
            empty_final = inference.parameters.empty_final and service.decoupled
            async with aclosing(inference.responses(self._admitted)) as responses:
                async for each in responses:
                    final = each.last and not empty_final
                    response = await asyncio.to_thread(
                        messages.write_streamed, (service.name, service.version), request, each.outputs, final=final
                    )
                    if before is not None and not service.decoupled:
                        await asyncio.wait((before,))
                    await self._send(response)
            if empty_final:
                await self._send(_last(message))
        except Exception as error:
            await self._fail(message, error)

    async def _admitted(self, room: Room, count: int) -> None:
        """Waits for room, as one of this stream's requests at a time: among streams none is first by asking more."""
        async with self._turns:
            await room.wait(count)

    async def _send(self, response: pb.ModelStreamInferResponse | bytes) -> None:
        async with self._write_lock:
            with cancelled_when_over():
                await self._context.write(response)

    async def _fail(self, message: Message, error: Exception) -> None:
        if not self._strict:
            await self._send(_last(message, error_text(error)))
        elif not self._failure.done():
            self._failure.set_result(error)


def _last(message: Message, error: str = "") -> pb.ModelStreamInferResponse:
    """Returns a request's last response, without outputs."""
    response = pb.ModelInferResponse(parameters={messages.FINAL: pb.InferParameter(bool_param=True)})
    if not isinstance(message, InputError):
        response.model_name, response.model_version, response.id = message.model_name, message.model_version, message.id
    return pb.ModelStreamInferResponse(infer_response=response, error_message=error)
