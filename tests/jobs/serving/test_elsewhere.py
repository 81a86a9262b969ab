"""The same bundle behind Ray Serve and Triton, by the examples."""

import os
import runpy
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.engines.models import exported as exported
from tests.engines.models import fake_engines, small
from tests.helpers.refusals import refused
from tests.jobs.serving.live import send

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the function of the example, and bundles of both formats."""
    model = small()
    fake_engines(monkeypatch, model)
    saved = vitkit.save_model(model, tmp_path / "model")
    vitkit.export(saved, tmp_path / "mine", format="onnx")
    vitkit.export(saved, tmp_path / "other")
    return runpy.run_path(str(EXAMPLES / "triton_repository.py"))["write_repository"]


def test_a_bundle_becomes_a_repository_of_triton(tmp_path: Path, repository: Any) -> None:
    path = repository(tmp_path / "mine", tmp_path / "models")
    assert path == tmp_path / "models" / "mine" / "config.pbtxt"
    for name in ("graph.onnx", "graph.onnx.data"):  # under the name by which the graph refers to its weights
        assert (path.parent / "1" / name).read_bytes() == (tmp_path / "mine" / name).read_bytes()
    text = path.read_text()
    assert 'default_model_filename: "graph.onnx"' in text and "dims: [ 3, 16, 24 ]" in text
    with pytest.raises(FileExistsError):
        repository(tmp_path / "mine", tmp_path / "models")
    refused("has a graph of openvino", repository, tmp_path / "other", tmp_path / "models")
    (tmp_path / "mine" / "graph.onnx").write_bytes(b"another")
    refused("damaged or replaced", repository, tmp_path / "mine", tmp_path / "again")


def test_the_configuration_is_one_by_tritons_schema(tmp_path: Path, repository: Any) -> None:
    schema = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    text_format = pytest.importorskip("google.protobuf.text_format")

    path = repository(tmp_path / "mine", tmp_path / "models")
    config = text_format.Parse(path.read_text(), schema.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("mine", "onnxruntime", 32)
    assert [(each.name, list(each.dims)) for each in config.input] == [("images", [3, 16, 24])]
    assert [(each.name, list(each.dims)) for each in config.output] == [("logits", [5])]
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 64


@pytest.mark.slow
def test_ray_serve_answers_a_photo(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    paths = [Path(__file__).parents[3] / "src", tmp_path / "packages", EXAMPLES]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [str(Path(sys.executable).with_name("serve")), "run", "ray_serve:build", f"bundle={exported}"]
    content = (tmp_path / "image.png").read_bytes()
    with subprocess.Popen(command, env=environment) as process:
        try:
            for _ in range(120):
                assert process.poll() is None
                time.sleep(1)
                with suppress(OSError):
                    answer = send(8000, "POST", "/predict", content)
                    if answer.status == 200:
                        assert b"predictions" in answer.body
                        break
            else:
                raise AssertionError("it never answered")
        finally:
            process.terminate()
