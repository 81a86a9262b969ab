"""Runs that begin from the weights of another model or run: named alike, tested on the same images."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import noise_images
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import DecodeRule, Preprocessing, Splits
from vitkit.jobs import train_run as training
from vitkit.models.config import INTERPOLATIONS, Interpolation
from vitkit.runs import start
from vitkit.runs.config import Architecture, Run, StartConfig
from vitkit.runs.folder import kind_of
from vitkit.training.checkpoint import read_progress
from vitkit.training.config import OptimizerConfig
from vitkit.weights.model_card import card_of
from vitkit.weights.published import pretraining_images

SMALL = replace(
    small_run(12, evaluate_every=4, checkpoint_every=4, log_every=3),
    model="ViT-16x2x2/2",
    architecture=Architecture(representation_size=16),
)
SHORT = replace(SMALL.training, steps=2, evaluate_every=2, checkpoint_every=2, log_every=2)


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    return training.train_run(SMALL, tmp_path_factory.mktemp("start") / "pretrained")


def from_start(folder: Path, **changes: Any) -> Run:
    """A small run that begins from a start."""
    run = replace(SMALL, model="", architecture=Architecture(), start=StartConfig(str(folder)))
    return replace(run, **changes)


STILL = OptimizerConfig(learning_rate=1e-30, weight_decay=0.0)
"""At this rate nothing moves: what a run ends with is what it began with."""


def begin(run: Run, folder: Path) -> list[str]:
    """Train a run, and return what is said of its start."""
    hearing = Hearing()
    training.train_run(run, folder, listener=hearing)
    return dict(hearing.rows)["start"]


def require_same(folder: Path, other: Path, missing: set[str], new: set[str]) -> None:
    """Compare the weights of two runs; those of one alone are named, and new ones are zeros."""
    before, after = (load_file(run / "model.safetensors") for run in (folder, other))
    assert {*before} - {*after} == missing
    for name, tensor in after.items():
        if name.startswith("novelty."):
            continue  # made of the images
        start = torch.zeros_like(tensor) if name in new else before[name]
        assert torch.allclose(start, tensor, rtol=0, atol=1e-27), name


def test_fine_tuning_begins_with_the_weights_and_a_new_head(tmp_path: Path, pretrained: Path) -> None:
    said = begin(from_start(pretrained, optimizer=STILL), tmp_path / "run")
    missing = {"pre_logits.weight", "pre_logits.bias"}
    require_same(pretrained, tmp_path / "run", missing, {"head.weight", "head.bias"})
    assert "head: new, zeros, 10 classes, in place of the head of 10 classes with its tanh layer" in said


def test_what_a_run_changes_of_its_start_is_told_and_kept(tmp_path: Path, pretrained: Path) -> None:
    start = StartConfig(str(pretrained), image_mean=(0.25,), image_std=(0.5, 0.5, 0.25))
    run = from_start(
        pretrained,
        start=start,
        preprocessing=Preprocessing((12, 8), resize="crop"),
        architecture=Architecture(dropout=0.25),
        splits=Splits(test_fraction=0.4, val_fraction=0.4),
        training=SHORT,
    )
    folder = tmp_path / "run"
    said, model = begin(run, folder), vitkit.load_model(folder)
    assert any("instead of the start's" in line for line in said)
    assert (model.config.image_size, model.config.dropout) == ((12, 8), 0.25)
    assert (model.config.image_mean, model.config.image_std) == ((0.25, 0.25, 0.25), (0.5, 0.5, 0.25))
    # The card tells where the start came from, and how many images the first training had.
    before = card_of(vitkit.load_model(pretrained))
    count = json.loads((pretrained / "data.json").read_text())["images"]["train"]
    assert before.origin["training_images"] == count == pretraining_images(pretrained, before)
    assert "training_images" not in card_of(model).origin
    assert pretraining_images(folder, card_of(model)) == count
    again = training.train_run(from_start(folder, training=SHORT), tmp_path / "again")
    origin = card_of(vitkit.load_model(again)).origin["start"]
    digest = json.loads((folder / "model.json").read_text())["weights"]["sha256"]
    assert (origin["from"], origin["sha256"], origin["model"]) == ("run", digest, "ViT-16x2x2/2")
    assert origin["start"]["from"] == pretrained.name


def test_a_start_of_three_channels_begins_on_grey_where_it_was(tmp_path: Path, pretrained: Path) -> None:
    """At a rate of 1e-30 nothing moves: the logits of the two runs are those of the same start."""
    keep, grey = StartConfig(str(pretrained), head="keep"), DecodeRule(channels=1)
    pixels = replace(SMALL.preprocessing, decode=grey)
    run = from_start(pretrained, start=keep, optimizer=STILL, preprocessing=pixels, training=SHORT)
    said = begin(run, tmp_path / "grey")
    assert "channels: 1 instead of 3, the filters that see the pixels are summed" in said
    before, after = (vitkit.evaluate(path).predictions.logits for path in (pretrained, tmp_path / "grey"))
    assert before.std() > 0.01  # else any model would pass
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-4)


def test_positions_are_resized_by_the_rule_of_the_start(tmp_path: Path, pretrained: Path) -> None:
    """The weights keep the rule in the runs that follow, also while these are not finished."""
    model = vitkit.load_model(pretrained)
    model.card = replace(model.card, position_interpolation="timm")
    vitkit.save_model(model, tmp_path / "timms")
    rule: Interpolation = "timm"
    start = StartConfig(str(tmp_path / "timms"))
    run = from_start(pretrained, start=start, optimizer=STILL, preprocessing=Preprocessing((12, 8)))
    line = f"positions: resized from a grid of 4x4 to 6x4 by {INTERPOLATIONS[rule]}"
    assert line in begin(replace(run, training=SHORT), tmp_path / "run")
    name, trained = "positions.0.embedding", vitkit.load_model(tmp_path / "run")
    expected = vitkit.load_model(tmp_path / "timms", image_size=(12, 8), position_interpolation=rule)
    torch.testing.assert_close(trained.state_dict()[name], expected.state_dict()[name], rtol=0, atol=1e-6)
    assert trained.card.position_interpolation == rule
    for left in ("model.json", "model.safetensors", "ended.json"):
        (tmp_path / "run" / left).unlink(missing_ok=True)
    assert vitkit.load_model(tmp_path / "run").card.position_interpolation == rule
    training.train_run(from_start(tmp_path / "run", training=SHORT), tmp_path / "again")
    assert vitkit.load_model(tmp_path / "again").card.position_interpolation == rule


def test_a_kept_head_is_matched_by_the_names_of_the_classes(tmp_path: Path, pretrained: Path) -> None:
    """A start whose classes stand in another order predicts the same after the run has begun from it."""
    model = vitkit.load_model(pretrained)
    card, order = card_of(model), torch.arange(9, -1, -1)
    model.card = replace(card, class_names=tuple(reversed(card.class_names)))
    weights = model.state_dict()
    for name in ("head.weight", "head.bias"):
        weights[name].copy_(weights[name][order].clone())
    vitkit.save_model(model, tmp_path / "reversed")
    keep = StartConfig(str(tmp_path / "reversed"), head="keep")
    run = from_start(pretrained, start=keep, optimizer=STILL, training=SHORT)
    require_same(pretrained, training.train_run(run, tmp_path / "run"), set(), set())


def test_a_head_of_other_classes_cannot_be_kept(tmp_path: Path, pretrained: Path) -> None:
    model = vitkit.load_model(pretrained)
    for names, message in (
        ((), "does not say the names of its 10 classes"),
        (("zero", *"123456789"), "only the images have 0; only the start has zero"),
    ):
        model.card = replace(card_of(model), class_names=names)
        start = StartConfig(str(vitkit.save_model(model, tmp_path / "start")), head="keep")
        refused(message, training.train_run, from_start(pretrained, start=start), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_options_that_contradict_the_start_are_refused(tmp_path: Path, pretrained: Path) -> None:
    (tmp_path / "begun").mkdir()
    shutil.copy(pretrained / "config.json", tmp_path / "begun")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"model": "ViT-B/16"}, "so a run that begins from it trains the same model, found model"),
        ({"architecture": Architecture(gelu="erf")}, "its gelu is tanh, and its weights are worth nothing"),
        ({"architecture": Architecture(layer_scale=0.1)}, "Leave layer_scale out"),
        ({"preprocessing": Preprocessing((1, 1))}, "hold no patch of 2x2"),
        ({**vars(SMALL), "optimizer": OptimizerConfig(freeze="backbone")}, "give a start"),
        ({"start": StartConfig(str(tmp_path / "begun"))}, "has no checkpoint yet"),
    )
    for changes, message in cases:
        refused(message, training.train_run, from_start(pretrained, **changes), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_run_that_was_stopped_can_be_a_start(tmp_path: Path, pretrained: Path) -> None:
    stopped = shutil.copytree(pretrained, tmp_path / "stopped")
    (stopped / "model.safetensors").unlink()
    for chosen, said in (
        (StartConfig(str(stopped)), "(its best checkpoint, step "),
        (StartConfig(str(pretrained), start_from="last"), "(its last checkpoint, step 12)"),
    ):
        run = from_start(pretrained, start=chosen, training=SHORT)
        assert said in begin(run, tmp_path / chosen.start_from)[0]
    (best,) = json.loads((tmp_path / "end/start.json").read_text())["files"].values()
    assert best in {
        json.loads(path.read_text())["files"]["model.safetensors"]["sha256"]
        for path in stopped.glob("checkpoints/*/manifest.json")
    }


def test_a_run_needs_its_start_until_it_has_a_checkpoint(tmp_path: Path, pretrained: Path) -> None:
    start = shutil.copytree(pretrained, tmp_path / "start")
    run = from_start(start, model=SMALL.model)
    whole = training.train_run(run, tmp_path / "whole")
    part = shutil.copytree(whole, tmp_path / "part")
    shutil.rmtree(part / "checkpoints/step-00000012")
    (part / "report.html").unlink()
    begun = shutil.copytree(whole, tmp_path / "begun")
    shutil.rmtree(begun / "checkpoints")
    model = vitkit.load_model(start)
    model.state_dict()["norm.weight"].add_(1)
    vitkit.save_model(model, start)
    refused(r"The weights of .* have changed since .* was started from it", training.train_run, run, begun)
    shutil.rmtree(start)
    training.train_run(run, part)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize("name", ["BiT-R2-2-2x0.5", "R+ViT-Ti/16"])
def test_resnets_and_hybrids_are_fine_tuned(name: str, tmp_path: Path) -> None:
    start = vitkit.save_model(vitkit.create_model(name, num_classes=7, image_size=32), tmp_path / "start")
    run = from_start(start, preprocessing=Preprocessing((32, 32)), training=replace(SHORT, batch_size=4))
    assert vitkit.load_model(training.train_run(run, tmp_path / "run")).config.num_classes == 10


LINE = ["--steps", "4", "--warmup-steps", "0", "--batch-size", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A short run of the digits' recipe, whose options give the model another name."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run(["train", "--recipe", "digits", "--out", str(folder), *LINE]) == 0
    return folder


def unfinished(folder: Path, out: Path) -> Path:
    shutil.copytree(folder, out)
    (out / "model.json").unlink()  # killed between the two files of the model
    return out


def test_a_run_whose_options_changed_its_name_can_be_trained_longer_from_every_checkpoint(
    trained: Path, tmp_path: Path
) -> None:
    """Fine-tuned on the same images, it is tested on those of its start."""
    part = unfinished(trained, tmp_path / "part")
    longer = [["train", "--start", str(place)] for place in (trained, part)]
    longer.append(["finetune", str(trained), "--start-from", "best", "--data", "digits"])
    for number, arguments in enumerate(longer):
        assert run([*arguments, "--out", str(tmp_path / f"{number}"), *LINE]) == 0
        record = json.loads((tmp_path / f"{number}" / "model.json").read_text())
        assert record["name"] == "ViT-64x4x4x128/4"
    assert kind_of(tmp_path / "2").run().splits == kind_of(trained).run().splits != Splits()


def test_a_best_checkpoint_that_was_set_aside_is_not_replaced_in_silence(
    trained: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = "vitkit.training.checkpoint.read_progress"
    monkeypatch.setattr(changed, lambda path: replace(read_progress(path), best_step=2))
    arguments = ["finetune", str(trained), "--data", "digits", "--out", str(tmp_path / "tuned"), *LINE]
    assert "step-00000002 is not whole: it was removed" in cli([*arguments, "--start-from", "best"], 1).err
    assert run([*arguments, "--start-from", "last"]) == 0


def test_an_unfinished_run_is_described_without_its_weights(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def read(checkpoint: Path) -> None:
        raise AssertionError(f"{checkpoint} is read")

    part = unfinished(trained, tmp_path / "part")
    assert "ViT-64x4x4x128/4" in cli(["card", str(part)]).out
    assert vitkit.fewshot(part, "digits", shots=(1,), seeds=1, cache=False).test_images > 0
    monkeypatch.setattr("vitkit.training.checkpoint.load_weights", read)
    assert start.find_start(StartConfig(str(part))).model == start.identify_any(part).card.name
    with pytest.raises(AssertionError, match="is read"):
        start.load_any(part)


def test_a_model_of_a_part_of_the_images_knows_which_ones(trained: Path, tmp_path: Path, cli: Cli) -> None:
    out, tuned, whole = tmp_path / "part", tmp_path / "tuned", kind_of(trained).run().splits
    arguments = ["train", "--recipe", "digits", "--subset", "0.1", "--out", str(out), *LINE]
    assert run(arguments) == 0
    assert kind_of(out).run().splits == replace(whole, subset="[:10%]")
    part, images = (json.loads((folder / "data.json").read_text())["images"] for folder in (out, trained))
    assert part == images | {"train": round(images["train"] / 10)}
    assert vitkit.evaluate(out, split="train").result.count == part["train"]
    said = cli(["finetune", str(out), "--data", "digits", "--out", str(tmp_path / "all"), *LINE]).err
    assert "was trained on the part [:10%]" in said and kind_of(tmp_path / "all").run().splits == whole
    # Fine-tuned on more of the same images, it is tested on the same ones.
    more = ["--data", "digits", "--subset=.5", "--out", str(tuned), *LINE]
    assert "was trained on the part" not in cli(["finetune", str(out), *more]).err
    assert kind_of(tuned).run().splits == replace(whole, subset="[:50%]")


def test_a_part_of_a_split_is_evaluated(trained: Path, cli: Cli) -> None:
    part = vitkit.evaluate(trained, split=" test[ -050: ]")
    assert (part.result.count, part.split) == (50, "test[-50:]")
    evaluations = {path.name for path in (trained / "evaluation").iterdir()}
    assert "train[:50%] images of digits" in cli(["evaluate", str(trained), "--split", "train[:50%]"]).out
    assert {path.name for path in (trained / "evaluation").iterdir()} == evaluations
    assert "goes from image 0 to 9,999" in cli(["evaluate", str(trained), "--split", "test[:9999]"], 1).err


def test_other_data_is_evaluated_whole_whatever_folds_the_model_was_trained_with(tmp_path: Path) -> None:
    images = noise_images(tmp_path / "images")
    shutil.copytree(images, tmp_path / "others")
    config = vitkit.recipe("digits", data=str(images), model="ViT-16x1x2/4", steps=2, batch_size=4)
    folder = vitkit.train(replace(config, splits=Splits(fold=0, folds=3)), tmp_path / "run")
    assert vitkit.evaluate(folder, str(tmp_path / "others")).result.count == 24
