"""The names of inference engines and of the numbers that they compute in. They need no torch."""

from typing import Literal

GraphEngine = Literal["openvino", "onnxruntime"]
"""The engines that are handed a graph: each is an extra of the same name, and computes on the processor."""

Engine = Literal["torch", "openvino", "onnxruntime"]
"""The programs that compute a model's logits."""

Numbers = Literal["float32", "bfloat16", "int8"]
"""The type of the numbers in an engine's matrix products. int8 needs images to calibrate it on."""

DESCRIPTION = "engine.json"
"""The file that makes a folder that of an export, and describes it."""

EXTRAS: dict[GraphEngine, tuple[str, ...]] = {
    "openvino": ("openvino",),
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
}
"""The packages that an engine needs to compute a checkpoint's graph."""
