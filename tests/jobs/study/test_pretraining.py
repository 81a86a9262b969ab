"""Did the unlabelled images help: equal fine-tuning with and without, draw by draw, killed and continued."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.faults.studies import measure_paces
from tests.helpers.cli import Cli
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.jobs import pretrain as pretraining
from vitkit.jobs.options import ThenOptions
from vitkit.jobs.study import study as studies
from vitkit.runs.budget import Pace
from vitkit.runs.config import Run
from vitkit.training.config import TrainingConfig
from vitkit.training.trainer import Trainer

TRAINING = "--model ViT-16x1x2/4 --image-size 8 --steps 6 --batch-size 8 --workers 0 --threads 1"
COMPARING = "--then digits --labels 20 --draws 2 --tune-steps 4"


def line(out: Path, *more: str) -> list[str]:
    return ["pretrain", "digits", *TRAINING.split(), *COMPARING.split(), *more, "--out", str(out)]


@pytest.fixture(autouse=True, scope="module")
def paced() -> Iterator[None]:
    """Have every step take as long: else a clock decides the length of the longer arm."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(studies, "measure_paces", measure_paces)
        yield


def members(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the configuration of every run of a study."""
    paths = folder.glob("*/*/config.json")
    return {str(path.parent.relative_to(folder)): json.loads(path.read_text())["run"] for path in paths}


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study") / "helped"
    assert run(line(folder, "--pretrainings", "1")) == 0
    return folder


def test_the_arms_share_seeds_labels_and_test_images_draw_by_draw(finished: Path) -> None:
    runs = members(finished)
    for draw in (0, 1):
        without, with_it, longer = (runs[f"{arm}/seed-{draw}"] for arm in ("without", "with", "longer"))
        for key in ("data", "splits"):
            assert without[key] == with_it[key] == longer[key]
        assert {record["training"]["seed"] for record in (without, with_it, longer)} == {draw}
        assert without["splits"]["subset"] == "[:20]" and without["splits"]["subset_seed"] == draw
        assert without["training"]["steps"] == with_it["training"]["steps"] == 4
        assert longer["training"]["steps"] > 4
        assert with_it["start"]["start"] == str(finished / "pretraining") and not without["start"]["start"]
        records = [json.loads(path.read_text()) for path in finished.glob(f"*/seed-{draw}/data.json")]
        assert len({record["fingerprint"] for record in records}) == 1  # of all arms
        assert (records[0]["images"]["train"], records[0]["images"]["test"]) == (20, 360)
    assert runs["pretraining/final"]["task"] == "masked-patches"
    hashes = {path.read_text() for path in finished.glob("without/seed-*/data.json")}
    assert len(hashes) == 2  # other labelled images in each draw
    ids = [np.load(path) for path in finished.glob("*/seed-*/evaluation/test.ids.npy")]
    assert len(ids) == 6 and all(np.array_equal(image_ids, ids[0]) for image_ids in ids)
    page = (finished / "report.html").read_text()
    assert "Against as much time" in page and "other seeds" not in page
    assert "Whether such a pre-training helps cannot be told from one" in page
    assert (finished / "with/model.safetensors").exists()


def test_a_killed_study_goes_on_to_the_same_bits(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Though its folder, in which an arm begins from another one, was moved."""
    launch = Trainer.launch

    def killed(self: Trainer, *arguments: Any) -> Any:
        if self.run.parts[-2:] == ("with", "seed-1"):
            raise KeyError("killed")
        return launch(self, *arguments)

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(Trainer, "launch", killed)
        run(line(tmp_path / "killed", "--pretrainings", "1"))
    folder = (tmp_path / "killed").rename(tmp_path / "moved")
    assert run(line(folder)) == 0  # the number of pre-trainings is the one that it began with
    weights = sorted(path.relative_to(finished) for path in finished.glob("*/*/model.safetensors"))
    assert len(weights) == 7
    for path in weights:
        assert (folder / path).read_bytes() == (finished / path).read_bytes(), path
    answers = [
        [said for said in cli(line(study)).out.splitlines() if "than" in said]
        for study in (folder.rename(tmp_path / "again"), finished)  # nothing is left to do, wherever it is
    ]
    assert answers[0] == answers[1] and len(answers[0]) == 3


def test_a_single_run_of_each_kind_trains_on_the_same_labelled_images() -> None:
    options, length = ThenOptions(then="digits", labels=20, draws=1), pretraining.Length(1, 9)
    run = Run(training=TrainingConfig(seed=5))
    tuning = replace(run, splits=Splits(subset="[:20]"))
    _, without, longer, with_it = pretraining.make_arms(run, tuning, options, length, Path("study"))
    assert without.run.splits == longer.run.splits == with_it.run.splits


def test_the_mean_over_draws_takes_those_that_all_have_finished() -> None:
    def scores(*draws: int) -> dict[int, NDArray[np.float64]]:
        return {draw: np.array([float(draw)]) for draw in draws}

    # The second pre-training diverged; of the first a draw is missing in one of the ways.
    ways = pretraining._by_pretraining([scores(0, 1, 2, 3), scores(0), scores(0, 1, 2, 3)], 0, 2)
    means = [{seed: mean.tolist() for seed, mean in way.items()} for way in ways]
    assert means == [{0: [0.0], 1: [2.5]}, {0: [0.0]}, {0: [0.0], 1: [2.5]}]


def test_several_pre_trainings_are_the_seeds(tmp_path: Path, cli: Cli) -> None:
    """Each is followed by fine-tunings from it, in draws of its own, which are compared pair by pair."""
    several = ("--pretrainings", "2", "--seed", "5")
    folder = tmp_path / "several"
    said = " ".join(cli(line(folder, *several, "--plan")).out.split())
    assert "5 arms, 14 runs, about" in said and "With 2 seeds on 360 test images, a difference of" in said
    assert not folder.exists()
    said = " ".join(cli(line(folder, *several)).out.split())
    assert "2 pre-trainings, each fine-tuned in 2 draws on 360 test images" in said
    assert "about other pre-trainings like these" in said and "very weights" not in said
    runs, means = members(folder), []
    assert {name for name in runs if name.startswith("with")} == {
        *(f"without/seed-{draw}" for draw in (5, 6, 7, 8)),
        *("with-5/seed-5", "with-5/seed-6", "with-6/seed-7", "with-6/seed-8"),
    }
    for first, draws in ((5, (5, 6)), (6, (7, 8))):
        scores = []
        for draw in draws:
            with_it, without = runs[f"with-{first}/seed-{draw}"], runs[f"without/seed-{draw}"]
            assert with_it["start"]["start"] == str(folder / f"pretraining/seed-{first}")
            assert with_it["splits"] == without["splits"] and with_it["splits"]["subset_seed"] == draw
            assert with_it["training"] == without["training"]
            evaluation = folder / f"with-{first}/seed-{draw}/evaluation/test.json"
            scores.append(json.loads(evaluation.read_text())["accuracy"])
        means.append(f"{np.mean(scores):.1%}")
    assert ", ".join(means) in said
    assert run(line(folder.rename(tmp_path / "moved"), *several)) == 0


def test_an_hour_decides_the_number_of_pre_trainings(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, arms in ((0.01, "6 arms, 21 runs"), (601.0, "4 arms, 7 runs")):
        paces = {name: Pace(seconds, 1) for name in ("pretraining", "without")}
        monkeypatch.setattr(studies, "measure_paces", lambda *_, paces=paces: paces)
        assert arms in cli(line(tmp_path / "planned", "--plan")).out


def test_other_options_are_refused(finished: Path, cli: Cli) -> None:
    for option, message in (("--pretrainings=2", "--pretrainings 1 -> 2"), ("--seed=1", "--seed 0 -> 1")):
        assert message in cli(line(finished, option), 1).err
