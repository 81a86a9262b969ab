"""The routes of the server: what comes in over HTTP, within limits, and what goes out.

A body is limited while it streams, and its time too. No address of an image is taken: a server that fetched
one could be sent anywhere in its own network.
"""

import asyncio
import base64
import hmac
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitkit._version import __version__
from vitkit.errors import DecodeError, VitkitError
from vitkit.jobs.serving import inference_protocol as protocol
from vitkit.jobs.serving.batches import BusyError
from vitkit.jobs.serving.service import Service

BODY_SECONDS = 30.0
"""Seconds within which a body must be there: 20 MB at 5 Mbit/s. Slower clients would hold memory for long."""
HELD_BODIES = 16
"""Bodies of the largest size that are in memory at a time; further ones are told to come again."""
PAGE = ("/", "/page.css", "/page.js")
OPEN = (*PAGE, "/health", "/ready", "/openapi.json", "/v2/health/live", "/v2/health/ready")
"""Paths that need no key: what watches over a server has none, and the page asks for it."""
CLIENT_GONE = 499
"""Nginx's number for a client that has gone; it is counted, and never sent."""
Answered = TypeVar("Answered")


class Guess(BaseModel):
    """A class and how probable it is."""

    name: str = Field(alias="class")
    probability: float


class Prediction(BaseModel):
    """The answer to an image, as `vitkit predict --json` writes it."""

    predictions: list[Guess]
    none_of_these: bool = False
    typicality: float = 1.0
    answer: str | None = None
    answer_probability: float | None = None
    level: int = 0


class Refused(BaseModel):
    """The reason why there is no answer."""

    error: str


class Predictions(BaseModel):
    """The answers to several images."""

    images: list[Prediction | Refused]


REASONS = {
    400: "The body is not what is expected.",
    401: "The key is missing or another one.",
    408: f"The body was not there within {BODY_SECONDS:.0f} seconds.",
    413: "The body, or the number of images, is too large.",
    422: "An image cannot be read, or a parameter is out of range.",
    503: "The server is busy, and Retry-After says for how long; or it is not ready.",
}
_Responses = dict[int | str, dict[str, Any]]
_REFUSED: _Responses = {
    status: {"description": reason, "model": Refused} for status, reason in REASONS.items()
}
_NOT_READY: _Responses = {503: _REFUSED[503]}


def _body(schema: dict[str, Any], *media: str) -> dict[str, Any]:
    """Describe the body of a request by its media types, for OpenAPI; JSON has the schema."""
    image = {"schema": {"type": "string", "format": "binary"}}
    content = {"application/json": {"schema": {"type": "object"} | schema}} | dict.fromkeys(media, image)
    return {"requestBody": {"required": True, "content": content}}


_IMAGES = _body(
    {"required": ["images"], "properties": {"images": {"type": "array", "items": {"type": "string"}}}},
    *("image/jpeg", "image/png", "image/webp", "application/octet-stream"),
)
_TENSORS = _body({"required": ["inputs"], "properties": {"inputs": {"type": "array"}}})


def build_application(service: Service) -> ASGIApp:
    """Build the application of a server, with all its routes."""
    # FastAPI's own pages load their scripts from elsewhere; the page of this server needs nothing.
    about = "A model of vitkit. POST an image to /predict."
    app = FastAPI(title=service.name, version=__version__, description=about, docs_url=None, redoc_url=None)

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return JSONResponse({"error": f"{first['loc'][-1]}: {first['msg']}"}, 422)

    @app.exception_handler(BusyError)
    async def refuse_busy(request: Request, error: BusyError) -> Response:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": str(error.retry_after)})

    @app.exception_handler(ClientDisconnect)
    async def forget(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_GONE)

    def readiness(**more: object) -> Response:
        reason = service.explain_unready()
        answer = {"ready": not reason, **more} | ({"error": reason} if reason else {})
        return JSONResponse(answer, 503 if reason else 200)

    @app.post(
        "/predict", responses={200: {"model": Prediction | Predictions}, **_REFUSED}, openapi_extra=_IMAGES
    )
    async def predict(request: Request, top: Annotated[int, Query(ge=1, le=1000)] = 5) -> Response:
        """Name what is in an image, the body of the request; or in several: {"images": [base64, ...]}."""
        async with _read_body(service, request) as body:
            is_list = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
            contents = _images_of(body, service.settings.max_images) if is_list else [body]
            answers = await _unless_gone(request, service.answer(contents, top))
        if is_list:
            return JSONResponse({"images": [service.describe(answer) for answer in answers]})
        if isinstance(answers[0], DecodeError):
            raise HTTPException(422, str(answers[0]))
        return JSONResponse(service.describe(answers[0]))

    @app.get("/health")
    @app.get("/v2/health/live")
    async def health() -> Response:
        """Say that the process answers."""
        return JSONResponse({"live": True})

    @app.get("/ready", responses=_NOT_READY)
    @app.get("/v2/health/ready", responses=_NOT_READY)
    async def ready() -> Response:
        """Say whether to send requests: whether the golden set was answered as on the exporting machine."""
        return readiness(golden={level.name: str(level) for level in service.levels})

    @app.get("/metrics", response_class=PlainTextResponse, responses={401: _REFUSED[401]})
    async def metrics() -> Response:
        """Count requests, images and seconds, for Prometheus."""
        return PlainTextResponse(service.metrics.text(), media_type="text/plain; version=0.0.4")

    # The Open Inference Protocol, version 2
    model = f"/v2/models/{service.name}"

    @app.get("/v2", responses={401: _REFUSED[401]})
    async def describe_server() -> Response:
        """Describe the server."""
        extensions = ["binary_tensor_data"]
        return JSONResponse({"name": "vitkit", "version": __version__, "extensions": extensions})

    @app.get(model, responses={401: _REFUSED[401]})
    async def describe_model() -> Response:
        """Describe the tensors of the model."""
        return JSONResponse(protocol.describe_model(service.name, service.predictor.engine, service.model))

    @app.get(f"{model}/ready", responses={401: _REFUSED[401], 503: _REFUSED[503]})
    async def model_ready() -> Response:
        """Say whether to send requests to the model."""
        return readiness(name=service.name)

    @app.post(f"{model}/infer", responses=_REFUSED, openapi_extra=_TENSORS)
    async def infer(request: Request) -> Response:
        """Compute the logits of images at the model's size, uint8."""
        async with _read_body(service, request) as body:
            header = request.headers.get(protocol.HEADER_LENGTH)
            try:
                images, given = protocol.read_tensor(body, header, service.model)
                _refuse_many(len(images), service.settings.max_images)
                chosen = protocol.choose_outputs(given, service.model)
            except VitkitError as error:
                raise HTTPException(400, str(error)) from error
            outputs = await _unless_gone(request, service.outputs(images))
        # The protocol has the request's own id repeated.
        answer = {"model_name": service.name, "model_version": "1"} | {
            key: given[key] for key in ("id",) if key in given
        }
        content, headers = protocol.write_tensors(answer, outputs, chosen, service.model.config.num_classes)
        return Response(content, headers=headers)

    async def show_page(request: Request) -> Response:
        return FileResponse(Path(__file__).parent / "page" / (request.url.path[1:] or "index.html"))

    for path in PAGE:
        app.add_route(path, show_page, include_in_schema=False)
    return Guard(app, service)


@asynccontextmanager
async def _read_body(service: Service, request: Request) -> AsyncIterator[bytes]:
    """Read the body of a request, and hold it while the block lasts.

    Raises:
        HTTPException: it is too large or too slow, or nothing is answered here.
        BusyError: the queue or the memory for bodies is full: before the body is read, if it is so already.
    """
    if service.differs:
        raise HTTPException(503, service.differs)
    service.batches.refuse_more()
    most, body = service.settings.max_bytes, bytearray()
    too_large = HTTPException(413, f"The body has more than the {most:,} bytes that are allowed.")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > most:  # 20 digits are too many whatever follows
        raise too_large
    try:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    body += chunk
                    service.held_bytes += len(chunk)
                    if len(body) > most:
                        raise too_large
                    if service.held_bytes > HELD_BODIES * most:
                        raise BusyError(1)
        except TimeoutError:
            raise HTTPException(408, REASONS[408]) from None
        yield bytes(body)
    finally:
        service.held_bytes -= len(body)


def _images_of(body: bytes, most: int) -> list[bytes]:
    """Read the images of a body of JSON: {"images": [base64, ...]}."""
    try:
        # A request of more images has more commas than this.
        given = protocol.read_json(body, 1000)
        images = given.get("images") if isinstance(given, dict) else None
        if not isinstance(images, list) or not images or not all(isinstance(image, str) for image in images):
            raise VitkitError('expected {"images": [...]} with at least one image in base64')
        _refuse_many(len(images), most)
        return [base64.b64decode(image, validate=True) for image in images]
    except (VitkitError, ValueError) as error:
        raise HTTPException(400, str(error)) from error


def _refuse_many(count: int, most: int) -> None:
    if count > most:
        raise HTTPException(413, f"expected at most {most} images in a request, found {count}")


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Answered]) -> Answered:
    """Wait for work, and cancel it where the client goes before it is done.

    Raises:
        HTTPException: the client has gone.
    """
    working = asyncio.ensure_future(work)
    # Behind the body nothing comes but the end of the connection.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(CLIENT_GONE, "The client has gone.")
        return working.result()
    finally:
        working.cancel()
        gone.cancel()


class Guard:
    """Asks for the key, counts requests, and ends connections while the server stops."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, path = time.perf_counter(), CLIENT_GONE, scope["path"]

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._service.draining:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        app, key = self._app, self._service.settings.key
        given = dict(scope["headers"]).get(b"authorization", b"")
        # Compared in a time that does not depend on how many characters are right.
        if key is not None and path not in OPEN and not hmac.compare_digest(given, f"Bearer {key}".encode()):
            error = "expected the header Authorization: Bearer KEY with the key of this server"
            app = JSONResponse({"error": error}, 401, {"WWW-Authenticate": "Bearer"})
        try:
            await app(scope, receive, counted)
        finally:
            route = "predict" if path == "/predict" else "infer" if path.endswith("/infer") else "other"
            self._service.count(route, status, time.perf_counter() - start)
