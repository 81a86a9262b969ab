"""The same model behind BentoML, for `python -m benchmarks.serving`.

    BUNDLE=FOLDER python -m bentoml serve benchmarks.serving_bentoml:Bento -p PORT

It decodes, preprocesses, computes and answers by `vitkit.Predictor`, with the same engine and threads as
`vitkit serve`. Images come as base64 in JSON, in a list, because BentoML unites requests along it.
"""

import base64
import os
from importlib import import_module
from typing import Any

from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.jobs.predict import Predictor

bentoml = import_module("bentoml")


@bentoml.service(workers=1, traffic={"timeout": 120})
class Bento:
    """The bundle as BentoML has it."""

    def __init__(self) -> None:
        self.predictor = Predictor(os.environ["BUNDLE"])

    # As many images as LitServe unites here; requests that would wait for longer than this are refused.
    @bentoml.api(batchable=True, max_batch_size=8, max_latency_ms=60_000)  # type: ignore[untyped-decorator]
    def predict(self, images: list[str]) -> list[dict[str, Any]]:
        """Answer the images of several requests."""
        rule = self.predictor.preprocessing
        pixels = [preprocess(decode(base64.b64decode(image), rule.decode), rule) for image in images]
        return [self.predictor.answering.guess_json(each) for each in self.predictor.guess(pixels, 5)]
