"""Predictions by an inference engine: what is refused without one, and what is the same with one."""

import json
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.engines.models import NAMES, FakeRunner, fake_engines, small
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.engines import folder as graphs
from vitkit.engines import libraries
from vitkit.jobs import engines, predict
from vitkit.jobs.engines import thread_count
from vitkit.jobs.export import NO_LICENCE, read_calibration
from vitkit.listener import SILENT
from vitkit.models.config import Task
from vitkit.models.image_model import ImageModel
from vitkit.runs.folder import kind_of
from vitkit.runs.trained_model import require_same_images
from vitkit.tasks import task_of
from vitkit.weights.model_card import ModelCard, TrainingData, preprocessing_of


def saved(tmp_path: Path, model: ImageModel | None = None) -> Path:
    return vitkit.save_model(model or small(), tmp_path / "model")


def photos(folder: Path, count: int = 30, seed: int = 0) -> Path:
    """Write images without labels, and a file that is none."""
    folder.mkdir()
    generator = np.random.default_rng(seed)
    for number in range(count):
        coarse = generator.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((30, 20)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(f"no image of {folder.name}".encode())
    return folder


def probabilities(predictor: vitkit.Predictor, images: list[Path]) -> np.ndarray:
    predictions = predictor.many(images, top=len(NAMES))
    by_name = [{guess.name: guess.probability for guess in guesses} for guesses in predictions]
    return np.array([[shares[name] for name in NAMES] for shares in by_name])


ENGINES: dict[str, Any] = {"openvino": "openvino", "onnxruntime": "onnx"}
"""The format that an export for each engine has."""


def test_an_engine_that_is_missing_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    for engine in ENGINES:
        said = rf"not installed: pip install 'vitkit\[{engine}\]'"
        refused(said, vitkit.Predictor, saved(tmp_path), engine=engine)


def test_what_an_engine_cannot_do_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    call = partial(vitkit.Predictor, tmp_path / "nothing")
    refused("exact.*leave one of the two out", call, engine="openvino", exact=True)
    refused("processor: expected the device auto or cpu", call, engine="openvino", device="cuda")
    said = "ONNX Runtime.*float32 or int8 .*, not in bfloat16"
    refused(said, call, engine="onnxruntime", precision="bfloat16")


def test_images_to_check_with_are_others_than_those_of_the_calibration(tmp_path: Path) -> None:
    folder = str(photos(tmp_path / "photos"))
    read = [read_calibration(small(), folder, 10, 10, Hearing()) for _ in range(2)]
    (images, check), _ = read
    # They are given away in engine.json, without the path.
    assert images.source == check.source == "images of photos"
    assert (len(images.pixels), len(check.pixels), images.pixels[0].shape) == (10, 10, (3, 16, 24))
    first, again = ([pixels.tobytes() for pixels in (*a.pixels, *b.pixels)] for a, b in read)
    assert first == again and len(set(first)) == 20
    folder = str(photos(tmp_path / "few", 12))
    refused("10 readable images .* found 4 and 8", read_calibration, small(), folder, 300, 500, Hearing())
    refused("does not say where the images are", read_calibration, small(), None, 300, 500, Hearing())
    refused("check_images.*found 3", vitkit.export, tmp_path / "nothing", tmp_path / "out", check_images=3)


def require(engine: str) -> None:
    packages = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript")}
    for package in packages[engine]:
        pytest.importorskip(package)


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_predict_what_pytorch_does_from_a_model_and_from_an_exported_folder(
    engine: Any, tmp_path: Path, cli: Cli
) -> None:
    require(engine)
    model, out, folder = saved(tmp_path), tmp_path / "out", photos(tmp_path / "photos")
    made = ["export", str(model), str(out), "--format", ENGINES[engine], "--calibration", str(folder)]
    said = cli(made).out
    assert "answers as in float32 (100.00%" in said and f"vitkit predict {out}" in said
    # The folder of whoever is given nothing else says it too.
    assert json.loads((out / "model.json").read_text())["origin"]["licence"] == NO_LICENCE
    assert "licence not known: no published start" in " ".join(said.split())
    assert kind_of(out).kind == "exported model" and kind_of(model).kind == "checkpoint"
    images, exported = sorted(folder.glob("[0-9]*.png")), vitkit.Predictor(out)
    expected = probabilities(vitkit.Predictor(model), images)
    assert np.abs(probabilities(exported, images) - expected).max() < 1e-5
    assert f"float32 by {engine}; when exported:" in exported.notes[0]
    served = vitkit.Predictor(model, engine=engine)
    for count in (5, 5, 3, 1, 5):  # a size that comes twice running is compiled for
        assert np.abs(probabilities(served, images[:count]) - expected[:count]).max() < 1e-5
    refused("predicts and evaluates, and holds no weights", vitkit.load_model, out)
    refused(r"whose image size is .*leave that option out", vitkit.Predictor, out, image_size=32)
    refused("whose engine is", vitkit.Predictor, out, engine="torch")
    refused("is there already", vitkit.export, model, out, format=ENGINES[engine])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_graph_is_kept_for_the_next_command_and_made_anew_where_it_is_damaged(
    engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(engine)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    model, images = saved(tmp_path), sorted(photos(tmp_path / "photos").glob("[0-9]*.png"))
    made: list[Path] = []
    write = graphs.write_description

    def noted(where: Path, *rest: Any) -> None:
        made.append(where)
        write(where, *rest)

    monkeypatch.setattr(graphs, "write_description", noted)
    expected = probabilities(vitkit.Predictor(model), images)
    for _ in range(2):
        assert np.abs(probabilities(vitkit.Predictor(model, engine=engine), images) - expected).max() < 1e-5
    (graph,) = (tmp_path / "cache" / "graphs").iterdir()
    assert len(made) == 1
    (graph / graphs.FILES[engine][1]).write_bytes(b"")
    assert np.abs(probabilities(vitkit.Predictor(model, engine=engine), images) - expected).max() < 1e-5
    assert len(made) == 2
    other = small()
    torch.nn.init.normal_(other.get_parameter("head.weight"), std=0.1)
    for _ in range(2):  # whatever the format
        vitkit.Predictor(vitkit.save_model(other, tmp_path / "other", "timm"), engine=engine)
    assert len(made) == 3
    assert len(list((tmp_path / "cache" / "graphs").iterdir())) == 2
    monkeypatch.setattr(engines, "GRAPH_BYTES", 0)
    vitkit.Predictor(vitkit.save_model(other, tmp_path / "third"), engine=engine, image_size=32)
    assert len(list((tmp_path / "cache" / "graphs").iterdir())) == 1  # the one in use


def test_many_images_are_computed_by_openvino_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    model, source = small(), photos(tmp_path / "photos")
    fake_engines(monkeypatch, model)
    monkeypatch.setattr(predict, "ENGINE_PAYS", 31)
    monkeypatch.setattr(predict, "find_spec", lambda name: name == "openvino")
    command = ["predict", str(saved(tmp_path, model)), str(source), "--json"]
    for more, by in (([], True), (["--engine", "torch"], False), (["--exact"], False)):
        done = cli([*command, *more], code=1)
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert {line.get("engine") for line in lines if "error" not in line} == {"openvino" if by else None}
        assert ("OpenVINO computes these in float32; --engine torch" in done.err) == by
    monkeypatch.setattr(predict, "ENGINE_PAYS", 32)
    assert "openvino" not in cli(command, code=1).out


def test_an_export_is_evaluated_as_its_run_is(tmp_path: Path) -> None:
    require("openvino")
    run_folder = vitkit.save_model(small(size=(8, 8)), tmp_path / "model")
    out = vitkit.export(run_folder, tmp_path / "out").path
    data = tmp_path / "data"
    data.mkdir()
    for number, name in enumerate(NAMES):
        photos(data / name, 4 + number)
        (data / name / "broken.png").unlink()
    plain, served = vitkit.evaluate(run_folder, str(data)), vitkit.evaluate(out, str(data))
    assert (served.result.count, served.result.accuracy) == (30, plain.result.accuracy)
    assert abs(served.result.loss - plain.result.loss) < 1e-5


def test_int8_is_measured_on_images_and_says_how_good_it_is(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    require("openvino")
    model, folder, heard = saved(tmp_path), photos(tmp_path / "photos", 60), Hearing()
    numbers: dict[str, Any] = {"calibration_images": 20, "check_images": 40, "accept_change": True}
    numbers |= {"precision": "int8", "calibration": str(folder), "listener": heard}
    made = vitkit.export(model, tmp_path / "out", **numbers)
    # Quantised it is, and not much of another model.
    assert 1e-4 < made.agreement.logit_error < 0.3 and made.agreement.images == 40
    assert made.calibration == "20 images of photos"
    served = vitkit.Predictor(made.path)
    assert f"int8 by openvino; when exported: {made.agreement}" in served.notes
    refused("whose precision is int8, not bfloat16", vitkit.Predictor, made.path, precision="bfloat16")


def test_an_engine_names_several_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    fake_engines(monkeypatch, model)
    model.card = ModelCard(class_names=NAMES, task=Task("multi-label", "sigmoid"))
    images = sorted(photos(tmp_path / "photos", 3).glob("[0-9]*.png"))
    path = saved(tmp_path, model)
    made = vitkit.export(path, tmp_path / "out", calibration=str(photos(tmp_path / "more"))).agreement
    assert made.answers == made.images * len(NAMES)
    expected = probabilities(vitkit.Predictor(path), images)
    assert np.abs(probabilities(vitkit.Predictor(tmp_path / "out"), images) - expected).max() < 1e-5


def test_threads_without_torch_are_those_of_openmp_or_the_engine_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_count() == torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        patch.setenv("OMP_NUM_THREADS", "3")
        assert thread_count() == 3
        patch.setenv("OMP_NUM_THREADS", "2,1")  # of nested regions: the engine's own choice
        assert thread_count() == 0


def test_an_export_is_compared_on_the_run_s_own_images_or_on_others_where_they_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    spec, splits, model = tmp_path / "data", Splits(val_fraction=0, test_fraction=0.25), small()
    spec.mkdir()
    for number, name in enumerate(NAMES):
        photos(spec / name, 8 + number, number)
    rule = preprocessing_of(model)
    data = task_of(model.card).learning.open_data(str(spec), splits, rule.decode, NAMES)
    record = TrainingData(str(spec), "pets", splits, data.fingerprint())
    model.card = ModelCard(class_names=NAMES, data=record)
    path = saved(tmp_path, model)
    require_same_images(path, data, data.fingerprint(), "names", SILENT)
    seen: list[np.ndarray] = []
    runner = fake_engines(monkeypatch, model)
    whole = FakeRunner.__call__

    def remembered(self: FakeRunner, images: Any) -> Any:
        seen.append(images)
        return whole(self, images)

    monkeypatch.setattr(FakeRunner, "__call__", remembered)
    said = cli(["export", str(path), str(tmp_path / "out"), "--precision", "bfloat16"]).out
    assert "on 12 test images of data in batches of 1, 3 and 8" in " ".join(said.split())
    assert "in bfloat16 its GELU is computed in the exact form (erf)" in said
    read = {
        preprocess(decode(file, rule.decode), rule).transpose(2, 0, 1).tobytes()
        for file in spec.rglob("[0-9]*.png")
    }
    pixels = [image.tobytes() for image in np.concatenate(seen[:3])]  # others are golden
    assert len(pixels) >= 8 and set(pixels) <= read
    assert runner.batches[:2] == [1, 3]
    spec.rename(tmp_path / "moved")
    heard = Hearing()
    made = vitkit.export(path, tmp_path / "others", listener=heard)
    assert "images that are made up" in made.agreement.compared_on
    assert any("cannot be compared on" in note for note in heard.notes)


def test_another_graph_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, heard = small(), Hearing()
    path, folder = saved(tmp_path, model), str(photos(tmp_path / "photos"))
    fake_engines(monkeypatch, model, lambda logits: logits * np.float32(1.001))
    refused("onnxruntime computes other logits", vitkit.export, path, tmp_path / "a" / "out", format="onnx")
    fake_engines(monkeypatch, model, lambda logits: np.roll(logits, 1, axis=1))
    numbers: dict[str, Any] = {"precision": "int8", "calibration": folder}
    refused(r"0 of .* \(0\.00%.* 99% or more", vitkit.export, path, tmp_path / "a" / "out", **numbers)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "photos"}
    vitkit.export(path, tmp_path / "out", **numbers, accept_change=True, listener=heard)
    assert "kept because of --accept-change" in heard.warnings[0]


def test_predictions_of_an_exported_folder_are_lines_of_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    model, folder = small(), photos(tmp_path / "photos", 2)
    fake_engines(monkeypatch, model)
    out = vitkit.export(saved(tmp_path, model), tmp_path / "out").path
    arguments = ["predict", str(out), str(folder / "0.png"), str(folder / "1.png"), "--json"]
    lines = cli(arguments).out.splitlines()
    assert [len(json.loads(line)) > 0 for line in lines] == [True, True]
    (out / "graph.bin").write_bytes(b"")
    said = cli(arguments, 1)
    assert json.loads(said.out)["exit_code"] == 1
    assert "graph.bin is not the file" in said.err and "Traceback" not in said.err


def test_nobody_is_told_of_the_use_of_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, libraries.TELEMETRY, raising=False)
    libraries.import_package("json")
    with pytest.raises(ImportError, match=r"None in sys\.modules"):
        import_module(libraries.TELEMETRY)
