"""A bundle of `vitkit export` behind Ray Serve, which spreads requests over the processes of a cluster.

    pip install 'vitkit[onnxruntime]' 'ray[serve]'
    serve run --working-dir examples ray_serve:build bundle=/path/to/mine-onnx replicas=2
    curl --data-binary @photo.jpg http://127.0.0.1:8000/predict

Every machine must have the bundle at the same path. Ray Serve unites images into batches, refuses requests
beyond its queue with 503, and replaces processes that die.
"""

from typing import Any

from ray import serve
from ray.serve import Application
from starlette.requests import Request
from starlette.responses import JSONResponse

import vitkit

MOST_BYTES = 20_000_000
"""Bytes of a photo, as `vitkit serve` has it."""


@serve.deployment(max_ongoing_requests=16, max_queued_requests=64)
class Model:
    """A bundle that answers photos."""

    def __init__(self, bundle: str) -> None:
        self.predictor = vitkit.Predictor(bundle, max_pixels=25_000_000)

    @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.005)
    async def answer(self, contents: list[bytes]) -> list[Any]:
        """Answer the photos of several requests, or say why one cannot be read."""
        answers = []
        for content in contents:
            try:
                guesses = self.predictor(content)
                answers.append(self.predictor.answering.guess_json(guesses))
            except vitkit.VitkitError as error:
                answers.append({"error": str(error)})
        return answers

    async def __call__(self, request: Request) -> JSONResponse:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > MOST_BYTES:
                return JSONResponse({"error": f"expected at most {MOST_BYTES:,} bytes"}, 413)
        answer = await self.answer(bytes(content))
        return JSONResponse(answer, 422 if "error" in answer else 200)


def build(arguments: dict[str, str]) -> Application:
    """Build the application from the arguments of `serve run`: bundle, and replicas, processes each with the
    model."""
    replicas = int(arguments.get("replicas", "1"))
    return Model.options(num_replicas=replicas).bind(arguments["bundle"])
