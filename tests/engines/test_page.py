"""A page that is the model: what it holds and refuses; in a browser, that it answers as its bundle does."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.engines.models import drawn, needs_onnxruntime, novelty, small
from tests.helpers.browsers import SOFTWARE_GPU, Browser, Name, find_browser
from tests.helpers.refusals import refused
from vitkit.data.config import DecodeRule, Preprocessing
from vitkit.engines import page
from vitkit.engines.folder import FILES, read_description_of
from vitkit.engines.golden import Golden, read_golden
from vitkit.engines.graph import example_images
from vitkit.evaluation.run_model import evaluation_mode, output_function
from vitkit.models.config import Levels, Refusal
from vitkit.models.image_model import Taps
from vitkit.models.vit import ViT
from vitkit.models.zoo import model_config
from vitkit.weights.model_card import ModelCard

browsers: list[Any] = [
    pytest.param(name, marks=pytest.mark.skipif(find_browser(name) is None, reason=f"needs {name}"))
    for name in ("chromium", "firefox")
]


def in_browsers(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in each browser."""
    in_each = pytest.mark.parametrize("name", browsers)(test)
    marked: Callable[..., None] = pytest.mark.slow(needs_onnxruntime(in_each))
    return marked


TREE = ("birds/owl", "birds/petrel", "cats", "</script><b>fish", "horses")
"""Class names that are a tree, one of which would end the script that it stands in."""
CHECKED = "document.getElementById('state') && document.getElementById('state').className !== 'busy'"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a small model with levels and refusal."""
    folder = tmp_path_factory.mktemp("bundle")
    model = small(size=(32, 48))
    model.novelty = novelty()
    with output_function(model, torch.device("cpu"), "float32", novelty=True) as compute:
        scores = sorted(compute(example_images(model, 9))()[:, -1].tolist())
    rule = Preprocessing((32, 48), "crop", interpolation="bicubic")
    model.card = ModelCard(
        "a </script> model",
        TREE,
        preprocessing=rule,
        refusal=Refusal("val", tuple(scores)),
        levels=Levels((0.1, None)),
    )
    start = vitkit.save_model(model, folder / "model")
    return vitkit.export(start, folder / "bundle", format="onnx").path


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Make photos of several forms, and a file that is none."""
    folder, generator = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    paths = []
    for number, ending in enumerate(("png", "webp", "jpg", "jpg", "png", "jpg")):
        coarse = generator.integers(0, 256, (4, 6, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((90 + 40 * number, 150 - 20 * number))
        exif = Image.Exif()
        exif[274] = number + 1
        paths.append(folder / f"{number}.{ending}")
        image.save(paths[-1], exif=exif, lossless=True)
    paths.append(folder / "text.jpg")
    paths[-1].write_text("no photo")
    return paths


def opened(browser: Browser, path: Path) -> str:
    """Open a page, wait until it has checked itself, and return what it says."""
    browser.open(path.as_uri())
    browser.wait_for(CHECKED)
    state: str = browser.evaluate("document.getElementById('state').textContent")
    return state


@in_browsers
def test_a_page_answers_as_its_bundle_and_asks_no_server(
    name: Name, bundle: Path, photos: list[Path], tmp_path: Path
) -> None:
    made = vitkit.export(bundle, tmp_path / "small.html", to="page").path
    predictor = vitkit.Predictor(bundle)
    with Browser(name) as browser:
        assert opened(browser, made) == "16 of 16 as when exported"
        browser.set_files("files", photos)
        done = f"document.querySelectorAll('#answers > li:not([aria-busy])').length === {len(photos)}"
        browser.wait_for(done)
        rows = browser.evaluate(
            "[...document.querySelectorAll('#answers > li')].map(item => ({text: item.innerText, "
            "failed: item.className === 'failed', answer: item.result || null}))"
        )
        requests = [address for address in browser.requests if re.match("https?:|ws", address)]
        tried = browser.evaluate(
            "new Promise(done => { addEventListener('securitypolicyviolation', event => "
            "done(event.effectiveDirective)); fetch('http://127.0.0.1:9/').catch(() => {}); })"
        )
        facts = browser.evaluate("[document.title, document.querySelectorAll('b').length, page.classes[3]]")
    assert rows.pop()["failed"]
    for row, photo in zip(rows, photos, strict=False):
        own, answer = predictor(photo), row["answer"]
        assert [guess["name"] for guess in answer["guesses"]] == [guess.name for guess in own]
        shares = [guess["probability"] for guess in answer["guesses"]]
        # A decoder of WebP or JPEG may be off by a level or two.
        np.testing.assert_allclose(shares, [guess.probability for guess in own], atol=0.02)
        assert answer["refused"] == own.refused
        assert ("none of these" in row["text"]) == own.refused
        assert (answer["sure"] or {}).get("name") == (own.sure.name if own.sure else None)
        assert (own.sure.name if own.sure else "none of these") in row["text"]
    assert requests == [] and tried == "connect-src"
    assert facts == ["small", 1 + len(rows), TREE[3]]  # the b of the drop zone, and that of each answer


@in_browsers
@pytest.mark.parametrize("level", ["pixels", "logits", "answers"])
def test_a_golden_set_that_was_spoiled_is_noticed(
    name: Name, level: str, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = read_golden(bundle)
    pixels, logits = golden.pixels.copy(), golden.logits.copy()
    refusals = np.asarray(golden.refused).copy()
    if level == "pixels":
        pixels[5, 3:6, 4:8] ^= 64
    elif level == "logits":
        logits[5, 2] += 2 * golden.allowed
    else:
        refusals[5] = not refusals[5]
    spoiled = replace(golden, pixels=pixels, logits=logits, refused=refusals)
    monkeypatch.setattr(page, "read_golden", lambda _: spoiled)
    made = vitkit.export(bundle, tmp_path / "spoiled.html", to="page").path
    with Browser(name) as browser:
        state = opened(browser, made)
        assert state.startswith(f"Only 15 of 16 as when exported: the {level} differ here. Do not rely on")
        assert browser.evaluate("document.getElementById('state').className") == "bad"


@in_browsers
def test_webgpu_is_used_only_where_the_golden_set_agrees(
    name: Name, bundle: Path, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = vitkit.export(bundle, tmp_path / "gpu.html", to="page", webgpu=True).path
    golden = read_golden(bundle)
    logits = golden.logits.copy()
    logits[5, 2] += 2 * golden.allowed
    monkeypatch.setattr(page, "read_golden", lambda _: replace(golden, logits=logits))
    spoiled = vitkit.export(bundle, tmp_path / "spoiled.html", to="page", webgpu=True).path
    caption = "document.getElementById('levels').caption.textContent"
    compared = ", compared with the machine that exported the model"
    with Browser(name) as browser:  # without a graphics processor
        assert opened(browser, made) == "16 of 16 as when exported"
        expected = f"computed by WebAssembly{compared}. WebGPU is not used: this browser has none here"
        assert browser.evaluate(caption).endswith(expected)
    if name == "firefox":  # it computes WebGPU by no software
        return
    with Browser(name, more=SOFTWARE_GPU) as browser:
        assert opened(browser, made) == "16 of 16 as when exported"
        assert browser.evaluate(caption).endswith(f"computed by WebGPU{compared}")
        browser.set_files("files", photos[:1])
        answer = browser.wait_for("document.querySelector('#answers > li').result")
        own = vitkit.Predictor(bundle)(photos[0])
        shares = [guess["probability"] for guess in answer["guesses"]]
        np.testing.assert_allclose(shares, [guess.probability for guess in own], atol=1e-3)
        assert browser.evaluate("document.querySelector('.look').hidden") is False
        assert opened(browser, spoiled).startswith("Only 15 of 16")
        expected = f"WebAssembly{compared}. WebGPU is not used: only 15 of 16 as when exported"
        assert browser.evaluate(caption).endswith(expected)
        slow, page_bytes = tmp_path / "slow.html", made.read_bytes()
        slow.write_bytes(
            page_bytes.replace("SLOWEST = 3".encode("utf-16-le"), "SLOWEST = 0".encode("utf-16-le"))
        )
        assert opened(browser, slow) == "16 of 16 as when exported"
        assert browser.evaluate(caption).endswith("WebGPU is not used: it takes 0 s for an image")


@in_browsers
def test_a_page_is_used_by_keyboard_and_fits_a_phone(
    name: Name, bundle: Path, photos: list[Path], tmp_path: Path
) -> None:
    made = vitkit.export(bundle, tmp_path / "small.html", to="page").path
    with Browser(name) as browser:
        browser.resize(390, 844)
        opened(browser, made)
        browser.set_files("files", photos[:2])
        browser.wait_for("document.querySelectorAll('#answers > li:not([aria-busy])').length === 2")
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        focused = []
        for _ in range(5):
            browser.press("Tab")
            focused.append(
                browser.evaluate("document.activeElement.id || document.activeElement.textContent")
            )
        assert focused[:4] == ["choose", "camera", "Where it looks", "Where it looks"]
        browser.evaluate("document.querySelector('.look').focus()")
        shown = "document.querySelectorAll('.attention:not([hidden])').length"
        assert browser.evaluate(shown) == 0
        if name == "firefox":  # without a window it has no focus, and a key then presses no button
            return
        browser.press("Enter")
        browser.wait_for(f"{shown} === 1")
        assert browser.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
        browser.evaluate("document.querySelector('#licences > summary').focus()")
        browser.press("Enter")
        browser.wait_for("document.querySelector('#licences > pre').textContent.includes('MIT License')")


@needs_onnxruntime
@pytest.mark.parametrize("pool", ["token", "token+mean", "mean", "map", "max", "mean with registers"])
def test_the_attention_of_a_page_is_the_models(pool: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    config: Any = model_config("ViT-32x2x4/8", 5, (16, 24))
    pool, _, registers = pool.partition(" with ")
    model = drawn(replace(config, pool=pool, register_tokens=2 if registers else 0))
    assert isinstance(model, ViT)
    made = vitkit.export(
        vitkit.save_model(model, tmp_path / "model"), tmp_path / "bundle", format="onnx"
    ).path
    graph = page.make_graph(made / FILES["onnxruntime"][0], model.config)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 16, 24), dtype=np.uint8)
    attention = session.run(["attention"], {"images": images})[0]
    taps: Taps = {}
    with evaluation_mode(model):
        model(torch.from_numpy(images), taps, attention_weights=True)
        weights = taps["block01/attention_weights"].mean(1)
        prefix = model.config.prefix_tokens
        expected = weights[:, 0] if pool.startswith("token") else weights[:, prefix:].mean(1)
        if pool == "map":
            encoded = taps["encoded"]
            expected = model.pooling.weights(encoded).mean(1)  # type: ignore[operator]
    np.testing.assert_allclose(attention, expected[:, prefix:].numpy(), atol=1e-5)
    assert attention.shape == (3, 6)


@needs_onnxruntime
def test_a_page_is_one_file_that_names_no_address(bundle: Path, tmp_path: Path) -> None:
    made = vitkit.export(bundle, tmp_path / "small.html", to="page")
    data = made.path.read_bytes()
    text = data.decode("utf-16")
    assert data.startswith(b"\xff\xfe") and text.startswith("<!doctype html>")
    assert made.following() == (f"open {made.path} in a browser",)
    assert "onnxruntime" in made.summary() and "MB" in made.summary()
    markup = re.sub(r'(<script id="block-\w+" type="text/plain">)[^<]*', r"\1", text)
    assert len(re.findall('id="block-', markup)) == 5
    assert not re.search(r"https?:|wss?:|\bsrc=|@import|url\(", markup)
    assert "default-src 'none'" in markup and "connect-src" not in markup
    # Nothing of the golden images or the weights is left out of the compressed blocks.
    assert markup.count("<script") == 8 and "</script><b>" not in markup.partition('id="page"')[2][:400]


def test_the_runtime_is_the_pinned_one() -> None:
    record = json.loads((page.WEB / "runtime.json").read_text())
    script = (Path(__file__).parents[2] / "scripts" / "web-runtime").read_text()
    assert record["version"] in script and record["integrity"] in script
    for name in ("runtime.gz", "wasm.gz", "gpu-runtime.gz", "gpu-wasm.gz", "LICENCES.txt"):
        assert hashlib.sha256((page.WEB / name).read_bytes()).hexdigest() == record[name]
    assert "MIT License" in (page.WEB / "LICENCES.txt").read_text()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (DecodeRule(channels=4), "A page takes photos, and this model images of 4 channels: expected 1 or 3"),
        (DecodeRule(jpeg_side=100), r"JPEGs at a smaller scale \(jpeg_side = 100\), which no browser does"),
    ],
)
def test_a_model_whose_images_no_browser_prepares_is_refused(rule: DecodeRule, message: str) -> None:
    refused(message, page.refuse_page, Preprocessing((32, 32), decode=rule))
    page.refuse_page(Preprocessing((32, 32), decode=DecodeRule(channels=1)))


def test_golden_images_that_no_browser_decodes_are_refused(tmp_path: Path) -> None:
    pixels = np.zeros((1, 4, 4, 3), np.uint8)
    file = tmp_path / "01.tif"
    file.write_bytes(b"II*\0")
    golden = Golden(
        (file,), (pixels[0],), pixels, np.zeros((1, 2), np.float32), np.zeros(1, np.int64), None, None, 1, 1
    )
    refused("01.tif is no file that browsers decode: give a golden set of JPEG", page.pack_golden, golden)


def test_another_ending_than_html_is_refused_before_any_work(tmp_path: Path) -> None:
    message = "A page is a file that ends in .html, found .*mine"
    refused(message, vitkit.export, tmp_path / "nothing", tmp_path / "mine", to="page")
    message = "webgpu is for pages: leave it out, or give to page"
    refused(message, vitkit.export, tmp_path / "nothing", tmp_path / "mine", webgpu=True)
    refused(
        "A page resizes images itself: leave inside out, or to page",
        *(vitkit.export, tmp_path / "nothing", tmp_path / "mine.html"),
        to="page",
        inside=True,
    )


@needs_onnxruntime
def test_a_bundle_whose_graph_is_no_pages_is_refused(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = read_description_of(bundle)
    for changed, message in (
        (replace(record, inside=True), "resizes images itself, and so does a page: export the model without"),
        (replace(record, engine="openvino"), "is a graph of openvino, and a browser computes ONNX"),
    ):
        monkeypatch.setattr(page, "read_description_of", lambda _, changed=changed: changed)
        refused(message, page.write_page, bundle, tmp_path / "page.html", "page")
