"""The same model behind LitServe, for `python -m benchmarks.serving`.

    BUNDLE=FOLDER python -m benchmarks.serving_litserve PORT

It decodes, preprocesses, computes and answers by `vitkit.Predictor`, with the same engine and threads as
`vitkit serve`. Images come as base64 in JSON, as LitServe's documentation has it.
"""

import base64
import os
import sys
from importlib import import_module
from typing import Any

from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.jobs.predict import Predictor

BATCH, DELAY = 8, 0.005
"""Images of a batch, and seconds that the first one waits. With `vitkit serve`'s 3 it is as fast."""

litserve = import_module("litserve")


class Api(litserve.LitAPI):  # type: ignore[misc, name-defined]
    """The bundle as LitServe has it: each method is one step of a request."""

    def setup(self, device: object) -> None:
        """Load the bundle."""
        self.predictor = Predictor(os.environ["BUNDLE"])

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Decode and preprocess an image."""
        rule = self.predictor.preprocessing
        return preprocess(decode(base64.b64decode(request["image"]), rule.decode), rule)

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Leave a batch a list, which the predictor takes."""
        return inputs

    def predict(self, x: list[Any]) -> list[dict[str, Any]]:
        """Answer a batch."""
        return [self.predictor.answering.guess_json(each) for each in self.predictor.guess(x, 5)]

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave the answers a list."""
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """Leave an answer as it is."""
        return output


if __name__ == "__main__":
    api = Api(max_batch_size=BATCH, batch_timeout=DELAY)
    server = litserve.LitServer(api, accelerator="cpu", devices=1, workers_per_device=1, timeout=120)
    quiet = {"generate_client_file": False, "log_level": "error", "pretty_logs": False}
    server.run(host="127.0.0.1", port=int(sys.argv[1]), num_api_servers=1, **quiet)
