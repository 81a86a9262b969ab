"""engine.json belongs to its graph, to its own hash and to its folder, or is refused in words."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.engines.models import FakeRunner, fake_engines, small
from tests.helpers.refusals import refused
from vitkit.config import to_json
from vitkit.engines.folder import _digest, read_description_of
from vitkit.weights.files.checksum import checksum_of


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    model = small()
    fake_engines(monkeypatch, model)
    path = vitkit.save_model(model, tmp_path / "model")
    yield vitkit.export(path, tmp_path / "out", precision="bfloat16").path


def edit(out: Path, change: Callable[[Any], Any], hashed: bool = False, name: str = "engine.json") -> None:
    """Edit a description, and with `hashed` the hashes of it too."""
    path = out / name
    data = json.loads(path.read_text())
    change(data)
    if name == "engine.json" and hashed:
        data["sha256"] = _digest(data)
    path.write_text(json.dumps(data))
    if name != "engine.json" and hashed:
        edit(out, lambda record: record["files"].update({name: to_json(checksum_of(path))}), hashed=True)


def test_a_folder_is_read_back_with_all_that_was_measured(out: Path) -> None:
    edit(out, lambda data: None)  # other spaces are no change
    record = read_description_of(out)
    assert record.agreement.batches == (1, 3, 12)
    assert record.agreement.answers == 0  # of images that are made up
    assert json.loads((out / "engine.json").read_text())["gelu"] == "erf"
    first, gelu = vitkit.Predictor(out).notes
    assert re.search("bfloat16 by openvino; when exported: logits at most.*on 16 images that are made", first)
    assert "in bfloat16 its GELU is computed in the exact form (erf), the model's is the tanh form" in gelu


def fewer_classes(data: Any) -> None:
    data["architecture"]["num_classes"] = 4
    data["class_names"] = data["class_names"][:4]


def with_file(name: str) -> Callable[[Any], None]:
    return lambda data: data["files"].update({name: data["files"]["graph.bin"]})


def architecture(**changes: object) -> Callable[[Any], None]:
    return lambda data: data["architecture"].update(changes)


def version(number: object) -> Callable[[Any], None]:
    return lambda data: data.update(format_version=number, vitkit_version="9.9")


REFUSED: dict[str, list[tuple[Callable[[Any], None], bool, str]]] = {
    r"model\.json is not the file that engine\.json beside it describes": [
        (change, False, "model.json")
        for change in (
            architecture(width=64),
            architecture(layer_scale=0.1),
            architecture(image_std=[0.5, 0.5, 0.5]),
            lambda data: data.update(class_names=["ant", "bee", "cow", "dog", "elk"]),
            lambda data: data.update(preprocessing={"image_size": [16, 24], "resize": "crop"}),
        )
    ],
    r"engine\.json is not as vitkit export wrote it: its contents": [
        (lambda data: data.update(precision="float32"), False, "engine.json")
    ],
    r"written by vitkit 9\.9 in another format": [
        (version(other), False, "engine.json") for other in (0, 1, 2, 99, "3", None)
    ],
    "Nx4, and the graph beside it goes from uint8 Nx3x16x24 to Nx5": [(fewer_classes, True, "model.json")],
    r"graph\.xml, graph\.bin, model\.json, README\.md, .*, which are names and no paths": [
        (with_file(name), True, "engine.json")
        for name in ("/etc/passwd", "../model/model.json", "sub/graph.bin", "graph.onnx", "golden/../x")
    ],
    r"golden/01\.jpg, .*, which are names and no paths": [
        (lambda data: data["files"].pop("golden/02.jpg"), True, "engine.json")
    ],
}
"""Changes, whether the hashes are made to fit, and the file, by what is said of them."""


@pytest.mark.parametrize("message", REFUSED)
def test_a_description_that_was_changed_is_refused(out: Path, message: str) -> None:
    whole = {path: path.read_bytes() for path in (out / "engine.json", out / "model.json")}
    for change, hashed, name in REFUSED[message]:
        edit(out, change, hashed, name)
        refused(message, vitkit.Predictor, out)
        for path, content in whole.items():
            path.write_bytes(content)


def test_a_description_of_another_graph_is_refused(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (small(size=(16, 16)), small(channels=1)):
        runner = FakeRunner(other)
        monkeypatch.setattr("vitkit.engines.folder.OpenVINORunner", lambda *_, runner=runner: runner)
        refused("of uint8 Nx3x16x24 to Nx5, and the graph beside it goes", vitkit.Predictor, out)


@pytest.mark.parametrize("name", ["graph.bin", "engine.json"])
def test_links_out_of_the_folder_are_refused_and_links_inside_are_not(out: Path, name: str) -> None:
    (out / name).rename(out / "other")
    (out / name).symlink_to("other")
    vitkit.Predictor(out)
    (out / "other").rename(out.parent / "other")
    (out / name).unlink()
    (out / name).symlink_to(out.parent / "other")
    refused("expected a regular file in this folder, found a link out of it", vitkit.Predictor, out)


def test_another_file_or_a_pipe_in_the_place_of_a_graph_is_refused_and_not_waited_for(out: Path) -> None:
    (out / "graph.bin").write_bytes(b"graph.bin of openVINO")
    refused(r"graph\.bin is not the file that engine\.json", vitkit.Predictor, out)
    (out / "graph.bin").unlink()
    os.mkfifo(out / "graph.bin")
    edit(out, lambda data: data["files"]["graph.bin"].update(bytes=0), hashed=True)
    refused("found a folder, a pipe, a device", vitkit.Predictor, out)


def test_a_file_of_the_golden_set_that_no_hash_covers_is_refused(out: Path) -> None:
    (out / "golden" / ".DS_Store").write_bytes(b"of a file manager, which nobody reads")
    vitkit.Predictor(out)
    (out / "golden" / "17.jpg").write_bytes(b"smuggled in")
    refused(r"golden/17\.jpg, which are names and no paths", vitkit.Predictor, out)
