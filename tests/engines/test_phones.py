"""What a phone needs of a graph: operators of the standard alone, and a batch of one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.models import drawn
from tests.engines.test_bundle import FAMILIES, exported
from tests.engines.test_bundle import pytestmark as pytestmark
from vitkit.engines.golden import read_golden
from vitkit.engines.libraries import EnginePrecision, import_package

NEWEST_OPSET = 20
"""ONNX Runtime has it since 1.17 (January 2024)."""


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("family", ["plain", "hybrid", "BiT"])
def test_a_graph_has_operators_of_the_standard_and_computes_a_fixed_batch_of_one(
    family: str, precision: EnginePrecision, tmp_path: Path
) -> None:
    onnx, runtime = import_package("onnx"), import_package("onnxruntime")
    bundle = exported(drawn(FAMILIES[family]), tmp_path, "onnx", precision)
    model: Any = onnx.load(bundle / "graph.onnx")
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    used = {imported.domain: imported.version for imported in model.opset_import}
    assert used.pop("", used.pop("ai.onnx", 0)) <= NEWEST_OPSET
    onnx.checker.check_model(model)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape[0] == 1
    golden = read_golden(bundle)
    images = np.ascontiguousarray(golden.pixels.transpose(0, 3, 1, 2))
    logits = np.concatenate([session.run(["logits"], {"images": image[None]})[0] for image in images])
    np.testing.assert_allclose(logits, golden.logits, atol=golden.allowed)
