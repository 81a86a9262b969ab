"""engine.json belongs to its graph, to its own hash and to its folder, or is refused in words."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.engines.models import FakeRunner, fake_engines, small
from vitkit.engines.folder import _digest, read_description_of
from vitkit.errors import VitkitError


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    model = small()
    fake_engines(monkeypatch, model)
    path = vitkit.save_model(model, tmp_path / "model")
    yield vitkit.export(path, tmp_path / "out", precision="bfloat16").path


def edit(out: Path, change: Callable[[Any], Any], hashed: bool = False) -> None:
    """Edit the description, and with `hashed` its own hash too."""
    data = json.loads((out / "engine.json").read_text())
    change(data)
    if hashed:
        data["sha256"] = _digest(data)
    (out / "engine.json").write_text(json.dumps(data))


def test_a_folder_is_read_back_with_all_that_was_measured(out: Path) -> None:
    edit(out, lambda data: None)  # other spaces are no change
    record = read_description_of(out)
    assert record.agreement.batches == (1, 3, 12)
    assert record.agreement.answers == 0  # of images that are made up
    assert json.loads((out / "engine.json").read_text())["gelu"] == "erf"
    first, gelu = vitkit.Predictor(out).notes
    assert (
        "bfloat16 by openvino; when exported: logits at most" in first
        and "on 16 images that are made" in first
    )
    assert "in bfloat16 its GELU is computed in the exact form (erf), the model's is the tanh form" in gelu


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("architecture", "width", 64),
        ("architecture", "layer_scale", 0.1),
        ("architecture", "image_std", [0.5, 0.5, 0.5]),
        ("", "class_names", ["ant", "bee", "cow", "dog", "elk"]),
        ("", "preprocessing", {"image_size": [16, 24], "resize": "crop"}),
    ],
)
def test_a_description_that_was_changed_is_refused(out: Path, part: str, name: str, value: object) -> None:
    def change(data: Any) -> None:
        described = data["model"][part] if part else data["model"]
        assert described.get(name) != value
        described[name] = value

    edit(out, change)
    with pytest.raises(VitkitError, match=r"engine\.json is not as vitkit export wrote it: its contents"):
        vitkit.Predictor(out)


@pytest.mark.parametrize("written", [0, 1, 99, "2", None])
def test_a_description_in_another_format_is_refused(out: Path, written: object) -> None:
    edit(out, lambda data: data.update(format_version=written, vitkit_version="9.9"))
    with pytest.raises(VitkitError, match=r"written by vitkit 9\.9 in another format"):
        vitkit.Predictor(out)


def test_a_description_of_another_graph_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (small(size=(16, 16)), small(channels=1)):
        monkeypatch.setattr(
            "vitkit.engines.folder.OpenVINORunner", lambda *arguments, model=other: FakeRunner(model)
        )
        with pytest.raises(VitkitError, match=r"of uint8 Nx3x16x24 to Nx5, and the graph beside it goes"):
            vitkit.Predictor(out)


def test_another_number_of_classes_is_refused(out: Path) -> None:
    def change(data: Any) -> None:
        data["model"]["architecture"]["num_classes"] = 4
        data["model"]["class_names"] = data["model"]["class_names"][:4]

    edit(out, change, hashed=True)
    with pytest.raises(VitkitError, match="Nx4, and the graph beside it goes from uint8 Nx3x16x24 to Nx5"):
        vitkit.Predictor(out)


@pytest.mark.parametrize("name", ["/etc/passwd", "../model/model.safetensors", "sub/graph.bin", "graph.onnx"])
def test_names_of_files_are_no_paths(out: Path, name: str) -> None:
    edit(out, lambda data: data["files"].update({name: data["files"]["graph.bin"]}), hashed=True)
    with pytest.raises(VitkitError, match=r"graph\.xml and graph\.bin, which are names and no paths"):
        vitkit.Predictor(out)


@pytest.mark.parametrize("name", ["graph.bin", "engine.json"])
def test_links_out_of_the_folder_are_refused_and_links_inside_are_not(out: Path, name: str) -> None:
    (out / name).rename(out / "other")
    (out / name).symlink_to("other")
    vitkit.Predictor(out)
    (out / "other").rename(out.parent / "other")
    (out / name).unlink()
    (out / name).symlink_to(out.parent / "other")
    with pytest.raises(VitkitError, match="expected a regular file in this folder, found a link out of it"):
        vitkit.Predictor(out)


def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(out: Path) -> None:
    (out / "graph.bin").unlink()
    os.mkfifo(out / "graph.bin")
    edit(out, lambda data: data["files"]["graph.bin"].update(bytes=0), hashed=True)
    with pytest.raises(VitkitError, match="found a folder, a pipe, a device"):
        vitkit.Predictor(out)


def test_a_changed_graph_is_refused(out: Path) -> None:
    (out / "graph.bin").write_bytes(b"graph.bin of openVINO")
    with pytest.raises(VitkitError, match=r"graph\.bin is not the file that engine\.json"):
        vitkit.Predictor(out)
