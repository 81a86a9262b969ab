import base64
import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

import vitkit
from vitkit.data.config import DEFAULT_RULE, Preprocessing
from vitkit.data.listing import Files
from vitkit.data.sources import Samples
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import DecodeError
from vitkit.evaluation.classify import Classification, classification
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.run_model import predict
from vitkit.models.config import Task
from vitkit.models.image_model import ImageModel
from vitkit.report.page import ReportContent, render_report
from vitkit.report.template import render_page
from vitkit.result import Number, Photo, Photos, Plot, Section, Table, Text
from vitkit.tasks import TASKS
from vitkit.tasks import Task as WholeTask
from vitkit.tasks.answering import ClassificationAnswering, class_rows, confused_pairs
from vitkit.weights.model_card import ModelCard, card_of

SECTIONS = (
    "results splits confusion classes mistakes calibration curves attention inside configuration data "
    "environment"
)
HOSTILE = '"><script>alert("x")</script><img src=http://evil.example/a.png>$^{'


class Noise(Samples):
    """Random pictures of random classes; every tenth file is damaged."""

    def __init__(
        self, classes: int, count: int, size: tuple[int, int] = (8, 8), damaged: bool = True
    ) -> None:
        rng = np.random.default_rng(0)
        labels = rng.integers(0, classes, count)
        super().__init__(cast("Files", None), np.arange(count), labels, DEFAULT_RULE)
        self.pixels = rng.integers(0, 256, (count, *size, 3), dtype=np.uint8)
        self.damaged = damaged

    def key(self, index: int) -> str:
        return f"{HOSTILE}/\udcff{index}.png"

    def decode(self, index: int) -> NDArray[np.uint8]:
        if self.damaged and index % 10 == 5:
            raise DecodeError(f"{HOSTILE} is truncated")
        image: NDArray[np.uint8] = self.pixels[index]
        return image


def names(classes: int) -> tuple[str, ...]:
    return tuple(f"{HOSTILE} {i}" if i % 2 else f"class {i}" for i in range(classes))


def right(
    labels: NDArray[np.int64], classes: int, predicted: NDArray[np.int64] | None = None, logit: float = 1.0
) -> Predictions:
    """Predictions that are all right, or those that are given; all as sure as the logit says."""
    logits = np.eye(classes, dtype=np.float32)[labels if predicted is None else predicted] * np.float32(logit)
    return Predictions(logits, labels, np.arange(len(labels)), np.zeros(0, np.int64))


def evaluated(model: ImageModel, samples: Noise) -> tuple[Classification, Predictions]:
    size = model.config.image_size
    made = predict(model, evaluation_batches(samples, Preprocessing(size), 64))
    return classification(made, names(model.config.num_classes)), made


def content(
    classes: int = 4, count: int = 60, split: str = "test", damaged: bool = True, **changes: Any
) -> ReportContent:
    model = vitkit.create_model("ViT-16x2x2/2", classes, 8, generator=torch.Generator().manual_seed(0))
    torch.nn.init.normal_(model.get_parameter("head.weight"), generator=torch.Generator().manual_seed(1))
    model.card = ModelCard(
        "ViT-16x2x2/2", names(classes), preprocessing=Preprocessing((8, 8)), origin={"run": HOSTILE}
    )
    samples = Noise(classes, count, damaged=damaged)
    rejects = {samples.key(i): f"{HOSTILE} is truncated" for i in range(5, count, 10)}
    whole = ReportContent(
        title=f"run {HOSTILE}",
        model=model,
        config={"training": {"steps": 7, "batch_size": 128}, "note": HOSTILE},
        data={
            "name": "noise",
            "spec": HOSTILE,
            "kind": "folder",
            "class_names": list(names(classes)),
            "counts": {"train": dict.fromkeys(names(classes), 1234), split: dict.fromkeys(names(classes), 2)},
            "notes": [f"Split by {HOSTILE}."],
            "rejects": {split: rejects},
            "fingerprint": "abc",
        },
        metrics=[
            {"kind": kind, "step": s, "epoch": s / 9, "loss": 9 / s, "learning_rate": 1e-3, "accuracy": 0.5}
            for kind, steps in (("train", range(1, 30)), ("validation", (9, 18)))
            for s in steps
        ],
        speed=[{"step": 9, "images_per_second": 1000.0, "seconds": 70.0, "memory_bytes": 2**30}],
        evaluations={split: evaluated(model, samples)},
        samples={split: samples},
        commands=["vitkit train --data x", f"vitkit predict {HOSTILE}"],
        environment={"torch": torch.__version__, "machine": HOSTILE, "compute": {"block": "eager"}},
        files=["metrics.jsonl"],
    )
    return dataclasses.replace(whole, **changes)


def bare(**changes: Any) -> ReportContent:
    """Nothing but the model: quick to draw."""
    empty: dict[str, Any] = {name: {} for name in ("config", "data", "evaluations", "samples", "environment")}
    return content(**(empty | {"count": 12, "metrics": [], "speed": [], "commands": []} | changes))


class Page(HTMLParser):
    """What a browser would find in the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.tags: list[tuple[str, Mapping[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self.open.append(tag)
        if tag in ("section", "header"):
            self.ids.append(dict(attributes).get("id") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if "style" not in self.open and "script" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[Mapping[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check_safe(html: str) -> Page:
    """Nothing is loaded from anywhere, nothing of the names became markup, every picture has words."""
    page = Page(html)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action", "srcset"):
                beside = tag == "a" and re.fullmatch(r"[\w-]+\.\w+", value or "")  # a file of the run
                assert beside or (value and value.startswith(("data:image/", "#"))), (tag, name, value)
    assert len(page.all("script")) == 1
    assert all(image["alt"] for image in page.all("img"))
    figures = [tag for tag in page.all("div") if (tag.get("class") or "").split()[:1] == ["plot"]]
    assert len(figures) == len(page.all("svg"))
    assert all(figure["role"] == "img" and figure["aria-label"] for figure in figures)
    assert not re.search(r"url\((?!#)", html) and "@import" not in html
    outside = set(re.findall(r"https?://[^\s\"'<>&]+", html)) - {"http://evil.example/a.png"}
    assert outside <= {"http://www.w3.org/1999/xlink", "http://www.w3.org/2000/svg"}
    html.encode("utf-8")
    return page


def check_narrow(html: str) -> None:
    """On a telephone nothing is cut off: figures shrink, a table is in a region that scrolls by keyboard."""
    page = Page(html)
    regions = [tag for tag in page.all("div") if tag.get("class") == "scroll"]
    assert len(regions) == len(page.all("table"))
    assert all(tag["role"] == "region" and tag["tabindex"] == "0" and tag["aria-label"] for tag in regions)
    assert page.all("main") and len(page.all("h1")) == 1
    assert all(tag.get("scope") for tag in page.all("th")) and not re.search(r"<th[^>]*></th>", html)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]
    assert re.search(r"\.plot svg \{[^}]*max-width: 100%; height: auto;", style)
    scrolls = r"\.scroll \{[^}]*overflow: auto;[^}]*linear-gradient"  # the sign that it does
    assert re.search(scrolls, style)
    # Whatever else is wider than the screen would push the page aside.
    assert not re.search(r"min-width: (?!0|7rem)|overflow-x", style) and "pre-wrap" in style


def has(html: str, *texts: str) -> Page:
    """Check a page, and that it says each of the texts."""
    page = check_safe(html)
    for text in texts:
        assert text in page.text, text
    return page


def test_the_whole_page_is_safe_narrow_and_the_same_each_time() -> None:
    whole, filled = render_report(content()), content()
    result = filled.evaluations["test"][0]
    page = has(
        whole,
        HOSTILE,  # shown as it is, not as markup
        f"{result.correct} of {result.count} test images",
        "6 files could not be read",
        *("is truncated", "training.batch_size", "1,234", "compute.block", "1 min 10 s", "1.0 GiB"),
        *("Figure 6", "Figure 7, left", "Figure 7, centre", "Figure 7, right", "expected calibration"),
    )
    assert page.ids == SECTIONS.split() and len(whole) < 2_000_000
    assert {"href": "metrics.jsonl"} in page.all("a") and "{'" not in page.text
    assert len(page.all("img")) == 24 + 2 * 12  # mistakes, and pairs of image and attention
    check_narrow(whole)
    (script,) = re.findall(r"<script>(.*?)</script>", whole, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(tag["content"] for tag in page.all("meta") if tag.get("http-equiv"))
    assert policy is not None and f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert render_report(filled) == whole


def test_pages_of_every_kind_of_block_fit_a_telephone() -> None:
    table = Table(("learning rate", "remark"), (("0.1", "chosen"),))
    plot = Plot(lambda: Figure((2, 2)), "rates", "Scores.")
    photo = Photo("data:image/png;base64,", "An ant.", "a.png", "ant", (("one", "bee", 0.5, False),))
    blocks = ("words", Text("words", "caption"), table, plot, photo, Photos(lambda: [photo]), None)
    page = render_page(
        "a", ["b"], [Section("Sweep", blocks)], folders=["final"], command="vitkit x", footer="end"
    )
    check_narrow(page)
    parsed = Page(page)
    for text in ("words", "chosen", "ant", "bee", "50.0%", "final", "vitkit x", "end"):
        assert text in parsed.text, text
    assert len(parsed.all("img")) == 2 and len(parsed.all("svg")) == 1
    nothing_to_click = render_page("a", ["b"], [Section("Sweep", (table, plot))])
    assert not Page(nothing_to_click).all("script")
    sortable = dataclasses.replace(table, sortable=True)
    check_safe(render_page("a", [HOSTILE], [Section(HOSTILE, (HOSTILE, sortable))]))


def test_the_test_split_comes_first_and_validation_stands_in_for_it() -> None:
    both = content()
    evaluations = {"val": evaluated(both.model, Noise(4, 8, damaged=False)), **both.evaluations}
    page = has(render_report(bare(evaluations=evaluations)), "54 test images", "no images at hand")
    assert "no evaluation on a test split" not in page.text
    assert page.text.count("not at hand") == 2 and not page.all("img")
    del evaluations["test"]
    stands_in = ("There is no evaluation on a test split", "8 validation images")
    has(render_report(bare(evaluations=evaluations)), *stands_in)


def test_a_page_without_evaluation_or_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("has not been evaluated", "No metrics were logged", "No file was rejected")
    page = has(render_report(bare()), *missing)
    of_the_task = ("splits", "confusion", "classes", "mistakes", "calibration")
    assert page.ids == [name for name in SECTIONS.split() if name not in of_the_task]
    assert len(page.all("svg")) == 2  # filters and positions need no data
    silent = WholeTask(TASKS["classification"].learning, None)
    monkeypatch.setattr("vitkit.report.page.task_of", lambda card: silent)
    page = has(render_report(bare()), "was trained to give features")
    assert "has not been evaluated" not in page.text


def test_the_best_step_is_the_one_that_the_run_chose() -> None:
    """It takes the lowest loss among equal accuracies, and the last of two measurements of one step."""
    measured = [
        *((10, 0.5, 0.5), (20, 1.0, 0.4), (30, 1.0, 0.2)),
        *((40, 1.0, 0.3), (50, None, 0.1), (20, 1.0, 0.1)),
    ]
    metrics = [
        {"kind": "validation", "step": step, "epoch": step, "loss": loss, "accuracy": accuracy}
        for step, accuracy, loss in measured
    ]
    assert "best: 100.0% at step 20<" in render_report(bare(metrics=metrics))
    assert "best: 100.0% at step 30<" in render_report(bare(metrics=metrics[:-1]))
    damaged = [{**line, "accuracy": (None, "abc")[number % 2]} for number, line in enumerate(metrics)]
    assert "best: " not in render_report(bare(metrics=damaged))


def test_records_of_resumed_runs_many_rejects_and_losses_that_are_no_numbers() -> None:
    metrics = [
        {"kind": "train", "step": step, "epoch": 0.1, "loss": loss, "learning_rate": 1e-3}
        for step, loss in enumerate((None, float("nan"), float("inf")), start=1)
    ]
    speed = [
        {"step": step, "images_per_second": 10.0, "seconds": seconds, "memory_bytes": 0}
        for step, seconds in ((10, 100.0), (20, 200.0), (15, 60.0), (30, 400.0))
    ]
    rejects = {"train": {f"file{i}.jpg": "empty" for i in range(5000)}}
    page = render_report(bare(metrics=metrics, speed=speed, data={"rejects": rejects}))
    sums = "10 min 00 s"  # 200 s and 400 s
    has(page, "This run has no validation", sums, "5,000 files could not be read", "And 4,800 more")


@pytest.mark.parametrize(("count", "sentence"), [(1, "of 1 test image"), (6, "every image was classified")])
def test_images_that_are_all_right(count: int, sentence: str) -> None:
    samples = Noise(2, count, damaged=False)
    made = right(samples.labels.astype(np.int64), 2)
    evaluations = {"test": (classification(made, names(2)), made)}
    page = has(render_report(bare(classes=2, evaluations=evaluations, samples={"test": samples})), sentence)
    assert "1 test images" not in page.text


def test_a_thousand_classes_stay_usable_and_large_pictures_are_made_small() -> None:
    """And attention distance is measured on as many images as in the paper."""
    many = content(classes=1000, count=150, damaged=False)
    assert len(many.samples["test"]) == 150
    html = render_report(many)
    has(html, "128 test images of 8 x 8 pixels")
    assert len(html) < 10_000_000
    large, samples = content(count=12), Noise(4, 30, (900, 1400), damaged=False)
    evaluations = {"test": evaluated(large.model, samples)}
    html = render_report(dataclasses.replace(large, samples={"test": samples}, evaluations=evaluations))
    check_safe(html)
    assert len(html) < 2_000_000


def test_models_of_mean_pooling_oblong_images_or_without_attention() -> None:
    square = content(count=20)
    model = vitkit.ViT(dataclasses.replace(square.model.config, pool="mean", image_size=(8, 6)))
    filled = bare(model=model, evaluations=square.evaluations, samples=square.samples)
    has(render_report(filled), "images of 8 x 6 pixels")
    resnet = vitkit.build_model(vitkit.ResNetConfig((8, 8), (1,), 4, width_factor=0.5))
    page = has(render_report(bare(model=resnet)), "no attention between all its places")
    assert "nothing to lay attention over" not in page.text and "no images at hand" not in page.text


def test_the_head_of_the_page_says_where_the_weights_are_from() -> None:
    origin = {"weights": "weights of step 7, the best validation", "start": {"from": "/models/start"}}
    made = bare()
    made.model.card = dataclasses.replace(card_of(made.model), origin=origin)
    page = has(render_report(made), "Weights: of step 7, the best validation.", "begun from start")
    assert "/models" not in page.text
    made.model.card = dataclasses.replace(card_of(made.model), origin={})
    text = check_safe(render_report(made)).text
    assert "Weights:" not in text and "begun from" not in text


def test_sigmoid_models_are_shown_by_their_own_probabilities() -> None:
    usual, samples = content(), Noise(4, 60)
    usual.model.card = dataclasses.replace(card_of(usual.model), task=Task(loss="sigmoid"))
    made = predict(usual.model, evaluation_batches(samples, Preprocessing((8, 8)), 64), loss="sigmoid")
    evaluations = {"test": (classification(made, names(4)), made)}
    page = has(
        render_report(dataclasses.replace(usual, evaluations=evaluations)),
        "binary cross entropy, summed over classes (nats)",
    )
    assert "cross entropy (nats)" not in page.text
    surest = max(
        1 / (1 + np.exp(-row.max().astype(float)))
        for row, label in zip(made.logits, made.labels, strict=True)
        if row.argmax() != label
    )
    assert f"{100 * surest:.1f}%" in page.text.split("Most confident mistakes")[1]


def test_what_makes_the_two_losses_different_is_named() -> None:
    metrics = content(count=12).metrics
    objective = {"loss": "softmax", "label_smoothing": 0.1, "mixup": 0.2}
    has(
        render_report(bare(metrics=metrics, config={"objective": objective})),
        "label smoothing 0.1 and mixup 0.2 and the validation loss without",
        "which of them is lower says nothing",
        "(with label smoothing 0.1 and mixup",  # in the figure, on lines of their own
    )
    plain = has(render_report(bare(metrics=metrics)), "cross entropy (nats)")
    assert "validation loss without" not in plain.text


def section_of(name: str, made: Predictions, class_names: Sequence[str]) -> Section:
    """Return one of the sections that the report of a task makes of predictions."""
    result = classification(made, class_names)
    report = ClassificationAnswering().report({"test": (result, made)}, "test")
    return next(section for section in report.sections if section.name == name)


def test_calibration_is_judged_by_what_the_images_can_tell() -> None:
    """Half of 60 images are right: a confidence between 38 and 62 % agrees with that."""
    labels = np.arange(60) % 20
    predicted = np.where(np.arange(60) < 30, labels, (labels + 1) % 20)
    can_tell = "as sure as it should be, as far as 60 test images can tell"
    for sure, verdict in ((0.9, "too sure of itself"), (0.1, "not sure enough"), (0.48, can_tell)):
        made = right(labels, 20, predicted, np.log(19 * sure / (1 - sure)))
        calibration = section_of("calibration", made, [*map(str, range(20))])
        assert f"as a whole it is {verdict}" in str(calibration.blocks)


def test_classes_equally_often_taken_for_another_are_all_named() -> None:
    labels = np.array([0, 0, 0, 1, 2, 2, 2])
    predicted = np.array([1, 2, 0, 1, 0, 0, 1])
    made = right(labels, 3, predicted)
    result = classification(made, ["zero", "one", "two"])
    assert [mistake for _, mistake in class_rows(result)] == ["one, two (1 each)", "", "zero (2)"]
    pair = confused_pairs(result).rows[0]
    assert pair == ("two", "zero", Number("2", 2), Number("3", 3))


def test_classes_are_listed_from_the_worst_and_those_without_images_last() -> None:
    labels, predicted = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 2, 0])
    classes = section_of("classes", right(labels, 4, predicted), "abcd")
    table = next(block for block in classes.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows] == ["b", "c", "a", "d"]
