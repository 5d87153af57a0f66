"""The routes of a model host.

What belongs here: one function per route, what a request may cost, and how errors are shown. What
does not: the cache itself (`inference.cache`), the bodies (`wire`) and the process (`process`).
"""

import asyncio
import logging
import time
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from embeddings_pipeline.errors import (
    DeviceFailedError,
    EmbeddingCancelledError,
    EmbeddingsError,
    InvalidRequestError,
    RequestTooLargeError,
)
from embeddings_pipeline.host import wire
from embeddings_pipeline.host.desk import Desk

_log = logging.getLogger(__name__)

R = TypeVar("R")

_BODY_SECONDS = 60.0
"""A client that sends its body more slowly than this makes room for others."""

_PROBE_SECONDS = 10.0


class ErrorBody(BaseModel):
    """What every error looks like."""

    message: str = Field(description="One sentence that ends with what to do.")
    code: str = Field(description="The kind of error, for programs.", examples=["model_not_in_cache"])
    type: str = Field(description="invalid_request, or model_host where the request is not to blame.")
    link: str = Field(description="Where the documentation speaks of it.")


class LoadBody(BaseModel):
    """Which model to load: a name of the registry, or a name and a `source`, or a whole `spec`."""

    model_config = ConfigDict(extra="forbid")

    model_name: str | None = Field(default=None, examples=["sentence-transformers/all-MiniLM-L6-v2"])
    source: str | None = Field(default=None, description="A folder with the model's files.")
    spec: dict[str, Any] | None = Field(default=None, description="A model spec as in a corpus YAML.")
    fingerprint: str | None = Field(default=None, description="What the files have to be.")


def _answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody} for status in statuses}


_VECTORS = {
    "content": {wire.ARROW: {"schema": {"type": "string", "format": "binary"}}},
    "description": "An Arrow IPC stream with one row per text, in the order of the texts.",
}
_TEXTS = {
    "requestBody": {
        "required": True,
        "description": "An Arrow IPC stream with the column `text`; the schema's metadata `embeddings` is JSON with "
        "`spec`, `fingerprint`, `model_batch_size`, `model_batch_tokens` and `workers`.",
        "content": {wire.ARROW: {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def _body(request: Request, most: int) -> bytes:
    """Read a body of bounded size and time.

    Raises:
        RequestTooLargeError: it is larger.
        InvalidRequestError: it does not arrive.
    """
    if int(request.headers.get("content-length") or 0) > most:
        raise RequestTooLargeError(most)
    pieces: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for piece in request.stream():
                size += len(piece)
                if size > most:
                    raise RequestTooLargeError(most)
                pieces.append(piece)
    except TimeoutError as error:
        raise InvalidRequestError(f"its body did not arrive within {_BODY_SECONDS:g} s") from error
    except ClientDisconnect as error:
        raise EmbeddingCancelledError from error
    return b"".join(pieces)


def create_app(desk: Desk) -> FastAPI:
    """Return the application of one host."""
    app = FastAPI(
        title="embeddings-pipeline model host",
        version=str(desk.facts.get("version", "")),
        description=f"The models in the memory of device {desk.cache.device}, for every process of one user.",
    )
    _add_errors(app, desk)
    _add_models(app, desk)
    _add_embedding(app, desk)
    _add_host(app, desk)
    return app


def _shown(error: EmbeddingsError) -> JSONResponse:
    headers = {wire.IDS_HEADER: wire.error_ids(error)}
    return JSONResponse(wire.error_body(error), wire.status_of(error), headers=headers)


def _add_errors(app: FastAPI, desk: Desk) -> None:
    @app.exception_handler(EmbeddingsError)
    async def ours(request: Request, error: EmbeddingsError) -> Response:
        _log.warning("%s %s: %s", request.method, request.url.path, error)
        if isinstance(error, DeviceFailedError):
            desk.leave()
        return _shown(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return _shown(InvalidRequestError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}"))

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        body = wire.error_body(InvalidRequestError(f"{request.method} {request.url.path}: {error.detail}"))
        return JSONResponse(body, error.status_code, headers=error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _shown(EmbeddingsError(f"the host failed: {type(error).__name__}: {error}; see its log"))


def _add_models(app: FastAPI, desk: Desk) -> None:
    @app.get("/models", summary="What is loaded", responses=_answers(400, 500))
    async def get_models() -> dict[str, list[dict[str, Any]]]:
        return {"models": [wire.row_message(row) for row in desk.cache.rows()]}

    @app.put("/models", summary="Load a model", responses=_answers(400, 404, 409, 500, 503, 507))
    async def put_models(
        body: LoadBody, model_device: Annotated[str | None, Query(description="Has to be this host's.")] = None
    ) -> dict[str, Any]:
        desk.own(model_device or desk.cache.device)
        if (body.spec is None) == (body.model_name is None):
            raise InvalidRequestError("give either model_name or spec")
        spec = body.spec or {"name": body.model_name, "source": body.source}
        with desk.using():
            facts = await desk.admin(lambda: desk.load({"spec": spec, "fingerprint": body.fingerprint}))
        name = facts["model"]["model_name"]
        message = f"successfully loaded model `{name}` on device `{desk.cache.device}`"
        return {"result": "successful", "message": message, **facts}

    @app.delete("/models", summary="Eject a model", responses=_answers(400, 404, 409, 500))
    async def delete_models(
        model_name: Annotated[str, Query(description="The whole name.")],
        model_device: Annotated[str | None, Query(description="Has to be this host's.")] = None,
        fingerprint: Annotated[str | None, Query(description="Which one, where two have the name.")] = None,
        force: Annotated[bool, Query(description="Cancel the calls that use it, instead of waiting.")] = False,
        wait_s: Annotated[float | None, Query(ge=0, le=3600, description="How long to wait for them.")] = None,
    ) -> dict[str, Any]:
        desk.own(model_device or desk.cache.device)
        eject = desk.cache.eject
        done = await desk.admin(lambda: eject(model_name, fingerprint=fingerprint, force=force, wait_s=wait_s))
        return {
            "result": "successful",
            "message": f"successfully ejected model `{done.model_name}` from device `{done.device}`",
            "freed_bytes": done.freed_bytes,
            "returned_bytes": done.returned_bytes,
            "fingerprint": done.fingerprint,
            "forced": done.forced,
        }

    @app.get("/device/{device}", summary="The device's memory", responses=_answers(400, 500))
    async def get_device(device: str) -> dict[str, Any]:
        desk.own(device)
        return await desk.admin(desk.cache.device_info)


def _add_embedding(app: FastAPI, desk: Desk) -> None:
    @app.post(
        "/embed",
        summary="Embed an application batch",
        response_class=Response,
        responses={200: _VECTORS, **_answers(400, 404, 409, 413, 499, 500, 503, 507)},
        openapi_extra=_TEXTS,
    )
    async def embed(request: Request) -> Response:
        async with desk.turn():
            body = await _body(request, desk.limits.request_bytes)
            vectors = await desk.compute(request, lambda cancel: desk.embed(body, cancel))
        return Response(vectors, media_type=wire.ARROW)

    @app.get(
        "/models/{fingerprint}/tokens",
        summary="The string of each sparse dimension",
        response_class=Response,
        responses={200: _VECTORS, **_answers(400, 404, 500)},
    )
    async def get_tokens(fingerprint: str) -> Response:
        return Response(await desk.admin(lambda: desk.tokens(fingerprint)), media_type=wire.ARROW)


def _add_host(app: FastAPI, desk: Desk) -> None:
    @app.get("/health", summary="Whether the device computes", responses=_answers(503))
    async def health() -> dict[str, Any]:
        try:
            await asyncio.wait_for(desk.admin(desk.probe), _PROBE_SECONDS)
        except TimeoutError:
            raise DeviceFailedError(desk.cache.device, f"no answer in {_PROBE_SECONDS:g} s") from None
        return {"status": "ok", "device": desk.cache.device, "in_flight": desk.in_flight}

    @app.get("/host", summary="Which process this is")
    async def get_host() -> dict[str, Any]:
        unused = round(time.monotonic() - desk.last_used, 1)
        models = [row["model_name"] for row in desk.cache.rows()]
        use = {"in_flight": desk.in_flight, "unused_s": unused, "models": models}
        return desk.facts | {"protocol": wire.PROTOCOL, **use}

    @app.delete("/host", summary="Finish what is under way, and leave")
    async def delete_host() -> dict[str, Any]:
        asyncio.get_running_loop().call_later(0.05, desk.leave)
        return {"result": "successful", "message": f"the host of `{desk.cache.device}` leaves"}
