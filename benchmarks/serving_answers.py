#!/usr/bin/env python
"""The same answers from `vitkit predict BUNDLE` and `vitkit serve BUNDLE`, on a folder of images.

    python -m benchmarks.serving_answers BUNDLE FOLDER [--tensors 100]

Run from the repository's root. Each image is sent to the server, beside others, and predicted by the command;
the first ones also go as tensors, one at a time, whose logits must be the bits that the engine gives here for
the same batch of one. Images whose best class differs are listed with both answers.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from benchmarks.load import all_answers, post

from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.jobs.predict import Predictor

PORT = 8171


def main() -> None:
    """Compare, and print the numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("folder")
    parser.add_argument("--tensors", type=int, default=100)
    given = parser.parse_args()
    files = sorted(path for path in Path(given.folder).iterdir() if path.is_file())
    requests = [post("/predict", path.read_bytes()) for path in files]
    command = [sys.executable, "-m", "vitkit"]
    server = subprocess.Popen([*command, "serve", given.bundle, "--port", str(PORT), "--quiet"])
    try:
        while asyncio.run(all_answers(PORT, requests[:1], 1)).statuses != [200]:
            if server.poll() is not None:
                raise SystemExit("The server does not begin.")
            time.sleep(0.5)
        answers = asyncio.run(all_answers(PORT, requests, 8))
        predictor, equal = Predictor(given.bundle), 0
        rule, classes = predictor.preprocessing, predictor.model.config.num_classes
        images = [decode(path, rule.decode) for path in files[: given.tensors]]
        pixels = [preprocess(image, rule).transpose(2, 0, 1)[None] for image in images]
        name = Path(given.bundle).resolve().name
        tensor = {"name": "images", "datatype": "UINT8", "shape": [*pixels[0].shape]}
        bodies = [json.dumps({"inputs": [tensor | {"data": each.ravel().tolist()}]}) for each in pixels]
        tensors = [post(f"/v2/models/{name}/infer", body.encode(), "application/json") for body in bodies]
        for own, body in zip(pixels, asyncio.run(all_answers(PORT, tensors, 1)).bodies, strict=True):
            logits = np.array(json.loads(body)["outputs"][0]["data"], np.float32)
            equal += bool((logits == predictor.compute(own)[0, :classes]).all())
    finally:
        server.terminate()
        server.wait()
    predicting = [*command, "predict", given.bundle, given.folder, "--json"]
    lines = subprocess.run(predicting, capture_output=True, text=True, check=True).stdout.splitlines()
    same, far = 0, 0.0
    for line, body in zip(lines, answers.bodies, strict=True):
        predicted, served = json.loads(line), json.loads(body)
        image, best, other = predicted["image"], predicted["predictions"][0], served["predictions"][0]
        alike = best["class"] == other["class"]
        alike &= predicted.get("none_of_these") == served.get("none_of_these")
        same, far = same + alike, max(far, abs(best["probability"] - other["probability"]))
        if not alike:
            print(f"{image}: predict {best}, serve {other}")
    print(f"{same:,} of {len(lines):,} answers the same, probabilities at most {far:.1e} apart")
    print(f"logits of {equal} of {len(pixels)} images the same bits, one at a time; {answers.counts()}")


if __name__ == "__main__":
    main()
