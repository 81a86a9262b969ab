"""The scripts of a page, in node: they decode turns, resize and answer as vitkit does, to the same bits."""

import base64
import gzip
import io
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.channels import from_rgb, upright
from vitkit.data.config import Preprocessing
from vitkit.data.decode.image import decode, orientation_of
from vitkit.data.transforms import preprocess
from vitkit.engines.page import WEB, encode
from vitkit.evaluation import levels
from vitkit.evaluation.predictions import likeliest, probabilities
from vitkit.evaluation.refusal import TIE, typicality
from vitkit.kernels import resample as kernel

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")
Pixels = NDArray[np.uint8]
PILLOW = [*map(int, PIL.__version__.split(".")[:2])]
HEAD = """
const fs = require("node:fs"), vm = require("node:vm");
const [scripts, body] = JSON.parse(fs.readFileSync(0));
globalThis.packed = image => ({...image, data: Buffer.from(image.data).toString("base64")});
globalThis.unpacked = image => ({...image, data: new Uint8Array(Buffer.from(image.data, "base64"))});
for (const text of [...scripts, body]) globalThis.result = vm.runInThisContext(text);
Promise.resolve(result).then(value => console.log(JSON.stringify(value)));
"""


def run(body: str, cases: Any) -> Any:
    """Evaluate `body`, a function of the cases, behind the scripts of the page."""
    scripts = [(WEB / f"{name}.js").read_text() for name in ("preprocess", "answers")]
    # Of the worker, which needs a browser, the function that unpacks alone.
    worker = (WEB / "worker.js").read_text()
    scripts.append(
        worker[worker.index("async function unpack") : worker.index("async function createSession")]
    )
    given = json.dumps([scripts, f"({body})({json.dumps(cases)})"])
    assert NODE is not None
    result = subprocess.run([NODE, "-e", HEAD], input=given, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


def packed(image: Pixels) -> dict[str, Any]:
    height, width, channels = image.shape
    data = base64.b64encode(image.tobytes()).decode()
    return {"data": data, "height": height, "width": width, "channels": channels}


def unpacked(image: Mapping[str, Any]) -> Pixels:
    flat = np.frombuffer(base64.b64decode(image["data"]), np.uint8)
    return flat.reshape(image["height"], image["width"], image["channels"])


def noise(height: int, width: int, channels: int = 3) -> Pixels:
    seed = np.random.default_rng(height * 1000 + width)
    return seed.integers(0, 256, (height, width, channels), dtype=np.uint8)


SHAPES = ((61, 97), (97, 61), (32, 32), (33, 31), (200, 9), (9, 200), (3, 1), (1, 3), (700, 5), (20, 24))


@pytest.mark.parametrize("version", [(12, 1), (12, 3), (13, 0)])
def test_the_order_of_passes_is_that_of_pillows_version(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernel.prepare_resampling():
        pytest.skip("no compiler")
    monkeypatch.setattr(kernel, "PILLOW_VERSION", version)
    cases, expected = [], []
    for shape in SHAPES:
        image, box = noise(*shape), (0.0, 0.0, float(shape[0]), float(shape[1]))
        cases.append(packed(image))
        expected.append(kernel.resample(image, box, (16, 16), "bicubic"))
    body = f"""cases => cases.map(image => packed(resample(unpacked(image), [0, 0, image.height, image.width],
        [16, 16], "bicubic", [0, 0, 16, 16], {list(version)})))"""
    for made, own in zip(run(body, cases), expected, strict=True):
        np.testing.assert_array_equal(unpacked(made), own)


RULES: tuple[dict[str, Any], ...] = (
    {"resize": "stretch"},
    {"resize": "stretch", "antialias": False},
    {"resize": "stretch", "interpolation": "nearest"},
    {"resize": "crop"},
    {"resize": "crop", "crop_fraction": 0.9, "antialias": False},
    {"resize": "crop", "interpolation": "bicubic", "crop_fraction": 1.0},
    {"resize": "shortest", "interpolation": "bicubic"},
    {"resize": "shortest", "interpolation": "lanczos", "image_size": (24, 40), "crop_offset": "down"},
    {"resize": "shortest", "crop_fraction": 1.25, "border": (10, 20, 30)},
    {"resize": "longest", "crop_fraction": 1.0, "border": (127, 0, 255)},
    {"resize": "longest", "image_size": (40, 24)},
    {"resize": "squash", "interpolation": "hamming"},
    {"resize": "squash", "crop_fraction": 1.5, "interpolation": "box"},
    {"resize": "none"},
    {"resize": "none", "crop_offset": "down", "image_size": (33, 18)},
)


def rule_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Give a rule as the page has it."""
    rule = Preprocessing(**{"image_size": (32, 32), **changes})
    names = ("image_size", "resize", "crop_fraction", "antialias", "interpolation", "crop_offset", "border")
    return {**{name: getattr(rule, name) for name in names}, "pillow": PILLOW}


@pytest.mark.parametrize("changes", RULES, ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_photo_is_brought_to_the_models_size_as_by_vitkit(
    changes: Mapping[str, Any], channels: int
) -> None:
    rule = Preprocessing(**{"image_size": (32, 32), **changes})
    images = [noise(*shape, channels) for shape in SHAPES]
    body = "([images, rule]) => images.map(image => packed(preprocess(unpacked(image), rule).pixels))"
    made = run(body, [[packed(image) for image in images], rule_of(changes)])
    for own, image in zip(made, images, strict=True):
        np.testing.assert_array_equal(unpacked(own), preprocess(image, rule), str(image.shape))


def test_the_part_of_the_photo_that_the_model_sees_is_named() -> None:
    """A photo of 100 x 200 pixels: its middle where it is cut, and beyond its edges where it has a border."""
    body = """([image, rules]) => rules.map(rule => preprocess(unpacked(image), rule).box)"""
    rules: list[dict[str, Any]] = [{"resize": "stretch"}, {"resize": "crop", "crop_fraction": 1.0}]
    rules.append({"resize": "longest", "crop_fraction": 1.0})
    boxes = run(body, [packed(noise(100, 200)), [rule_of(rule) for rule in rules]])
    assert boxes == [[0, 0, 100, 200], [0, 50, 100, 150], [-50, 0, 150, 200]]


def test_all_orientations_are_turned_upright() -> None:
    image = noise(5, 7)
    body = "image => [1, 2, 3, 4, 5, 6, 7, 8].map(turn => packed(turnUpright(unpacked(image), turn)))"
    for number, made in enumerate(run(body, packed(image)), 1):
        np.testing.assert_array_equal(unpacked(made), upright(image, number), str(number))


def encoded(kind: str, orientation: int, prefix: bytes = b"") -> bytes:
    exif, stream = Image.Exif(), io.BytesIO()
    exif[271], exif[274] = "a camera", orientation
    data = exif.tobytes()
    Image.fromarray(noise(6, 9)).save(stream, kind, exif=prefix + data if prefix else data)
    return stream.getvalue()


def test_orientations_are_read_as_by_vitkit_and_taken_out_of_the_file() -> None:
    files = [encoded(kind, turn) for kind in ("JPEG", "PNG", "WEBP") for turn in range(1, 9)]
    files += [encoded("JPEG", 9), encoded("JPEG", 6)[:40]]
    plain = io.BytesIO()
    Image.fromarray(noise(6, 9)).save(plain, "JPEG")
    files.append(plain.getvalue())
    little = encoded("JPEG", 6)
    assert b"MM\0*" in little or b"II*\0" in little
    # Kind 4, 32 bits, which is no orientation.
    wrong = little.replace(b"\x01\x12\x00\x03", b"\x01\x12\x00\x04").replace(
        b"\x12\x01\x03\0", b"\x12\x01\x04\0"
    )
    assert wrong != little
    files.append(wrong)
    body = """files => files.map(text => {
        const {orientation, bytes} = readOrientation(new Uint8Array(Buffer.from(text, "base64")));
        return [orientation, Buffer.from(bytes).toString("base64")];
    })"""
    results = run(body, [base64.b64encode(file).decode() for file in files])
    numbers = [number for number, _ in results]
    assert numbers == [*range(1, 9)] * 3 + [1, 1, 1, 1]
    for file, (number, text) in zip(files, results, strict=True):
        changed = base64.b64decode(text)
        assert len(changed) == len(file)
        if len(file) > 40 and number > 1:
            assert orientation_of(Image.open(io.BytesIO(file))) == (False, number)
            if not file.startswith(b"\x89PNG"):  # a chunk that was changed has another checksum
                assert orientation_of(Image.open(io.BytesIO(changed))) == (False, 1)
                np.testing.assert_array_equal(upright(decode(changed), number), decode(file))


def test_grey_is_pillows_luma() -> None:
    image = noise(40, 50)
    made = run("image => packed(toGrey(unpacked(image)))", packed(image))
    np.testing.assert_array_equal(unpacked(made), from_rgb(image, 1))


def test_bytes_are_unpacked_as_they_were() -> None:
    blocks = [b"", b"a", bytes(range(256)) * 30, np.random.default_rng(0).bytes(100_001)]
    body = """texts =>
        Promise.all(texts.map(async text => Buffer.from(await unpack(text)).toString("base64")))"""
    texts = [encode(gzip.compress(block)) for block in blocks]
    assert all(0x4000 <= ord(letter) < 0xC000 for text in texts for letter in text)
    assert [base64.b64decode(text) for text in run(body, texts)] == blocks


NAMES = ("birds/owl", "birds/petrel", "cats", "fish/deep/eel", "fish/deep/gulper", "fish/carp")


def logits_of(rows: int) -> NDArray[np.float32]:
    logits = np.random.default_rng(1).normal(0, 2, (rows, len(NAMES))).astype(np.float32)
    logits[0] = 0  # ties, which go to the lower number
    logits[1, 2:4] = 9
    return logits


def page_of(**more: Any) -> dict[str, Any]:
    return {"classes": NAMES, "several": False, "loss": "softmax", "refusal": None, "levels": None, **more}


@pytest.mark.parametrize("several", [False, True])
def test_probabilities_and_their_order_are_vitkits(several: bool) -> None:
    logits = logits_of(20)
    page = page_of(several=several, loss="sigmoid" if several else "softmax")
    body = "([rows, page]) => rows.map(logits => answer(Float32Array.from(logits), null, page).guesses)"
    expected = probabilities(logits, "sigmoid" if several else "softmax")
    order = likeliest(logits, len(NAMES))
    for guesses, row, numbers in zip(run(body, [logits.tolist(), page]), expected, order, strict=True):
        assert [guess["name"] for guess in guesses] == [NAMES[number] for number in numbers]
        np.testing.assert_allclose([guess["probability"] for guess in guesses], row[numbers], rtol=1e-12)


def test_strange_images_are_refused_by_the_same_share() -> None:
    own = [1.0, 2.0, 2.5, 4.0, 8.0, 9.0, 10.0, 11.0, 12.0]
    scores = np.array([0, 2, 2.0005, 2.0015, 11.9, 12, 12.0009, 12.002, 13], np.float32)
    page = page_of(refusal={"scores": own, "share": 0.1, "tie": TIE})
    body = "([scores, page]) => scores.map(score => answer(new Float32Array(6), score, page))"
    results = run(body, [scores.tolist(), page])
    expected = typicality(scores, own)
    assert [each["typicality"] for each in results] == expected.tolist()
    assert [each["refused"] for each in results] == (expected <= 0.1).tolist()
    assert {*(expected <= 0.1).tolist()} == {True, False}


def test_levels_are_named_as_by_vitkit() -> None:
    logits, thresholds = logits_of(60), (0.6, 0.7, None)
    described = [
        {
            "names": level.names,
            "groups": level.group_of.tolist(),
            "above": level.above.tolist(),
            "threshold": threshold,
        }
        for level, threshold in zip(levels.levels_of(NAMES), thresholds, strict=True)
    ]
    body = "([rows, page]) => rows.map(logits => answer(Float32Array.from(logits), null, page).sure)"
    results = run(body, [logits.tolist(), page_of(levels=described)])
    expected = levels.name_groups(logits, NAMES, thresholds)
    assert [None if each is None else each["name"] for each in results] == [
        None if each is None else each[0] for each in expected
    ]
    assert {None if each is None else each["level"] for each in results} == {None, 1, 2}


def same(rows: Sequence[Sequence[float]], **page: Any) -> list[bool]:
    body = """([rows, page]) => rows.map(([logits, refused, own, expected]) =>
        sameAnswer(logits, refused, {logits: own, refused: expected}, page))"""
    result: list[bool] = run(body, [rows, page_of(golden={"tie": 0.1}, **page)])
    return result


def test_an_answer_is_the_same_but_for_ties() -> None:
    own = [1.0, 3.0, 2.95]
    rows: Any = [[[0, 3, 1], False, own, None], [[0, 1, 3], False, own, None], [[3, 1, 0], False, own, None]]
    assert same(rows) == [True, True, False]
    rows = [[own, False, own, False], [own, True, own, False]]
    assert same(rows, refusal={"scores": [1.0], "share": 0.5, "tie": TIE}) == [True, False]
    labels = [-1.0, 2.0, 0.05]
    rows = [[[-2, 1, -0.5], False, labels, None], [[1, 1, 1], False, labels, None]]
    assert same(rows, several=True) == [True, False]
