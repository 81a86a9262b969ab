"""int8 for ONNX Runtime: weights of 8 bits, activations in float32.

Activations stay in float32, because outliers stand in them. On a ViT-S/14 with such outliers (DINOv2's),
ranges of a layer's activations changed the answers to 1.5 % (of the moment), 3 % (MinMax) and 7 % (NNCF) of
the images, a range for each token 1 %; and last digits that differ from one processor to another moved whole
levels, so that a browser named another class than the machine that exported for 2 % of the photos. Weights of
8 bits alone are a quarter of the size, change hardly an answer, and are the same everywhere. They are as fast
as float32: OpenVINO's int8 is the faster one.
"""

from pathlib import Path
from typing import Any

import numpy as np

from vitkit.engines.libraries import import_package

MOST = 127
"""The largest level of a symmetric range of 8 bits."""
DATA = "graph.onnx.data"


def quantize_onnx(path: Path) -> None:
    """Replace the weights of a graph in ONNX by whole numbers of 8 bits, with a scale for each output.

    The score of novelty stays in float32.

    Args:
        path: its file.
    """
    onnx = import_package("onnx")
    model = onnx.load(path)
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}

    def is_product(node: Any) -> bool:
        return node.op_type == "MatMul" and node.input[1] in weights

    # A head, which is a Gemm, stays in float32, and so do convolutions beside matrix products: of a hybrid
    # with both in 8 bits OpenVINO 2026.4 computes no logits at all. The axis is that of the weights' outputs.
    kind, axis = ("MatMul", 1) if any(map(is_product, graph.node)) else ("Conv", 0)
    nodes = list[Any]()
    for node in graph.node:
        if node.op_type == kind and node.input[1] in weights and not _is_of_novelty(node):
            name = node.input[1]
            values = onnx.numpy_helper.to_array(weights[name])
            others = tuple(each for each in range(values.ndim) if each != axis)
            scales = np.maximum(np.abs(values).max(others, keepdims=True), 1e-12) / MOST
            parts = {f"{name}_levels": np.rint(values / scales).astype(np.int8), f"{name}_scales": scales}
            graph.initializer.extend(onnx.numpy_helper.from_array(part, own) for own, part in parts.items())
            levels, scaled, node.input[1] = *parts, f"{name}_float"
            # Computed when the graph is loaded. ONNX Runtime would take DequantizeLinear as leave to round
            # the activations to 8 bits as well.
            cast = f"{name}_cast"
            nodes.append(onnx.helper.make_node("Cast", [levels], [cast], to=onnx.TensorProto.FLOAT))
            nodes.append(onnx.helper.make_node("Mul", [cast, scaled], [node.input[1]]))
        nodes.append(node)
    used = {name for node in nodes for name in node.input}
    left = [tensor for tensor in graph.initializer if tensor.name in used]
    for part, items in ((graph.initializer, left), (graph.node, nodes)):
        del part[:]
        part.extend(items)
    (path.parent / DATA).unlink(missing_ok=True)
    save_onnx(model, path)


def _is_of_novelty(node: Any) -> bool:
    """Whether a node computes the distance of a `Novelty`, which 8 bits are too few for."""
    scopes = (each.value for each in node.metadata_props if each.key == "pkg.torch.onnx.name_scopes")
    return any("'novelty'" in scope for scope in scopes)


def save_onnx(model: Any, path: Path) -> None:
    """Write a graph and its weights, in a file of their own."""
    # Shapes, which are shorter, stand in the graph, where they are looked for before weights are read.
    import_package("onnx").save(model, path, save_as_external_data=True, location=DATA, size_threshold=128)
