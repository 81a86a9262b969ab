"""What a run says of itself before it begins."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import saved
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run as command
from vitkit.data.config import Loading, Preprocessing, Splits
from vitkit.data.sources import ImageData, keep_in_memory, open_data
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.jobs import train_run as training
from vitkit.jobs.finetune import finetune
from vitkit.jobs.recipes import mae_small
from vitkit.models.build import build_model
from vitkit.models.config import PLAIN
from vitkit.models.measure import parameters
from vitkit.models.zoo import model_config
from vitkit.runs import plan
from vitkit.runs import plan as outlook
from vitkit.runs.budget import Pace, steps_within, with_steps
from vitkit.runs.build import build_parts, build_validation
from vitkit.runs.config import Architecture, Run, StartConfig, model_config_of
from vitkit.runs.folder import kind_of
from vitkit.runs.plan import (
    Plan,
    bytes_per_weight,
    choose_length,
    choose_sharding,
    first_screen,
    list_images,
    look_at,
    reading_rows,
    require_memory,
)
from vitkit.runs.series_record import read_series
from vitkit.training.config import OptimizerConfig, Sharding, TrainingConfig
from vitkit.world import World


@pytest.fixture(scope="module")
def digits() -> ImageData:
    data = open_data("digits", Splits(val_fraction=0.05, test_fraction=0.2))
    return replace(data, splits={name: keep_in_memory(s, 2**30) for name, s in data.splits.items()})


def shown(run: Run, data: ImageData) -> dict[str, list[str]]:
    model = build_model(run.architecture.build_config(run.model, 10, run.preprocessing))
    cpu = torch.device("cpu")
    plan = Plan(run, data, record=None, config=model.config, device=cpu, device_name="cpu")
    return dict(first_screen(plan, model, Path("runs/mine")) + reading_rows(run, data))


def test_a_run_that_is_shorter_than_the_time_between_checkpoints(digits: ImageData) -> None:
    run = vitkit.recipe("digits", steps=1)
    rows = shown(run, digits)
    assert rows["training"][0].startswith("1 step of 64 images")
    assert rows["folder"] == ["runs/mine (checkpoints of 2.2 MB at the end)"]
    rows = shown(vitkit.recipe("digits", steps=5, checkpoint_every=1), digits)
    assert rows["folder"] == ["runs/mine (checkpoints of 2.2 MB every step)"]


def test_unreadable_files_are_counted_once_they_are_read(digits: ImageData) -> None:
    broken = copy.copy(digits.splits["val"])
    assert broken.held is not None
    broken.held = replace(broken.held, bad={3: "no image", 5: "empty"})
    data = replace(digits, splits={**digits.splits, "val": broken})
    assert shown(vitkit.recipe("digits"), data)["images"] == [
        "kept in memory (limit 2 GiB a split)",
        "! 2 files cannot be read and are excluded: 2 of val",
    ]


def test_warnings_stand_below_the_model(digits: ImageData) -> None:
    run = Run(
        data="digits",
        model="ViT-16x1x2/4",
        preprocessing=Preprocessing(image_size=(9, 10)),
        optimizer=OptimizerConfig(warmup_steps=6),
        training=TrainingConfig(steps=10),
    )
    assert shown(run, digits)["model"][1:] == [
        "! 1 rows below and 2 columns at the right of the images fill no patch: cut off",
        "! 6 of 10 steps are warm-up: lower --warmup-steps or add steps",
    ]
    # A ResNet has no tokens, and pads.
    run = Run(model="BiT-R26x1", preprocessing=Preprocessing(image_size=(33, 33)), data="digits")
    first, *warnings = shown(run, digits)["model"]
    assert "tokens" not in first and not any("patch" in warning for warning in warnings)


def test_images_that_do_not_fit_are_read_by_workers(digits: ImageData) -> None:
    assert digits.splits["train"].held is not None
    data = replace(digits, splits={"train": replace(digits.splits["train"], held=None)})
    run = replace(vitkit.recipe("digits"), loading=Loading(workers=3, memory_gib=0.5))
    rows = shown(run, data)
    assert "read as needed by 3 workers: decoded, they exceed 0.5 GiB" in rows["images"][0]
    assert "seed 0; it ends with the last weights" in rows["training"][0]  # without validation
    run = Run(data="digits", model="ViT-16x1x2/4", preprocessing=Preprocessing(image_size=(8, 8)))
    assert "ends with the best weights" in shown(run, digits)["training"][0]


@pytest.mark.parametrize(
    ("free", "given", "on_machine", "expected"),
    [
        (10**9, "auto", 2, "replicas"),
        (2 * 10**8, "auto", 2, "fsdp"),  # each of the two processes has half of the memory
        (2 * 10**8, "auto", 1, "replicas"),  # another machine has the other process
        (10**9, "fsdp", 2, "fsdp"),
        (10**9, "hsdp", 1, "hsdp"),
    ],
)
def test_weights_are_divided_where_replicas_do_not_fit(
    monkeypatch: pytest.MonkeyPatch, free: int, given: Sharding, on_machine: int, expected: Sharding
) -> None:
    monkeypatch.setattr(outlook, "available_memory", lambda: free)
    config = model_config("ViT-384x4x6/16", 10, 64)  # 7.3 million parameters: 146 MB with an average
    run = Run(training=TrainingConfig(sharding=given), optimizer=OptimizerConfig(polyak=0.99))
    world = World(0, 2, 0, on_machine)
    cpu = torch.device("cpu")
    assert parameters(config) * bytes_per_weight(run.optimizer) == pytest.approx(1.5e8, rel=0.05)
    assert choose_sharding(config, run, cpu, world) == expected
    if given == "auto":  # Muon's update needs whole matrices
        run = replace(run, optimizer=OptimizerConfig(optimizer="muon"))
        assert choose_sharding(config, run, cpu, world) == "replicas"


def test_memory_is_counted_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "available_memory", lambda: 2 * 10**8)
    config, cpu, two = model_config("ViT-384x4x6/16", 10, 64), torch.device("cpu"), World(0, 2, 0, 2)
    run = Run(model="ViT-384x4x6/16", optimizer=OptimizerConfig(polyak=0.99))
    replicas = replace(run, training=TrainingConfig(sharding="replicas"))
    require_memory(config, replicas, cpu)
    require_memory(config, run, cpu, two)
    refused(r"for each of 2 processes, and 100\.0 MB are free", require_memory, config, replicas, cpu, two)


# Parts of a run that several processes build alike

RUN = Run(data="digits", model="ViT-16x1x2/4", preprocessing=Preprocessing((8, 8), resize="crop"))


def test_validation_images_are_divided_for_those_evaluators_alone_that_measure_together(
    tmp_path: Path,
) -> None:
    """Another evaluator measures in the first process, for which it needs all images."""
    data = list_images(RUN)
    config, cpu = model_config_of(RUN, 10), torch.device("cpu")
    parts = build_parts(RUN, data, tmp_path, Hearing(), PLAIN, config, cpu)
    worlds = [World(rank, 3) for rank in range(3)]
    opened = [build_validation(replace(parts, world=world)) for world in worlds]
    every = torch.arange(len(data.splits["val"]))
    for validation in opened:
        assert torch.equal(torch.cat([batch.ids for batch in validation.batches()]), every)
    divided = [torch.cat([batch.ids for batch in v.batches(world=v.world)] or [every[:0]]) for v in opened]
    assert torch.equal(torch.cat(divided).sort().values, every)
    assert max(map(len, divided)) < len(every)


def test_cuda_graphs_are_refused_where_they_would_change_the_numbers() -> None:
    training = TrainingConfig(cuda_graphs=True, micro_batch_size=16, recompute=True)
    run = replace(RUN, training=training, architecture=Architecture(dropout=0.1))
    refused("found micro_batch_size, recompute, the random dropout: leave", plan.plan_run, run, None)
    unlabelled = replace(mae_small(), data="digits", training=TrainingConfig(cuda_graphs=True))
    refused("cuda_graphs.*found the task mae", plan.plan_run, unlabelled, None)


# The length of a run in minutes: fixed once, and never by the clock again

SMALL = Run(
    data="digits",
    model="ViT-16x1x2/4",
    preprocessing=Preprocessing((8, 8), resize="crop"),
    optimizer=OptimizerConfig(warmup_steps=10),
    training=TrainingConfig(epochs=2, batch_size=16, minutes=0.1),
)
OPTIONS = [
    *("--data", "digits", "--model", "ViT-16x1x2/4", "--image-size", "8"),
    *("--batch-size", "16", "--threads", "1", "--minutes", "0.1"),
]


pytestmark = pytest.mark.usefixtures("without_report")


def set_pace(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    monkeypatch.setattr(plan, "measure_pace", lambda *_: Pace(step, 0.0))


def test_validations_are_part_of_the_minutes() -> None:
    every = TrainingConfig(batch_size=10, evaluate_every=10)
    assert steps_within(100, Pace(1.0, 0.0), every, 100) == 100
    assert steps_within(100, Pace(1.0, 10.0), every, 100) == 50  # 5 validations of 10 s
    assert steps_within(100, Pace(1.0, 10.0), replace(every, evaluate_every=None), 1000) == 90
    assert steps_within(1, Pace(5.0, 0.0), every, 100) == 1
    # Up to 50 steps each is followed by a validation; from 51 on every second one is, which takes less time:
    # 52 + 26 * 10 s.
    assert steps_within(320, Pace(1.0, 10.0), replace(every, evaluate_every=None), 1) == 52


def test_warm_up_keeps_its_part_of_the_run() -> None:
    run = replace(SMALL, training=TrainingConfig(steps=100, batch_size=16))
    shorter = with_steps(run, 50, 1000)
    assert (shorter.training.steps, shorter.optimizer.warmup_steps) == (50, 5)


def test_the_steps_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has become ten times as fast the same command continues the same run."""
    set_pace(monkeypatch, 1.0)
    training.train_run(SMALL, tmp_path / "run")
    assert kind_of(tmp_path / "run").run().training == replace(SMALL.training, steps=6)
    weights = (tmp_path / "run/model.safetensors").read_bytes()
    set_pace(monkeypatch, 0.1)
    (tmp_path / "run/report.html").unlink()
    training.train_run(SMALL, tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").read_bytes() == weights
    longer = replace(SMALL, training=replace(SMALL.training, minutes=0.2))
    refused(r"another run:\n  minutes 0.1 -> 0.2\n.*To train", training.train_run, longer, tmp_path / "run")


@pytest.mark.parametrize("measure_pixels", [False, True])
def test_a_run_without_a_folder_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure_pixels: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    run = replace(SMALL, start=StartConfig(measure_pixels=measure_pixels))
    set_pace(monkeypatch, 1.0)
    first = training.train_run(run)
    assert (kind_of(first).run().start.image_std is not None) == measure_pixels
    set_pace(monkeypatch, 0.5)
    assert training.train_run(run) == first
    other = replace(run, optimizer=OptimizerConfig(warmup_steps=10, weight_decay=0.0))
    assert training.train_run(other) != first


def test_the_command_keeps_what_is_given_and_refuses_two_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    set_pace(monkeypatch, 1.0)
    out = str(tmp_path / "run")
    said = cli(["train", *OPTIONS, "--out", out, "--warmup-steps", "3"]).text
    assert "0.1 minutes are 6 steps of 1 s" in said
    made = kind_of(tmp_path / "run").run()
    assert (made.training.steps, made.training.minutes, made.optimizer.warmup_steps) == (6, 0.1, 3)
    assert command(["train", "--resume", out]) == 0
    for other in (["--steps", "5"], ["--epochs=2"]):
        said = cli(["train", *OPTIONS, *other, "--out", out], 1).err
        assert "--minutes chooses the number of steps: give it without --" in said


def test_the_runs_of_a_series_have_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pace(monkeypatch, 1.5)
    arguments = ["train", *OPTIONS, "--runs", "2", "--warmup-steps", "0", "--out", str(tmp_path / "runs")]
    assert command(arguments) == 0
    set_pace(monkeypatch, 0.1)
    assert command(arguments) == 0
    folders = [tmp_path / "runs" / member.folder for member in read_series(tmp_path / "runs").members]
    assert [kind_of(folder).run().training.steps for folder in folders] == [4, 4]


def test_few_shot_accuracy_on_the_way_is_said_not_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, 1.0)
    for followed, expected in ((FewShotTracking(data="digits"), 1), (FewShotTracking(), 0)):
        hearing = Hearing()
        run = replace(SMALL, fewshot=followed)
        choose_length(run, tmp_path / "run", look_at(run), listener=hearing)
        assert sum("is not counted in these minutes" in note for note in hearing.notes) == expected


def test_what_takes_too_long_or_does_not_fit_into_memory_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, 7.0)
    refused("step takes 7 s here, longer than 0.1 minutes", training.train_run, SMALL, tmp_path / "run")
    monkeypatch.setattr(plan, "available_memory", lambda: 1000)
    monkeypatch.setattr(plan, "measure_pace", lambda *_: pytest.fail("the model was built"))
    refused("does not fit into memory", training.train_run, SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_of_threads_that_cannot_be_is_refused_before_it_is_set(tmp_path: Path) -> None:
    tune = partial(finetune, saved("ViT-16x1x2/4", 3, tmp_path / "start", size=8), "digits", minutes=0.1)
    for number in (0, -1, 4097):
        refused("threads is from 1 to 4,096, found", tune, tmp_path / "run", threads=number)
