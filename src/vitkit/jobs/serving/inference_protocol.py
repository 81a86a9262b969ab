"""The tensors of the Open Inference Protocol, version 2, over HTTP, with its extension for binary data.

The protocol is that of KServe, Triton and OpenVINO Model Server
(github.com/kserve/open-inference-protocol, specification/protocol/inference_rest.md), so that their clients
talk to this server. The input and the outputs have the names of the graph's.

Shapes: n images of C channels and H x W pixels, K classes.
"""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitkit.engines.folder import EngineModel
from vitkit.errors import VitkitError

HEADER_LENGTH = "Inference-Header-Content-Length"
"""The HTTP header that says where JSON ends and binary tensors begin."""
MOST_VALUES = 1 << 20
"""Most commas and brackets of a JSON body: six images of 224 x 224 pixels. Python's objects take many times
the memory of their text; binary tensors have no such limit."""


def read_json(body: bytes, most: int = MOST_VALUES) -> Any:
    """Read JSON of at most so many values.

    Raises:
        VitkitError: it is no JSON, or has more.
    """
    if (values := sum(map(body.count, (b",", b"[", b"{")))) > most:
        raise VitkitError(
            f"expected a body of JSON with at most {most:,} values, found about {values:,}: send fewer "
            "images at a time, or binary tensors"
        )
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise VitkitError(f"expected a body of JSON: {error}") from error


def read_tensor(body: bytes, header: str | None, model: EngineModel) -> tuple[NDArray[np.uint8], Any]:
    """Read the images of a request, and the request itself.

    Args:
        body: JSON, with binary tensors behind it if there is a header.
        header: the length of the JSON in bytes, as `HEADER_LENGTH` has it.
        model: of the images.

    Returns:
        Images `(n, C, H, W)`, and the JSON.

    Raises:
        VitkitError: it is no request for these images.
    """
    length = len(body) if header is None else int(header) if header.isdecimal() and len(header) < 10 else -1
    if not 0 <= length <= len(body):
        raise VitkitError(f"expected a {HEADER_LENGTH} from 0 to {len(body)}, found {header}")
    request = read_json(body[:length])
    inputs = request.get("inputs") if isinstance(request, Mapping) else None
    shape = image_shape(model)
    tensor = inputs[0] if isinstance(inputs, list) and len(inputs) == 1 else None
    if not isinstance(tensor, Mapping) or tensor.get("name") != "images" or tensor.get("datatype") != "UINT8":
        raise VitkitError('expected "inputs" with one tensor, of the name "images" and the datatype UINT8')
    given, count = tensor.get("shape"), 0
    if isinstance(given, list) and given[1:] == [*shape] and type(given[0]) is int:
        count = given[0]
    if count < 1:
        raise VitkitError(f"expected a shape [n, {', '.join(map(str, shape))}], found {str(given)[:100]}")
    size = _parameters(tensor).get("binary_data_size")
    data = body[length:] if header is not None and size == len(body) - length else None
    data = _flat_bytes(tensor.get("data")) if data is None else data
    if len(data) != count * int(np.prod(shape)):
        raise VitkitError(f"expected {count * int(np.prod(shape)):,} values of images, found {len(data):,}")
    return np.frombuffer(data, np.uint8).reshape(count, *shape), request


def _flat_bytes(data: Any) -> bytes:
    """Turn a list of numbers, flat or nested in rows, into bytes."""
    try:
        for _ in range(3):  # images, channels and rows
            if isinstance(data, list) and data and isinstance(data[0], list):
                data = list(chain.from_iterable(data))
        if isinstance(data, list):
            return bytes(data)
    except (TypeError, ValueError):
        pass
    raise VitkitError('expected "data", a list of whole numbers from 0 to 255, or a binary tensor')


def _parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = given.get("parameters")
    return parameters if isinstance(parameters, Mapping) else {}


def choose_outputs(request: Any, model: EngineModel) -> list[tuple[str, bool]]:
    """Read which outputs a request chooses, and whether each is binary.

    Raises:
        VitkitError: it names an output that there is none of.
    """
    names = output_names(model)
    listed = request.get("outputs") or [{"name": name} for name in names]
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        listed = [{}]
    default = _parameters(request).get("binary_data_output")
    chosen = [(item.get("name"), _parameters(item).get("binary_data", default) is True) for item in listed]
    if len(chosen) > len(names) or any(name not in names for name, _ in chosen):
        raise VitkitError(f'expected "outputs" of the names {" and ".join(names)}')
    return chosen


def write_tensors(
    answer: dict[str, Any], outputs: NDArray[np.float32], chosen: list[tuple[str, bool]], classes: int
) -> tuple[bytes, dict[str, str]]:
    """Write the outputs that a request chooses, and the HTTP headers.

    Args:
        answer: its other fields.
        outputs: `(n, K)`, or with the scores of a `Novelty` behind them `(n, K + 1)`.
        chosen: from `choose_outputs`.
        classes: K.
    """
    tensors, binary = list[dict[str, Any]](), list[bytes]()
    for name, is_binary in chosen:
        numbers = np.ascontiguousarray(
            outputs[:, :classes] if name == "logits" else outputs[:, classes], "<f4"
        )
        content: dict[str, Any] = {"data": numbers.ravel().tolist()}
        if is_binary:
            binary.append(numbers.tobytes())
            content = {"parameters": {"binary_data_size": numbers.nbytes}}
        tensors.append({"name": name, "datatype": "FP32", "shape": [*numbers.shape], **content})
    head = json.dumps(answer | {"outputs": tensors}).encode()
    if not binary:
        return head, {"content-type": "application/json"}
    return b"".join((head, *binary)), {
        "content-type": "application/octet-stream",
        HEADER_LENGTH: str(len(head)),
    }


def image_shape(model: EngineModel) -> tuple[int, ...]:
    """Return the shape of a model's image, (C, H, W)."""
    return (model.config.in_channels, *model.config.image_size)


def output_names(model: EngineModel) -> tuple[str, ...]:
    """Return the names of a model's outputs: its logits, and the scores of its `Novelty` if it has any."""
    return ("logits",) if model.card.refusal is None else ("logits", "novelty")


def describe_model(name: str, engine: str, model: EngineModel) -> dict[str, Any]:
    """Describe the tensors of a model, as the protocol's metadata has them.

    Args:
        name, engine: the name of the model, and of the program that computes it.
        model: the model.
    """
    images = {"name": "images", "datatype": "UINT8", "shape": [-1, *image_shape(model)]}
    sizes = {"logits": [-1, model.config.num_classes], "novelty": [-1]}
    outputs = [{"name": each, "datatype": "FP32", "shape": sizes[each]} for each in output_names(model)]
    return {"name": name, "versions": ["1"], "platform": engine, "inputs": [images], "outputs": outputs}
