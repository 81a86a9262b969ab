"""The results of jobs show their figures at the Python prompt and in a notebook."""

import base64
import html
import json
import re
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.helpers.small_digits import SMALL
from vitkit.listener import UPDATE_SECONDS, Curves, NotebookListener, find_display
from vitkit.result import Listing, Result, Section, Table, html_table
from vitkit.tasks.answering import Guess

pytestmark = pytest.mark.usefixtures("without_report")
SHORT = replace(SMALL, training=replace(SMALL.training, steps=2))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    return vitkit.train(SMALL, tmp_path_factory.mktemp("work") / "run")


RESULTS: dict[str, Callable[[Path, Path], Any]] = {
    "evaluate": lambda run, there: vitkit.evaluate(run),
    "fewshot": lambda run, there: vitkit.fewshot(run, "digits", shots=[1], cache=False),
    "ablate": lambda run, there: vitkit.ablate(
        SHORT, vary={"position": ["none"]}, seeds=1, fixed_rate=True, out=there / "ablation"
    ),
    "series": lambda run, there: vitkit.read_series(
        vitkit.train_series(SHORT, there / "series", vitkit.SeriesOptions(runs=2))
    ),
    "list_runs": lambda run, there: vitkit.list_runs(run.parent)[0],
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_job_shows_its_progress_and_a_short_result_with_figures(
    name: str, run: Path, tmp_path: Path, notebook: "FakeNotebook"
) -> None:
    result = RESULTS[name](run, tmp_path)
    assert any("<progress" in view for shown in notebook.outputs for view in shown.views)
    shown = repr(result)
    assert len(shown) < 700 and " object at 0x" not in shown
    assert re.search(r"\d%|\d\.\d", shown), "there is no figure in it"
    page = ET.fromstring(f"<div>{result._repr_html_()}</div>")  # it is well-formed
    assert page.find("p") is not None and "".join(page.find("p").itertext())  # type: ignore[union-attr]
    assert (name in ("evaluate", "fewshot", "ablate")) == bool(page.findall("p/img"))
    if name in ("fewshot", "ablate", "series"):
        rows = page.findall("table/tbody/tr")
        assert len(rows) >= 2 and all(len(row) == len(page.findall("table/thead/tr/th")) for row in rows)


def test_an_inspection_shows_its_pictures(run: Path, tmp_path: Path) -> None:
    inspection = vitkit.inspect(run, out=tmp_path / "drawn")
    pictures = [path for path in inspection.pictures if path.suffix == ".png"]
    page = ET.fromstring(f"<div>{inspection._repr_html_()}</div>")
    shown = [str(picture.get("src")).partition(",") for picture in page.iter("img")]
    assert [base64.b64decode(data) for _, _, data in shown] == [path.read_bytes() for path in pictures]
    assert repr(inspection) == f"<Inspection: {len(inspection.pictures)} files in {tmp_path / 'drawn'}>"


def test_what_was_trained_is_a_path_that_shows_its_report(run: Path) -> None:
    assert isinstance(run, Path) and run / "model.json" == Path(f"{run}/model.json")
    trained: Any = run
    (run / "report.html").write_text('<p title="a">curves & mistakes</p>')
    frame = re.fullmatch(r'<iframe srcdoc="([^"]*)" style="[^"]*"></iframe>', trained._repr_html_())
    assert frame is not None and html.unescape(frame[1]) == '<p title="a">curves & mistakes</p>'
    (run / "report.html").unlink()
    assert trained._repr_html_() is None


def test_an_evaluation_says_what_the_command_line_says(run: Path) -> None:
    evaluation = vitkit.evaluate(run)
    low, high = evaluation.result.accuracy_interval
    shown = repr(evaluation)
    assert shown.startswith(f"<Evaluation: {evaluation.result.accuracy:.2%} accuracy, top-5 ")
    assert f" on 360 test images of digits (95 % interval {low:.1%} to {high:.1%})" in shown
    assert repr(evaluation.result).startswith(
        f"<Classification: {evaluation.result.accuracy:.2%} accuracy on 360 images "
        f"(95 % interval {low:.1%} to {high:.1%}); "
    )


def test_a_predictor_and_its_guesses_are_short(run: Path) -> None:
    predictor = vitkit.Predictor(run, device="cpu")
    assert repr(predictor) == "<Predictor: ViT-16x1x2/4, 10 classes, 8x8 pixels, on cpu>"
    assert "<p>ViT-16x1x2/4, 10 classes" in predictor._repr_html_()
    guesses = predictor(np.zeros((8, 8, 3), np.uint8), top=2)
    assert re.fullmatch(r"\[(Guess\(name='\d', probability=0\.\d{1,5}\)(, )?){2}\]", repr(guesses))


def test_text_from_outside_is_harmless() -> None:
    class Hostile(Result):
        def summary(self) -> str:
            return "<script>\x1b[2J"

        def sections(self) -> tuple[Section]:
            return (Section("", [Table(("<b>",), (("<i>\x07",),) * 50)]),)

    assert repr(Hostile()) == "<Hostile: <script>\\x1b[2J>"
    page = Hostile()._repr_html_()
    assert "<script" not in page and "<b>" not in page and "<i>" not in page and "\x1b" not in page
    assert page.count("<tr>") == 41 and "and 10 more" in page
    assert repr(Guess("\x1b[2J", 0.12345678)) == "Guess(name='\\\\x1b[2J', probability=0.1235)"
    assert html_table(Table(("a",), ())) == "<table><thead><tr><th>a</th></tr></thead><tbody></tbody></table>"


def test_numbers_are_printed_as_csv() -> None:
    rows = [
        {"name": "=a, b", "count": 1234, "interval": [0.5, 1.0]},
        {"name": "c", "count": None, "more": {"x": True}},
    ]
    listed = Listing("two", (), (), {"seed": 3, "few": [{"a": 1}], "rows": rows})
    assert listed.to_csv().splitlines() == [
        "seed,rows.name,rows.count,rows.interval.0,rows.interval.1,rows.more.x",
        '3,"\'=a, b",1234,0.5,1.0,',
        "3,c,,,,True",
    ]
    assert Listing("none", (), (), {"accuracy": 0.25, "names": []}).to_csv() == "accuracy\n0.25\n"
    assert Listing("a list", (), (), [{"a": 1}, {"a": 2}]).to_csv() == "a\n1\n2\n"


# Jobs show themselves in a notebook, in place, and are silent in a script


@dataclass
class Shown:
    """An output of a cell, with all that it showed one after the other."""

    views: list[str] = field(default_factory=list)

    def update(self, view: Any) -> None:
        self.views.append(view._repr_html_())


class FakeNotebook:
    """A cell of a notebook: what is displayed in it."""

    def __init__(self) -> None:
        self.outputs: list[Shown] = []

    def display(self, view: Any, display_id: bool = False) -> Shown:
        assert display_id
        self.outputs.append(Shown([view._repr_html_()]))
        return self.outputs[-1]


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> FakeNotebook:
    """A program that runs as the kernel of a notebook."""
    return make_notebook(monkeypatch, types.SimpleNamespace(kernel=object()))


def make_notebook(monkeypatch: pytest.MonkeyPatch, shell: Any) -> FakeNotebook:
    cell = FakeNotebook()
    ipython: Any = types.ModuleType("IPython")
    displays: Any = types.ModuleType("IPython.display")
    ipython.get_ipython, displays.display = lambda: shell, cell.display
    ipython.version_info = (9, 0)  # matplotlib asks for it
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return cell


def test_a_run_shows_a_bar_and_its_curves(
    notebook: FakeNotebook, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitkit.train(SMALL, tmp_path / "run")
    curves = [shown for shown in notebook.outputs if any("<svg" in view for view in shown.views)]
    bars = [shown for shown in notebook.outputs if any(">training&ensp;" in view for view in shown.views)]
    assert len(curves) == 1 and len(bars) == 1
    last = curves[0].views[-1]
    figures = ET.fromstring(last).findall("figure")  # it is well-formed
    assert [figure.find("svg").get("aria-label") for figure in figures] == [  # type: ignore[union-attr]
        *("training loss, validation loss by step", "accuracy by step")
    ]
    measured = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    accuracy = [line["accuracy"] for line in measured if line["kind"] == "validation"][-1]
    assert f"accuracy {accuracy:.1%}" in last and last.count("<polyline") == 3
    assert "0 of 6" in bars[0].views[0] and bars[0].views[-1] == ""  # a bar goes away at the end
    text = capsys.readouterr().out
    assert "digits" in text and "report" in text  # the summaries


def test_quiet_and_scripts_show_nothing(
    notebook: FakeNotebook,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vitkit.train(SMALL, tmp_path / "run", quiet=True)
    vitkit.evaluate(tmp_path / "run", quiet=True)
    vitkit.list_runs(tmp_path, quiet=True)
    assert notebook.outputs == [] and capsys.readouterr().out == ""
    for shell in (None, types.SimpleNamespace()):  # a script that imported IPython; IPython in a terminal
        cell = make_notebook(monkeypatch, shell)
        assert find_display() is None
        vitkit.evaluate(tmp_path / "run")
        assert cell.outputs == [] and capsys.readouterr() == ("", "")


def test_updates_are_few_and_the_last_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    cell = FakeNotebook()
    with pytest.raises(KeyboardInterrupt), NotebookListener(cell.display).progress("reading", 1000) as update:
        for number in range(1000):
            clock[0] += UPDATE_SECONDS / 100
            update(number + 1 if number < 998 else 999, detail="<b>")
        raise KeyboardInterrupt
    (shown,) = cell.outputs
    assert 10 <= len(shown.views) <= 13
    assert "999 of 1,000" in shown.views[-1]  # what was interrupted stays, with the last number
    assert "&lt;b&gt;" in shown.views[-1] and "<b>" not in shown.views[-1]
    assert "left" in shown.views[-2]


def test_curves_of_long_runs_stay_small_and_end_with_the_last_value() -> None:
    curves = Curves(100_000)
    for step in range(1, 100_001):
        curves.add({"kind": "train", "step": step, "loss": 1 / step})
    curves.add({"kind": "train", "step": 100_001, "loss": float("nan")})
    curves.add({"kind": "evaluation", "evaluator": "fewshot", "step": 5, "accuracy": 0.5})
    drawn = curves._repr_html_()
    assert len(drawn) < 20_000 and drawn.count("<figure") == 1
    assert "training loss 0.000" in drawn
