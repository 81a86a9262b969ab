"""Jobs show themselves in a notebook, in place, and are silent in a script."""

import importlib.util
import json
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.small_digits import SMALL
from vitkit.listener import UPDATE_SECONDS, Curves, NotebookListener, find_display

pytestmark = pytest.mark.usefixtures("without_report")


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
        *("training loss, validation loss by step", "accuracy by step"),
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


def test_jobs_that_are_given_no_listener_are_shown(notebook: FakeNotebook, tmp_path: Path) -> None:
    run = vitkit.train(SMALL, tmp_path / "run", quiet=True)
    short = replace(SMALL, training=replace(SMALL.training, steps=2))
    jobs: tuple[Callable[[], object], ...] = (
        lambda: vitkit.evaluate(run),
        lambda: vitkit.fewshot(run, "digits", shots=[1], cache=False),
        lambda: vitkit.train_series(short, tmp_path / "series", vitkit.SeriesOptions(runs=2)),
        lambda: vitkit.list_runs(tmp_path),
        lambda: vitkit.convert(run, tmp_path / "converted", to="timm"),
    )
    for number, job in enumerate(jobs):
        notebook.outputs.clear()
        job()
        assert any("<progress" in view for shown in notebook.outputs for view in shown.views), number


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
    curves = Curves("run", 100_000)
    for step in range(1, 100_001):
        curves.add({"kind": "train", "step": step, "loss": 1 / step})
    curves.add({"kind": "train", "step": 100_001, "loss": float("nan")})
    curves.add({"kind": "evaluation", "evaluator": "fewshot", "step": 5, "accuracy": 0.5})
    drawn = curves._repr_html_()
    assert len(drawn) < 20_000 and drawn.count("<figure") == 1
    assert "training loss 0.000" in drawn and repr(curves) == "run  training loss 1e-05"


def test_vitkit_imports_no_ipython() -> None:
    code = "import sys, vitkit; vitkit.train; vitkit.evaluate; print('IPython' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=900).execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_the_example_runs_in_a_real_kernel(tmp_path: Path) -> None:
    for name in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install nbclient ipykernel")
    example = Path(__file__).parents[1] / "examples" / "notebook.ipynb"
    assert json.loads(example.read_text())["cells"][1]["outputs"] == []  # it is kept without what it shows
    command = [sys.executable, "-c", EXECUTE, str(example), "executed.ipynb"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    cells = json.loads((tmp_path / "executed.ipynb").read_text())["cells"]
    shown = json.dumps(cells[1]["outputs"])
    assert "<svg" in shown and "training loss" in shown and "accuracy" in shown
    assert not any(output["output_type"] == "error" for cell in cells for output in cell.get("outputs", ()))
    assert "runs/digits ViT-32x2x2/4 test " in json.dumps(cells[-1]["outputs"])
