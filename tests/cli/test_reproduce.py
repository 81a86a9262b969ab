"""`vitkit reproduce`: its pages beside the paper's numbers, and what it prints and refuses."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.helpers.vtab import score as scored
from vitkit.cli.main import run
from vitkit.data.config import Preprocessing
from vitkit.jobs.reproduce.items import ITEMS
from vitkit.jobs.reproduce.reproduce import Reproduction
from vitkit.jobs.study import study
from vitkit.jobs.vtab import Vtab
from vitkit.runs.config import Run
from vitkit.training.config import TrainingConfig

SMALL = ["reproduce", "table8", "--steps", "4", "--seeds", "2", "--only", "learned,none", "--threads", "1"]
"""Two arms of two runs each."""

pytestmark = pytest.mark.usefixtures("without_report")


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody interrupted."""
    out = tmp_path_factory.mktemp("reproduce") / "table8"
    assert run([*SMALL, "--out", str(out)]) == 0
    return out


def test_a_study_ends_in_a_page_beside_the_papers_numbers(whole: Path, cli: Cli) -> None:
    before = result(whole)
    printed = cli([*SMALL, "--out", str(whole)])  # the same command again trains nothing
    assert "has finished" not in printed.out and result(whole) == before
    page = (whole / "report.html").read_text()
    assert all(text in page for text in ("0.61382", "0.64206", "Why they differ", "JFT", "224 pixels"))
    links = set(re.findall(r'href="([^"]*)/report\.html"', page))
    assert links == {"learned", "none", *(f"{arm}/seed-{n}" for arm in ("learned", "none") for n in (0, 1))}
    assert all((whole / link / "report.html").exists() for link in links)
    assert [arm["name"] for arm in before["arms"]] == ["learned", "none"]
    assert before["findings"][0]["difference"]["seeds"] == 2
    assert str(whole.parent) not in json.dumps(before)


def test_minutes_become_steps_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    line = f"reproduce table8 --minutes 0.001 --seeds 1 --only none --threads 1 --out {tmp_path / 'out'}"
    arguments = line.split()
    assert "0.001 minutes are 1 step of the base, which teach little" in cli(arguments).err
    assert "One seed is about these weights only" in (tmp_path / "out/report.html").read_text()
    record = tmp_path / "out/study.json"
    options = json.loads(record.read_text())["options"]
    assert options["length"] == 1 and set(options["speed"]) == {"none"}
    monkeypatch.setattr(study, "measure_paces", None)  # which would fail if anything was measured again
    cli(arguments)
    assert "--minutes 0.001 -> 2.0" in cli([*arguments, "--minutes", "2"], 1).err


def test_a_record_that_was_edited_is_refused(whole: Path, tmp_path: Path, cli: Cli) -> None:
    record = json.loads((whole / "study.json").read_text())
    (tmp_path / "study").mkdir()
    for name, value, message in (
        ("length", 3, "holds another study"),
        ("length", 0, "expected a number of steps, found 0"),
        ("speed", {"none": -1.0}, "expected a number above 0, found -1"),
    ):
        changed = record | {"options": record["options"] | {name: value}}
        (tmp_path / "study/study.json").write_text(json.dumps(changed))
        assert message in cli([*SMALL, "--out", str(tmp_path / "study")], 1).err


def test_the_list_says_what_each_is_and_needs(cli: Cli) -> None:
    listed = json.loads(cli(["reproduce", "--json"]).out)["items"]
    assert [entry["item"] for entry in listed] == list(ITEMS)
    assert all(entry[key] for entry in listed for key in ("title", "needs", "here", "at_paper_size"))


@pytest.mark.usefixtures("in_an_empty_folder")
def test_the_plan_lists_arms_and_trains_nothing(cli: Cli) -> None:
    printed = cli(["reproduce", "table8", "--steps", "7", "--only", "none", "--plan", "--threads", "1"]).out
    assert re.search(r"none\s+none\s+its own\s+3\s+7\s", printed) and "1 arm, 3 runs" in printed
    assert run(["reproduce", "table6", "--plan"]) == 0
    assert not list(Path.cwd().iterdir())


def test_the_compute_of_table_6_is_counted_beside_the_papers(tmp_path: Path, cli: Cli) -> None:
    said = cli(["reproduce", "table6", "--out", str(tmp_path / "out")]).out
    assert "the largest difference from the paper is 3." in said.replace("\n", " ")
    page = (tmp_path / "out/report.html").read_text()
    assert "4,262" in page and "88.08" in page


def test_pictures_of_a_run_are_on_the_page_and_not_written_through_a_link(
    whole: Path, tmp_path: Path, cli: Cli
) -> None:
    """A study may have been given away, with a link to another folder in it."""
    line = f"reproduce fig7 --start {whole / 'learned/seed-0'} --out {tmp_path / 'out'}"
    assert run(line.split()) == 0
    assert (tmp_path / "out/report.html").read_text().count("data:image/png;base64,") == 3
    (collected,) = result(tmp_path / "out")["collected"]
    names = [Path(picture).stem for picture in collected["pictures"]]
    assert names == ["filters", "positions", "attention-distance"]
    shutil.rmtree(tmp_path / "out/inspect-1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out/inspect-1").symlink_to(tmp_path / "elsewhere")
    assert "inspect-1" in cli(line.split(), 1).err and not list((tmp_path / "elsewhere").iterdir())


def test_the_validation_chooses_the_regularisation(tmp_path: Path, cli: Cli) -> None:
    settings = ("decay0.3-dropout0-smoothing0", "decay0.3-dropout0.1-smoothing0.1")
    arms = [f"vit-0.0625-{setting}" for setting in settings] + [f"bit-0.0625-{settings[0]}"]
    out = tmp_path / "out"
    arguments = ["reproduce", "fig3", "--only", ",".join(arms), "--steps", "4", "--seeds", "1"]
    printed = cli([*arguments, "--out", str(out), "--threads", "1"]).out
    assert "On the fewest images the ResNet is ahead of the ViT: this cannot be told from one seed" in printed
    read = result(out)
    best = max(read["arms"][:2], key=lambda arm: arm["validation"])["name"]
    assert read["findings"][0]["less"] == [best]
    assert "Chosen by validation: BiT" in printed and len(read["findings"]) == 1
    record = json.loads((out / arms[0] / "final/config.json").read_text())["run"]
    assert record["optimizer"]["weight_decay"] == 0.3 and record["training"]["select"] == "best"
    assert "<svg" in (out / "report.html").read_text()


def test_a_checkpoint_is_fine_tuned_for_its_row_of_table_5(whole: Path, tmp_path: Path) -> None:
    """Its runs are those of the recipe, here a small one, from the start."""
    small = Run(preprocessing=Preprocessing((16, 16)), training=TrainingConfig(batch_size=16), model="")
    start, out = whole / "learned/seed-0", tmp_path / "out"
    made = vitkit.reproduce("table5", start=start, recipe=small, steps=2, seeds=2, threads=1, out=out)
    assert isinstance(made, Reproduction) and "fine-tuned: accuracy " in made.answer[0]
    assert (out / "finetuned/seed-1/start.json").exists() and "98.95" in (out / "report.html").read_text()
    refused(r"Table 5.* is about one checkpoint, found 2", vitkit.reproduce, "table5", start=[start, start])


def test_vtab_needs_its_folder_and_stands_beside_table_9(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    start = str(whole / "learned/seed-0")
    arguments = ["reproduce", "table9", "--start", start, "--out", str(tmp_path / "out")]
    assert "VTAB-1k needs the folder of its tasks" in cli(arguments, 1).err
    measured = Vtab(Path("out"), "/start", "/data", "paper", (), (scored("cifar", 0.5, 0.4, 0.6),))
    vtab = Mock(return_value=measured)
    monkeypatch.setattr("vitkit.jobs.vtab.vtab", vtab)
    said = cli([*arguments, "--data", str(whole)]).out
    assert "Mean accuracy over 1 of 19 tasks (partial): 50.0%" in said
    assert vtab.call_args.args == (start, str(whole))
    read = json.dumps(result(tmp_path / "out"))
    assert "/data" not in read and "/start" not in read and '"accuracy": 0.5' in read
    assert "84.1" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_pre_training_comes_before_what_begins_from_it(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out"
    line = "reproduce ssl --only pretrain-mean-colour,scratch,mean-colour --steps 2 --seeds 2 --threads 1"
    said = cli([*line.split(), "--out", str(out)]).out
    assert "Masked patch prediction is better than from scratch: " in said
    read = result(out)
    assert [arm["steps"] for arm in read["arms"]] == [6, 2, 2]
    assert [arm["mean"] is None for arm in read["arms"]] == [True, False, False]  # it answers nothing
    (frozen,) = read["collected"]["models"]
    assert [score["shots"] for score in frozen["scores"]] == [5, 10]
    assert "pretrain-mean-colour" in (out / "mean-colour/seed-0/start.json").read_text()
    moved = out.rename(tmp_path / "moved")  # nothing is left to do, wherever the study is
    assert run([*line.split(), "--out", str(moved)]) == 0 and result(moved) == read
