"""What a run says of itself before it begins."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.data.config import Loading, Preprocessing, Splits
from vitkit.data.sources import ImageData, keep_in_memory, open_data
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.measure import parameters
from vitkit.models.zoo import model_config
from vitkit.runs import plan as outlook
from vitkit.runs.config import Run
from vitkit.runs.plan import (
    Plan,
    Row,
    bytes_per_weight,
    choose_sharding,
    first_screen,
    reading_rows,
    require_memory,
)
from vitkit.text import pluralize
from vitkit.training.config import OptimizerConfig, Sharding, TrainingConfig
from vitkit.world import World


@pytest.fixture(scope="module")
def digits() -> ImageData:
    data = open_data("digits", Splits(val_fraction=0.05, test_fraction=0.2))
    return replace(data, splits={name: keep_in_memory(s, 2**30) for name, s in data.splits.items()})


def screen(run: Run, data: ImageData) -> list[Row]:
    model = build_model(run.architecture.build_config(run.model, 10, run.preprocessing))
    cpu = torch.device("cpu")
    plan = Plan(run, data, record=None, config=model.config, device=cpu, device_name="cpu")
    return first_screen(plan, model, Path("runs/mine"))


def shown(run: Run, data: ImageData) -> dict[str, list[str]]:
    return dict(screen(run, data) + reading_rows(run, data))


def test_the_first_screen_says_what_the_run_will_do(digits: ImageData) -> None:
    run = vitkit.recipe("digits")
    assert screen(run, digits) == [
        ("data", ["digits (built-in digits): train 1,347 · val 90 · test 360 images"]),
        ("", list(digits.notes)),
        ("classes", ["10: 0, 1, 2, 3, 4, 5, 6, 7, ... 9"]),
        ("model", ["ViT-64x4x4x128/4 at 16x16: 17 tokens, 139.0 k parameters, 4.9 MFLOPs per image"]),
        (
            "training",
            [
                "2,105 steps of 64 images (100.0 epochs), adamw, learning rate 0.002 cosine, seed 0; it "
                "ends with the last weights"
            ],
        ),
        ("device", [f"cpu, float32, {pluralize(torch.get_num_threads(), 'thread')}"]),
        ("folder", ["runs/mine (checkpoints of 2.2 MB every 43 steps)"]),
    ]
    assert reading_rows(run, digits) == [("images", ["kept in memory (limit 2 GiB a split)"])]


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
        assert choose_sharding(
            config, replace(run, optimizer=OptimizerConfig(optimizer="muon")), cpu, world
        ) == ("replicas")


def test_memory_is_counted_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "available_memory", lambda: 2 * 10**8)
    config, cpu = model_config("ViT-384x4x6/16", 10, 64), torch.device("cpu")
    run = Run(model="ViT-384x4x6/16", optimizer=OptimizerConfig(polyak=0.99))
    replicas = replace(run, training=TrainingConfig(sharding="replicas"))
    require_memory(config, replicas, cpu)
    require_memory(config, run, cpu, World(0, 2, 0, 2))
    with pytest.raises(VitkitError, match=r"for each of 2 processes, and 100\.0 MB are free"):
        require_memory(config, replicas, cpu, World(0, 2, 0, 2))
