"""The start that is chosen where nobody names one: by licence, time and memory; the same again for a run."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitkit
from tests.helpers.refusals import refused
from tests.helpers.series import photos as write_photos
from tests.jobs.hearing import Hearing
from vitkit.durable import cache_folder
from vitkit.jobs import finetune as default_start
from vitkit.jobs.finetune import PATIENCE, DefaultStart, choose_start
from vitkit.models.zoo import ModelConfig
from vitkit.runs.budget import Cost
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.folder import kind_of
from vitkit.weights import published
from vitkit.weights.files import download
from vitkit.weights.published import default_starts, starts

pytestmark = pytest.mark.usefixtures("without_report")

NAMES = ["vit-ti16-augreg-in21k", "vit-s16-augreg-in21k", "vit-b16-augreg-in21k"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published names, with models that take no time."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    models = ("ViT-16x1x1/4", "ViT-16x2x1/4", "ViT-16x3x1/4")
    pairs = zip(default_starts(), models, strict=True)
    small = tuple(replace(start, model=model, image_size=8) for start, model in pairs)
    monkeypatch.setattr(default_start, "default_starts", lambda: small)
    monkeypatch.setattr(download, "_list_files", lambda address: {})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos")


def put(name: str) -> None:
    """Put a small model where the files of a published checkpoint are looked for."""
    vitkit.save_model(vitkit.create_model("ViT-16x1x1/4", 3, 8), cache_folder() / "starts" / name)


def taking(*minutes: float) -> Callable[..., Cost]:
    """A measurement that says these minutes, by the layers of the model."""

    def measure(run: Run, data: object, config: ModelConfig, *_: object) -> Cost:
        return Cost(run, 10, 60 * minutes[config.num_layers - 1], 1_000_000, 1.0)

    return measure


def choose(photos: Path, out: Path | None = None) -> DefaultStart:
    return choose_start(Run(data=str(photos)), out, device=CPU, listener=Hearing())


# Which are candidates


def test_candidates_are_free_and_trained_alike(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    """Another licence is never chosen for anybody."""
    candidates, table = default_starts(), starts()
    assert [start.name for start in candidates] == NAMES
    assert {start.licence for start in candidates} <= {"Apache-2.0", "MIT"}
    assert len({(start.training, start.data, start.image_size) for start in candidates}) == 1
    licences = {"ViT-B/16": "CC-BY-NC-4.0"}
    changed = tuple(replace(start, licence=licences.get(start.model, "MIT")) for start in table)
    monkeypatch.setattr(published, "table", lambda: changed)
    assert [start.name for start in default_starts()] == NAMES[:2]
    monkeypatch.setattr(default_start, "default_starts", lambda: ())
    refused(r"No published start has a licence .*vitkit finetune START --data", choose, photos)


# Which one is chosen


@pytest.mark.parametrize(
    ("minutes", "chosen", "next_best"),
    [
        ((5, 15, 50), 2, 1),
        ((5, 15, 61), 1, 2),
        ((5, 80, 0), 0, 1),  # the largest is not measured: it takes longer still
        ((70, 0, 0), 0, None),
    ],
)
def test_the_largest_that_ends_within_an_hour_is_chosen(
    monkeypatch: pytest.MonkeyPatch, photos: Path, minutes: Sequence[int], chosen: int, next_best: int | None
) -> None:
    monkeypatch.setattr(default_start, "measure_cost", taking(*minutes))
    choice, mine = choose(photos), minutes[chosen]
    assert choice.start.name == NAMES[chosen]
    said = " ".join(choice.rows()[0][1])
    assert ("next best" in said) == (next_best is not None)
    assert next_best is None or f"next best: {NAMES[next_best]}, about " in said
    assert ("none fits into memory and an hour" in said) == (mine * 60 > PATIENCE)


def test_what_does_not_fit_into_memory_is_not_measured(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    choice = choose(photos)
    assert list(choice.costs) == NAMES and all(cost.seconds > 0 for cost in choice.costs.values())
    monkeypatch.setattr(default_start, "measure_cost", taking(1, 2))
    monkeypatch.setattr(default_start, "step_memory", lambda run, config, device: config.num_layers * 2**30)
    monkeypatch.setattr("vitkit.runs.plan.free_memory", lambda device, world=None: 5 * 2**29)
    choice = choose(photos)
    assert choice.start.name == NAMES[1]
    assert list(choice.costs) == NAMES[:2]
    assert "more than is free" in " ".join(choice.rows()[0][1])


# From Python, and again


def test_nothing_is_fetched_unless_it_is_allowed_and_nothing_measured_without_a_network(
    monkeypatch: pytest.MonkeyPatch, photos: Path, tmp_path: Path
) -> None:
    def refuse(address: str, *_: object) -> None:
        raise vitkit.VitkitError(f"{address} cannot be fetched: no network.")

    monkeypatch.setattr(default_start, "measure_cost", taking(1, 90))
    monkeypatch.setattr(download, "from_hub", refuse)
    refused(r"vit-ti16-augreg-in21k is not on this machine.*download=True", vitkit.finetune, data=str(photos))
    refused(
        "not on this machine.*cannot be fetched.*starts", vitkit.finetune, data=str(photos), download=True
    )
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(default_start, "measure_cost", None)  # whoever measured would fail
    monkeypatch.setattr(download, "_list_files", refuse)
    said = f"{NAMES[0]} is not .* cannot be fetched: no network. Files put into the folder {cache_folder()}"
    refused(said, choose, photos)
    monkeypatch.setattr(default_start, "measure_cost", taking(1, 2, 3))
    put(NAMES[2])  # one of them is here: nobody needs the network to begin
    assert choose(photos).start.name == NAMES[2]


def test_a_start_that_is_there_is_taken_and_kept(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    """Images alone suffice; another speed on another day does not change the start of the run."""
    put(NAMES[0])
    monkeypatch.setattr(default_start, "measure_cost", taking(1, 90))
    folder = vitkit.finetune(str(photos), minutes=0.05, threads=1)
    assert kind_of(folder).run().start.start == NAMES[0]
    monkeypatch.setattr(default_start, "measure_cost", taking(1, 2, 3))
    for out in (None, folder):
        assert choose(photos, out).start.name == NAMES[0]
        assert f"{folder} was begun from it" in choose(photos, out).reason
    assert vitkit.finetune(str(photos), minutes=0.05, threads=1) == folder
    assert choose(photos, Path("another")).start.name == NAMES[2]
    record = json.loads((folder / "config.json").read_text())
    for command, begun in (("--data d", True), ("--start x --data d", False), ("--start=x --data d", False)):
        record["command"] = f"vitkit finetune {command}"
        (folder / "config.json").write_text(json.dumps(record))
        # A run whose start a person has named says nothing of the next.
        assert ("was begun from it" in choose(photos).reason) == begun


def test_other_options_of_the_start_stay(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    put(NAMES[0])
    monkeypatch.setattr(default_start, "measure_cost", taking(1, 90))
    run = vitkit.finetune_run(StartConfig(head="keep"), str(photos), image_size=16)
    assert run.start == StartConfig(NAMES[0], head="keep") and run.preprocessing.image_size == (16, 16)
