"""The recipes say what the paper's Table 3 says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitkit
from tests.helpers.refusals import refused
from vitkit.config import from_json, to_json
from vitkit.data.config import Preprocessing
from vitkit.jobs.recipes import RECIPES, TABLE_3, departures, paper, recipe, sweep_rates
from vitkit.models.measure import forward_flops
from vitkit.training.config import ClassificationConfig

# model, data -> epochs, base rate, decay of the rate, weight decay, dropout (paper, Table 3)
PAPER = {
    ("ViT-B/16", "jft"): (7, 8e-4, "linear", 0.1, 0.0),
    ("ViT-B/32", "jft"): (7, 8e-4, "linear", 0.1, 0.0),
    ("ViT-L/32", "jft"): (7, 6e-4, "linear", 0.1, 0.0),
    ("ViT-L/16", "jft"): (14, 4e-4, "linear", 0.1, 0.0),
    ("ViT-H/14", "jft"): (14, 3e-4, "linear", 0.1, 0.0),
    ("R50+ViT-B/16", "jft"): (7, 8e-4, "linear", 0.1, 0.0),
    ("R50+ViT-B/32", "jft"): (7, 8e-4, "linear", 0.1, 0.0),
    ("R50+ViT-L/32", "jft"): (7, 2e-4, "linear", 0.1, 0.0),
    ("R50+ViT-L/16", "jft"): (14, 4e-4, "linear", 0.1, 0.0),
    ("BiT-R50x1", "jft"): (7, 1e-3, "linear", 0.1, None),
    ("BiT-R50x2", "jft"): (7, 1e-3, "linear", 0.1, None),
    ("BiT-R101x1", "jft"): (7, 8e-4, "linear", 0.1, None),
    ("BiT-R152x1", "jft"): (7, 6e-4, "linear", 0.1, None),
    ("BiT-R152x2", "jft"): (7, 6e-4, "linear", 0.1, None),
    ("ViT-B/16", "imagenet21k"): (90, 1e-3, "linear", 0.03, 0.1),
    ("ViT-L/32", "imagenet21k"): (90, 1e-3, "linear", 0.03, 0.1),
    ("ViT-B/16", "imagenet"): (300, 3e-3, "cosine", 0.3, 0.1),
    ("ViT-L/16", "imagenet"): (300, 3e-3, "cosine", 0.3, 0.1),
}


@pytest.mark.parametrize(("row", "values"), PAPER.items())
def test_rows_of_table_3(row: tuple[str, str], values: tuple[float, float, str, float, float | None]) -> None:
    model, data = row
    run = recipe(f"{data}-{model.lower().replace('/', '').replace('+', '-').removeprefix('bit-')}")
    assert run.model == model
    optimizer = run.optimizer
    settings = (run.training.epochs, optimizer.learning_rate, optimizer.schedule, optimizer.weight_decay)
    assert (*settings, run.architecture.dropout) == values
    assert (optimizer.optimizer, optimizer.beta1, optimizer.beta2) == ("adamw", 0.9, 0.999)
    numbers = (run.training.batch_size, optimizer.warmup_steps, run.preprocessing.image_size)
    assert numbers == (4096, 10_000, (224, 224))
    assert optimizer.clip_norm == (1.0 if data == "imagenet" else None)
    config = run.architecture.build_config(run.model, 1000, run.preprocessing)
    if isinstance(config, vitkit.ViTConfig):
        assert config.representation_size == config.width and config.dropout == values[4]


@pytest.mark.parametrize("name", TABLE_3)
def test_table_3_has_nothing_of_todays_regularisation_and_resizes_without_antialiasing(name: str) -> None:
    run = recipe(name)
    assert run.objective == ClassificationConfig()
    assert (run.augmentation.rand_augment, run.augmentation.random_erasing) == (0, 0)
    config = run.architecture.build_config(run.model, 1000, run.preprocessing)
    if isinstance(config, vitkit.ViTConfig):
        assert (config.drop_path, config.stem_channels) == (0, ())
    # Straight to the size by plain bilinear sampling, as tf.image.resize does (input_pipeline.py:207-214).
    size = run.preprocessing.image_size
    assert run.preprocessing == Preprocessing(size, resize="stretch", antialias=False)


def test_a_new_model_of_the_convolutional_recipe_passes_on_what_its_stem_made() -> None:
    """Its class token would see nothing through branches that begin small. The BiT costs about the same."""
    configs = []
    for name in ("small-images-conv", "small-images-bit"):
        run = recipe(name)
        configs.append(run.architecture.build_config(run.model, 10, run.preprocessing))
    config, bit = configs
    assert isinstance(config, vitkit.ViTConfig) and config.pool == "mean"
    assert config.stem_channels and config.grid == (4, 4)
    assert isinstance(bit, vitkit.ResNetConfig) and bit.width == 512
    assert 0.5 < forward_flops(bit) / forward_flops(config) < 2
    model = vitkit.build_model(config, torch.Generator().manual_seed(0)).eval()
    assert isinstance(model, vitkit.ViT)
    with torch.no_grad():
        tokens = model.embed(torch.rand(4, 3, 32, 32) * 2 - 1)
        encoded = model.encode(tokens)
    assert torch.nn.functional.cosine_similarity(encoded, model.norm(tokens), dim=2).min() > 0.99


def test_every_recipe_is_a_run_that_survives_being_written_down() -> None:
    for name in RECIPES:
        run = recipe(name)
        assert run.recipe == name
        assert from_json(vitkit.Run, to_json(run), "config.json") == run
        if run.model:  # else that of the start
            run.architecture.build_config(run.model, 10, run.preprocessing)
    assert recipe("jft-vit-l16-7ep").training.epochs == 7  # two lengths where the paper has two
    assert recipe("imagenet21k-vit-l16-30ep").training.epochs == 30
    assert len(TABLE_3) == 26


def test_what_is_no_recipe_is_told_so(tmp_path: Path) -> None:
    refused("Did you mean 'imagenet-vit-b16'", recipe, "imagenet-b16")
    refused(r"is a folder and no recipe: .* give images with data", recipe, str(tmp_path))


# data -> steps, rates that are swept, part held out (paper, Table 4)
FINE_TUNING = {
    "imagenet": (20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), 0.1),
    "vtab": (2_500, (0.01,), 0.2),
}


@pytest.mark.parametrize(("data", "row"), FINE_TUNING.items())
def test_rows_of_table_4(data: str, row: tuple[int, tuple[float, ...], float]) -> None:
    run = recipe(f"finetune-{data}")
    own = run.optimizer
    assert (run.training.steps, run.splits.val_fraction) == (row[0], row[2])
    assert sweep_rates(run) == row[1]
    rule = (own.optimizer, own.momentum, own.schedule, own.weight_decay, own.clip_norm)
    assert rule == ("sgd", 0.9, "cosine", 0.0, 1.0)
    assert (run.training.batch_size, run.preprocessing.image_size) == (512, (384, 384))
    assert run.start.head == "new" and own.momentum_dtype == "float32"
    assert not departures(run, 10_000)


def test_steps_for_data_of_any_size_are_those_of_bit() -> None:
    of_bit = ((100, 500), (19_999, 500), (20_000, 10_000), (499_999, 10_000), (500_000, 20_000))
    for images, steps in of_bit:
        run = paper(images)
        assert run.training.steps == steps and not departures(run, images)


def test_departures_from_the_paper_are_named() -> None:
    run = recipe("paper")
    optimizer = replace(run.optimizer, optimizer="adamw", freeze_layers=7)
    other = replace(run, optimizer=optimizer, training=replace(run.training, steps=40, batch_size=32))
    named = ["optimizer adamw (sgd)", "batch 32 (512)", "frozen layers 7 (0)", "40 steps (500)"]
    assert departures(other, 300) == named
