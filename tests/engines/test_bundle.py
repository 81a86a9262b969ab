"""A bundle of each family passes its golden set on each engine; a level that is spoiled is the one named."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.engines.models import NAMES, drawn, novelty
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from vitkit.config import to_json
from vitkit.data.config import Preprocessing
from vitkit.engines import graph
from vitkit.engines.folder import _digest, serve_folder
from vitkit.engines.golden import read_golden
from vitkit.engines.libraries import EnginePrecision, GraphFormat, has_bfloat16, import_package
from vitkit.jobs.check_bundle import check_bundle
from vitkit.models.config import EVA02_ROTARY, BackboneConfig, Refusal, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights.files.checksum import checksum_of
from vitkit.weights.model_card import ModelCard

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("openvino", "nncf", "onnxruntime", "onnx", "onnxscript"))),
    reason="needs the extras openvino and onnxruntime",
)
PLAIN = ViTConfig((16, 24), (4, 4), width=32, depth=2, num_heads=2, mlp_dim=64, num_classes=5)
FAMILIES: dict[str, ModelConfig] = {
    "plain": PLAIN,
    "mean pooling": replace(PLAIN, pool="mean"),
    "attention pooling": replace(PLAIN, pool="map"),
    "registers": replace(PLAIN, register_tokens=4),
    "rotary": replace(PLAIN, position="none", rotary=EVA02_ROTARY),
    "axial": replace(PLAIN, attention="axial", pool="mean"),
    "hybrid": replace(
        PLAIN, image_size=(32, 32), patch_size=(1, 1), backbone=BackboneConfig((1, 1, 1), width_factor=0.5)
    ),
    "BiT": ResNetConfig((27, 32), (1, 1), 5, width_factor=0.5),
}
NEWEST_OPSET = 20
"""ONNX Runtime has it since 1.17 (January 2024)."""
COMPUTED: list[tuple[GraphFormat, EnginePrecision]] = [
    ("openvino", "float32"),
    ("openvino", "bfloat16"),
    ("openvino", "int8"),
    ("onnx", "float32"),
    ("onnx", "int8"),
]


def exported(
    model: ImageModel,
    place: Path,
    format: GraphFormat,
    precision: EnginePrecision = "float32",
    **options: Any,
) -> Path:
    """Export a model to a bundle; int8 is calibrated on images that are made here."""
    if precision == "int8":
        photos = place / "photos"
        photos.mkdir()
        generator = np.random.default_rng(0)
        for number in range(24):
            coarse = generator.integers(0, 256, (4, 6, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((48, 32)).save(photos / f"{number}.png")
        options |= {"calibration": str(photos), "calibration_images": 12, "check_images": 12}
        options["accept_change"] = True
    saved = vitkit.save_model(model, place / "model")
    return vitkit.export(saved, place / "bundle", format=format, precision=precision, **options).path


def run_check(bundle: Path, *photos: Path) -> tuple[int, str]:
    """Run a bundle's check.py where neither vitkit nor torch can be imported; its exit code and output."""
    code = (
        "import runpy, sys; sys.modules.update(vitkit=None, torch=None); sys.argv[:] = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", code, str(bundle / "check.py"), *map(str, photos)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


@pytest.mark.parametrize("computed", COMPUTED, ids="-".join)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_bundle_of_each_family_passes_where_it_was_made_and_on_the_other_engine(
    family: str, computed: tuple[GraphFormat, EnginePrecision], tmp_path: Path
) -> None:
    format, precision = computed
    if precision == "bfloat16" and not has_bfloat16():
        pytest.skip("OpenVINO has no bfloat16 on this processor")
    bundle = exported(drawn(FAMILIES[family]), tmp_path, format, precision)
    for engine in ("openvino", "onnxruntime") if format == "onnx" else ("openvino",):
        checked = check_bundle(bundle, engine=engine)
        assert checked.departs_at is None, (engine, [str(level) for level in checked.levels])
        assert [level.count for level in checked.levels] == [16] * 4
    code, said = run_check(bundle)
    assert code == 0 and "answers as when exported" in said


def hash_again(bundle: Path) -> None:
    """Make the hashes of a bundle fit files that a test has changed."""
    record = json.loads((bundle / "engine.json").read_text())
    record["files"] = {name: to_json(checksum_of(bundle / name)) for name in record["files"]}
    (bundle / "engine.json").write_text(json.dumps(record | {"sha256": _digest(record)}))


def other_graph(**changes: Any) -> Callable[[Path, Any], None]:
    def spoil(bundle: Path, module: Any) -> None:
        graph.write_onnx(drawn(replace(PLAIN, **changes)), bundle)
        hash_again(bundle)

    return spoil


def reverse_channels(bundle: Path, module: Any) -> None:
    whole = module.decode
    module.decode = lambda path, rule: whole(path, rule)[:, :, ::-1]


def resize_otherwise(bundle: Path, module: Any) -> None:
    whole = module.preprocess
    module.preprocess = lambda image, rule: whole(image, {**rule, "interpolation": "bicubic"})


SPOILED: dict[str, tuple[str, Callable[[Path, Any], None]]] = {
    "images decoded as BGR": ("decoding", reverse_channels),
    "another filter": ("pixels", resize_otherwise),
    "another mean in the graph": ("logits", other_graph(image_mean=(0.51, 0.5, 0.5))),
    "another GELU": ("logits", other_graph(gelu="erf")),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_the_check_names_the_level_that_is_spoiled(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = drawn(PLAIN)
    model.card = ModelCard(class_names=NAMES, preprocessing=Preprocessing((16, 24)))  # with antialias
    bundle = exported(model, tmp_path, "onnx")
    spec = spec_from_file_location("bundle_check", bundle / "check.py")
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    sys.modules["bundle_check"] = module  # where its dataclass looks itself up
    spec.loader.exec_module(module)
    assert module.main([]) == 0
    level, spoil = SPOILED[fault]
    spoil(bundle, module)
    capsys.readouterr()
    assert module.main([]) == 1
    assert f"departs from the exporting machine at {level}." in capsys.readouterr().out
    if level == "logits":
        assert check_bundle(bundle).departs_at == level


def test_a_spoiled_bundle_is_noticed_and_the_command_fails(tmp_path: Path, cli: Cli) -> None:
    bundle = exported(drawn(PLAIN), tmp_path, "onnx")
    assert "answers as when exported" in cli(["export", "--check", str(bundle)]).out
    other_graph(gelu="erf")(bundle, None)
    said = cli(["export", "--check", str(bundle)], 1)
    assert "departs at the level logits" in said.out
    assert "docs/howto/bundle.md" in said.err
    assert json.loads(cli(["export", "--check", str(bundle), "--json"], 1).out)["levels"][2]["same"] < 16
    (bundle / "golden" / "03.jpg").write_bytes(b"another")
    code, printed = run_check(bundle)
    assert code == 1 and "03.jpg is missing or is not the file that was exported" in printed
    refused("03.jpg is not the file", check_bundle, bundle)


def test_photos_are_named_as_by_vitkit_and_strange_ones_refused(tmp_path: Path) -> None:
    model = drawn(PLAIN)
    model.novelty = novelty()
    model.card = ModelCard(class_names=model.card.class_names, refusal=Refusal("test", (-9.0,) * 99))
    bundle = exported(model, tmp_path, "onnx")
    photo = bundle / "golden" / "11.jpg"
    guesses = vitkit.Predictor(bundle)(photo)
    assert guesses.refused
    text = tmp_path / "text.jpg"
    text.write_text("no photo")
    best = "  ".join(f"{guess.name} {guess.probability:.1%}" for guess in guesses)
    named = f"{photo}  none of these, though nearest to  {best}\n"
    assert run_check(bundle, photo) == (0, named)
    code, said = run_check(bundle, text, photo)
    assert code == 1 and said.startswith(f"{text}  cannot be read as an image: ") and said.endswith(named)
    golden = read_golden(bundle)
    assert golden.refused is not None and golden.refused.all() and golden.logits.shape == (16, 6)
    assert check_bundle(bundle).departs_at is None


def test_int8_of_onnx_is_of_weights_alone_and_distances_stay_float(tmp_path: Path) -> None:
    onnx = import_package("onnx")
    model = drawn(PLAIN)
    model.novelty = novelty()
    model.card = ModelCard(class_names=model.card.class_names, refusal=Refusal("test", (0.0, 1.0)))
    whole = exported(model, tmp_path, "onnx")
    whole.rename(tmp_path / "float32")
    (tmp_path / "int8").mkdir()
    bundle = exported(model, tmp_path / "int8", "onnx", "int8")
    nodes = onnx.load(bundle / "graph.onnx", load_external_data=False).graph.node
    quantised = {node.output[0] for node in nodes if node.output[0].endswith("_float")}
    products = [node for node in nodes if node.op_type in ("MatMul", "Conv")]
    assert sum(node.input[1] in quantised for node in products) == 11
    assert len(products) == 11 + 2 * 2 + 2  # of two attentions, and the distances
    exact, golden = read_golden(tmp_path / "float32"), read_golden(bundle)
    spread = exact.logits[:, :5].std()
    assert 0 < np.abs(golden.logits[:, :5] - exact.logits[:, :5]).max() < 0.1 * spread
    assert golden.allowed < 1e-3 * spread
    images = golden.pixels.transpose(0, 3, 1, 2)
    alone = np.concatenate([serve_folder(bundle, 1)[0].with_novelty(image[None]) for image in images])
    np.testing.assert_allclose(golden.logits, alone, atol=1e-4)


RESIZED: dict[str, dict[str, Any]] = {
    "stretch": {},
    "stretch bicubic": {"interpolation": "bicubic"},
    "stretch by samples": {"antialias": False},
    "squash": {"resize": "squash", "crop_fraction": 0.7},
    "crop": {"resize": "crop", "crop_fraction": 0.875},
    "crop by samples": {"resize": "crop", "antialias": False},
    "shortest": {"resize": "shortest", "crop_fraction": 0.9, "interpolation": "bicubic"},
    "shortest down": {"resize": "shortest", "crop_fraction": 0.67, "crop_offset": "down"},
}


@pytest.mark.parametrize("way", RESIZED)
@pytest.mark.parametrize("format", ["openvino", "onnx"])
def test_a_graph_resizes_images_itself_as_vitkit_does(format: GraphFormat, way: str, tmp_path: Path) -> None:
    model = drawn(PLAIN)
    rule = Preprocessing((16, 24), **RESIZED[way])
    model.card = ModelCard(class_names=NAMES, preprocessing=rule)
    bundle = exported(model, tmp_path, format, inside=True)
    checked, golden = check_bundle(bundle), read_golden(bundle)
    assert checked.departs_at is None
    assert [level.name for level in checked.levels] == ["decoding", "pixels", "logits", "inside", "answers"]
    assert run_check(bundle)[0] == 0
    assert golden.inside is not None
    # A level of 255 in some pixels; a bicubic image that grows along one side alone has a few more.
    assert np.abs(golden.inside - golden.logits).max() < 0.1 * golden.logits.std()
    assert "Nx3xNxN to Nx5" in (bundle / "README.md").read_text()
    # vitkit resizes as ever, and the graph then leaves images of its size as they are.
    np.testing.assert_allclose(
        serve_folder(bundle, 1)[0].with_novelty(golden.pixels.transpose(0, 3, 1, 2)), golden.logits, atol=1e-4
    )


@pytest.mark.parametrize(
    "rule",
    [{"resize": "longest"}, {"resize": "shortest", "crop_fraction": 1.1}, {"interpolation": "lanczos"}],
)
def test_a_way_to_resize_that_graphs_have_not_is_refused(rule: Any, tmp_path: Path) -> None:
    model = drawn(PLAIN)
    model.card = ModelCard(class_names=NAMES, preprocessing=Preprocessing((16, 24), **rule))
    saved = vitkit.save_model(model, tmp_path / "model")
    refused(r"without borders .* prepared otherwise", vitkit.export, saved, tmp_path / "x", inside=True)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("family", ["plain", "hybrid", "BiT"])
def test_for_phones_a_graph_has_operators_of_the_standard_and_computes_a_fixed_batch_of_one(
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


@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_callers_side_by_side_get_the_logits_of_each_alone(tmp_path: Path, format: GraphFormat) -> None:
    bundle = exported(drawn(PLAIN), tmp_path, format)
    pixels = read_golden(bundle).pixels.transpose(0, 3, 1, 2)
    alone = serve_folder(bundle, 1)[0]
    side_by_side = serve_folder(bundle, 2, side_by_side=True)[0]
    batches = [pixels[first : first + 1 + first % 3] for first in range(12)] * 4
    with ThreadPoolExecutor(4) as callers:
        for batch, logits in zip(batches, callers.map(side_by_side, batches), strict=True):
            np.testing.assert_allclose(logits, alone(batch), atol=1e-5)
