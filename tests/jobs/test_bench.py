"""A benchmark counts and says what it measured; no test asserts a time."""

import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.jobs import bench as job
from vitkit.models.measure import training_memory
from vitkit.models.zoo import vit_config
from vitkit.runs.timing import Clock, Turn, latency, peak_memory, spread, take_turns

CPU = torch.device("cpu")
MODEL = "ViT-32x3x2/8"
"""The smallest that has a last block of its own."""


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("image_size", size) for size in (0, [64, 0], "64,128")),
        *(("threads", threads) for threads in (0, 10**30)),
        *(("minutes", minutes) for minutes in (0, float("nan"))),
        ("batch_size", 0),
    ],
)
def test_numbers_that_make_no_sense_are_refused(option: str, value: Any) -> None:
    refused(f"{option} is", vitkit.bench, MODEL, **{option: value})
    refused("Name a model", vitkit.bench)


def test_steps_take_turns_in_an_order_that_rotates() -> None:
    heard = list[str]()
    turns = {name: Turn(partial(heard.append, name), partial(heard.append, name.upper())) for name in "abc"}
    times = take_turns(turns, Clock(CPU, 1), 0.0)
    assert "".join(heard) == "AaBbCc" + "AaBbCc" + "BbCcAa" + "CcAaBb"
    assert {name: len(durations) for name, durations in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_few_calls_have_no_slowest_hundredth() -> None:
    assert latency(lambda: time.sleep(0.001), CPU, 0.0).p99 is None
    many = latency(lambda: None, CPU, 0.2)
    assert many.calls >= 100 and many.p99 is not None and many.p50 <= many.p90 <= many.p99
    assert spread([3.0, 1.0, 2.0]) == (1.5, 2.0, 2.5)


def test_peak_memory_is_what_is_alive_at_one_time() -> None:
    def step() -> None:
        first = torch.empty(1_000_000)
        del first
        both = torch.empty(500_000), torch.empty(750_000)
        del both

    assert peak_memory(step, CPU) == pytest.approx(5_000_000, rel=0.001)


def test_a_model_is_measured_in_every_way() -> None:
    small: dict[str, Any] = {"minutes": 0.04, "batch_size": 2, "threads": 1, "precision": "float32"}
    benchmark = vitkit.bench(MODEL, image_size=(32, 64), **small)
    speeds = benchmark.records
    names = ("vitkit float32", "vitkit --exact")
    ways = itertools.product([(32, 32), (64, 64)], ("inference", "training"), names)
    assert [(s.image_size, s.phase, s.name) for s in speeds] == list(ways)
    for speed in speeds:
        assert speed.images_per_second > 0 and speed.batch_size == 2 and speed.rounds >= 3
        assert speed.reference == "vitkit --exact"
        assert (speed.latency is not None) == (speed.phase == "inference")
        # What is predicted from the configuration, to the overhead of so small a model.
        config = vit_config(MODEL, 1000, speed.image_size)
        if speed.phase == "training" and speed.library == "vitkit":
            assert speed.memory == pytest.approx(training_memory(config, 2).peak, rel=0.25)
    assert [s.ratio for s in speeds if s.library == "vitkit exact"] == [1.0] * 4
    assert benchmark.machine["threads"] == 1 and benchmark.machine["clock"] == "processor time"
    json.dumps(benchmark.to_json())


def test_what_time_or_memory_is_too_small_for_is_said_and_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = Hearing()
    short = vitkit.bench("ViT-Ti/16", image_size=224, minutes=0.0001, listener=hearing, precision="float32")
    assert not short.records
    said = str(hearing.notes + hearing.warnings)
    assert "ViT-Ti/16 at 224 pixels, training: not measured" in said and "allow more minutes" in said
    monkeypatch.setattr("vitkit.runs.machine.available_memory", lambda: 1000)
    assert not vitkit.bench(MODEL, image_size=32, listener=hearing).records
    assert "and 1.0 kB are free" in str(hearing.notes + hearing.warnings)


def test_a_model_too_large_for_the_gpu_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made, hearing = job.vitkit_contestants, Hearing()

    def tried(config: Any, *rest: Any) -> Any:
        if config.image_size == (64, 64):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return made(config, *rest)

    monkeypatch.setattr(job, "vitkit_contestants", tried)
    small: dict[str, Any] = {"minutes": 0.02, "training": False, "precision": "float32"}
    benchmark = vitkit.bench(MODEL, image_size=(64, 32), listener=hearing, **small)
    assert "64 pixels, inference: not measured. Up to 8 images do not fit" in str(hearing.warnings)
    assert {speed.image_size for speed in benchmark.records} == {(32, 32)}


def test_the_command_keeps_records_and_figure(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "new"
    cli(["bench", MODEL, "--image-size", "32,64", "--minutes", "0.02", "--out", str(out)])
    names = ["bench.json", "bench.png", "bench.svg", "report.html"]
    assert sorted(path.name for path in out.iterdir()) == names
    page = (out / "report.html").read_text()
    assert f"{MODEL} at 64 pixels, training" in page and "<svg" in page
    benchmark = json.loads((out / "bench.json").read_text())
    assert benchmark["machine"]["device"] and all(record["memory"] for record in benchmark["records"])


def test_ctrl_c_prints_what_is_measured(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitkit.runs.timing.training_step", interrupted)
    command = ["bench", MODEL, "--image-size", "32", "--minutes", "0.01"]
    assert "inference: vitkit --exact" in cli(command, 130).err
