"""Every record that is written and read again, whole and damaged in every way."""

import contextlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import vitkit
from tests.faults.mutate import REMOVED, leaves, replaced
from tests.helpers.damage import as_a_huge_file, damage
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from vitkit.config import from_json, read, to_json, write
from vitkit.engines.folder import read_description_of
from vitkit.evaluation.classify import classification, multi_label
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.refusal import RefusalRecord
from vitkit.jobs.bench import Bench
from vitkit.jobs.parts import PartFile, PartsRecord
from vitkit.jobs.study.study import Arm, Study
from vitkit.jobs.trackers import SentRecord
from vitkit.models.config import PLAIN, Compute
from vitkit.runs.config import Run, read_config
from vitkit.runs.folder import kind_of
from vitkit.runs.records import Divergence, StartRecord
from vitkit.runs.series_record import SeriesRecord, read_series
from vitkit.runs.trained_model import DataRecord, OtherImages
from vitkit.tasks import find_task
from vitkit.training.checkpoint import Ended, FileHash, Manifest, Progress, read_manifest, read_progress
from vitkit.weights.files.source import read_json_object
from vitkit.weights.model_card import ModelCard, describe, read_description

RUN = small_run(4)
SWEEP = vitkit.SeriesOptions(sweep_rates=(0.001, 0.02), runs=2)
SERIES = SeriesRecord("0.1", "vitkit train", RUN, SWEEP, False)
NAMES = ("cat", "dog", "owl")
LOGITS = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
IDS, BAD = np.arange(7), np.array([8])
PREDICTIONS = Predictions(LOGITS, np.arange(7) % 3, IDS, BAD)
LABELS = Predictions(LOGITS, (np.arange(21).reshape(7, 3) % 2).astype(np.uint8), IDS, BAD)
CONFIG = vitkit.model_config("ViT-16x1x2/4", 3, (8, 8))

BENCHMARK = """{"machine": {"device": "cpu"}, "records": [{"model": "m", "image_size": [8, 8], "memory": 9,
    "name": "vitkit float32", "precision": "float32", "batch_size": 2, "library": "vitkit", "rounds": 3,
    "images_per_second": 9.0, "quartiles": [8.0, 10.0], "seconds": 0.2, "least_seconds": 0.1,
    "reference": "vitkit --exact", "ratio": 1.1, "ratio_quartiles": [1.0, 1.2], "phase": "training",
    "latency": {"p50": 0.1, "p90": 0.2, "p99": null, "calls": 7}}]}"""
COUNTS, SPLITS = {"train": {"cat": 3}}, {"train": {"a": "b"}}

RECORDS: list[Any] = [
    DataRecord("d", "/d", "folder", NAMES, COUNTS, ("A note.",), SPLITS, "f", {"train": 3}),
    OtherImages("0af", "fingerprint"),
    Divergence("infinite loss"),
    RefusalRecord("test", 0.02, {"a": 3}, {"a": 1}, (2,), {"a": 1}, {"a": 3}),
    StartRecord("/s", "ViT", "ViT", to_json(CONFIG), ("A line.",), {"url": None}, {"model.npz": "0af"}),
    Ended(4, {"torch": "2.11", "threads": 1}),
    Manifest(4, {"torch": "2.11"}, {"model.safetensors": FileHash(9, "0af")}, to_json(RUN)),
    Progress(4, 0.5, 2, 1.25, 1, {"loss": 2.0}, 2, 99, "0af", True),
    SERIES,
    Study("0.1", "ablation", "vitkit ablate", {"vary": ["a"]}, (Arm("a", "position none", RUN, SWEEP),)),
    PartsRecord({"model": "0af"}, 7, 3, "0.1", {"part-00000.parquet": PartFile(9, "0af")}),
    SentRecord("abcdefg1", 3),
    from_json(Bench, json.loads(BENCHMARK), "bench.json"),
    classification(PREDICTIONS, NAMES),
    multi_label(LABELS, NAMES),
]
"""One of each class that `vitkit.config.read` reads."""
BY_NAME = {type(record).__name__: record for record in RECORDS}


@dataclass(frozen=True)
class Card:
    """What `describe` needs of a model."""

    config: Any
    card: ModelCard


def read_answers(name: str, task: Any) -> Callable[[Path], object]:
    answering = find_task(task).answering
    assert answering is not None
    return lambda folder: answering.read_evaluation(folder / name)


def read_model(folder: Path) -> object:
    path = folder / "model.json"
    return read_description(read_json_object(path), path)


def read_run(folder: Path) -> tuple[Run, Compute]:
    way: Any = read_config(folder).get("compute")
    return kind_of(folder).run(), from_json(Compute, way, "config.json")


OPTIONS = {"vitkit_version": "1", "command": "vitkit train", "run": to_json(RUN), "compute": to_json(PLAIN)}
READERS: dict[str, tuple[Any, Callable[[Path], object]]] = {
    "config.json": (OPTIONS, read_run),
    "model.json": (describe(Card(CONFIG, ModelCard("m", NAMES))), read_model),
    "engine.json": ({"format": "vitkit-engine", "format_version": 3, "sha256": "0af"}, read_description_of),
    "series.json": (SERIES, read_series),
    "manifest.json": (BY_NAME["Manifest"], read_manifest),
    "state.json": (BY_NAME["Progress"], read_progress),
    "classes.json": (BY_NAME["Classification"], read_answers("classes.json", "classification")),
    "labels.json": (BY_NAME["MultiLabel"], read_answers("labels.json", "multi-label")),
}
"""By the name of a file a record, and what reads it from a folder together with others or other files."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    PREDICTIONS.save(folder / "classes.json")
    LABELS.save(folder / "labels.json")
    return folder


def test_no_record_is_left_out() -> None:
    """A class that the product reads stands in `RECORDS`."""
    source = Path(__file__).parents[2] / "src"
    texts = [path.read_text() for path in source.rglob("*.py")]
    read_classes = {
        name for text in texts for name in re.findall(r"(?<![\w.])read\((?:\w+\.)?([A-Z]\w+), ", text)
    }
    assert read_classes and read_classes <= BY_NAME.keys(), sorted(read_classes - BY_NAME.keys())


@pytest.mark.parametrize("name", BY_NAME)
@given(damage=damage())
@settings(max_examples=50, deadline=None)
def test_a_record_is_read_as_written_or_refused(
    name: str, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    record, path = BY_NAME[name], folder / f"{name}.json"
    write(path, record)
    assert read(type(record), path) == record
    content = damage(path.read_bytes())
    path.write_bytes(content)
    try:
        other = read(type(record), path)
    except vitkit.VitkitError as error:
        assert str(path) in str(error) and len(str(error)) < 2000
        return
    write(path, other)
    again = read(type(record), path)
    assert json.dumps(to_json(again)) == json.dumps(to_json(other))  # NaN does not equal itself


@pytest.mark.parametrize("name", READERS)
@given(damage=damage())
@settings(max_examples=50, deadline=None)
def test_a_record_is_read_or_refused(name: str, folder: Path, damage: Callable[[bytes], bytes]) -> None:
    path, (record, read_it) = folder / name, READERS[name]
    write(path, record)
    path.write_bytes(damage(path.read_bytes()))
    try:
        read_it(folder)
    except vitkit.VitkitError as error:
        assert path.name in str(error) and len(str(error)) < 2000


NO_JSON: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "zeros without end": lambda path: path.symlink_to("/dev/zero"),
    "a huge file": as_a_huge_file,
    "too deep": lambda path: path.write_bytes(b'{"a":' * 50_000),
    "another key": lambda path: path.write_text('{"reasons": "loss"}'),
}


@pytest.mark.parametrize("name", NO_JSON)
def test_nothing_but_a_file_of_json_is_read_and_the_nearest_key_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert read(Divergence, path) is None
    NO_JSON[name](path)
    said = ": unknown key 'reasons'. Did you mean 'reason'\\?" if name == "another key" else ""
    refused(r"record\.json" + said, read, Divergence, path)


@pytest.mark.parametrize("name", BY_NAME)
def test_every_field_with_an_odd_value_is_read_or_refused(name: str) -> None:
    """Chance would seldom put a number of 400 digits where a fraction belongs."""
    record = BY_NAME[name]
    whole = json.loads(json.dumps(to_json(record)))
    for place in leaves(whole):
        for value in (None, True, -1, 10**400, 1e308, float("nan"), "x", [], {}, REMOVED):
            with contextlib.suppress(vitkit.VitkitError):
                from_json(type(record), replaced(whole, place, value), f"{name}.json")
