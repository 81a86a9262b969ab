"""A run goes on from its checkpoint to the same bits, and a checkpoint of another run is refused."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.found_checkpoint import find_checkpoint
from tests.helpers.small_checkpoints import trained
from tests.helpers.tiny_models import TINY
from tests.training.small_run import OPTIMIZER, TRAINING, fingerprint, save_checkpoint, small_trainer
from vitkit.errors import VitkitError
from vitkit.models.config import ViTConfig
from vitkit.models.zoo import VIT5
from vitkit.training.checkpoint import (
    find_damage,
    load_weights,
    read_manifest,
    weights_file,
)
from vitkit.training.config import OptimizerConfig


def test_everything_comes_back_bit_by_bit(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 8)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    again = small_trainer(tmp_path)
    again.resume(checkpoint)
    assert fingerprint(again) == fingerprint(trainer)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert {"threads", "torch", "vitkit", "machine", "world_size"} <= manifest["environment"].keys()


def go_on_to_the_same_bits(
    folder: Path, optimizer: OptimizerConfig, architecture: ViTConfig | None = None
) -> Path:
    """Stop a run after its eighth step and go on from its checkpoint, which is returned."""
    whole = small_trainer(folder / "whole", optimizer=optimizer, architecture=architecture)
    for _ in whole.fit():
        pass
    stopped = small_trainer(folder / "stopped", optimizer=optimizer, architecture=architecture)
    for report in stopped.fit():
        if report.step == 8:
            break
    checkpoint, _ = find_checkpoint(folder / "stopped")
    assert checkpoint is not None
    again = small_trainer(folder / "stopped", optimizer=optimizer, architecture=architecture)
    again.resume(checkpoint)
    assert again.state.progress.step == 8
    for _ in again.fit():
        pass
    assert fingerprint(again) == fingerprint(whole)
    return checkpoint


def test_vit5_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    go_on_to_the_same_bits(tmp_path, OPTIMIZER, dataclasses.replace(TINY, **VIT5))


def test_muon_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    checkpoint = go_on_to_the_same_bits(tmp_path, dataclasses.replace(OPTIMIZER, optimizer="muon"))
    with pytest.raises(VitkitError, match="another optimiser"):
        small_trainer(tmp_path / "stopped").resume(checkpoint)


def test_a_checkpoint_of_another_model_or_optimiser_is_refused_in_words(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    for changes, message in (
        ({"optimizer": "sgd"}, "another optimiser"),
        (
            {"polyak": None},
            r"holds a Polyak average of the weights \(polyak\), but .* ask for none",
        ),
    ):
        other = small_trainer(tmp_path, optimizer=dataclasses.replace(OPTIMIZER, **changes))
        with pytest.raises(VitkitError, match=message):
            other.resume(checkpoint)
    other = small_trainer(tmp_path)
    other.state.model.head = torch.nn.Linear(16, 7)
    with pytest.raises(VitkitError, match=r"another model than the run's options describe: .*head\.weight"):
        other.resume(checkpoint)
    with pytest.raises(VitkitError, match="stands at step 8, but the run's options ask for 5 steps"):
        small_trainer(tmp_path, dataclasses.replace(TRAINING, steps=5)).resume(checkpoint)


def test_the_options_of_the_run_are_kept(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.configuration = {"model": "ViT", "training": {"seed": 3}}
    list(trainer.fit(interrupted=lambda: True))
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None and read_manifest(checkpoint).configuration == trainer.configuration


def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 4)
    trainer.state.average = None
    (tmp_path / "plain").mkdir()
    checkpoint = save_checkpoint(tmp_path / "plain", trainer, keep=1)
    expected = load_weights(checkpoint)
    average = tmp_path / "checkpoints" / "step-00000004" / "average.safetensors"
    shutil.copy(average, checkpoint)  # of another run, say
    assert weights_file(checkpoint).name == "model.safetensors" and find_damage(checkpoint) is None
    assert all(torch.equal(value, expected[name]) for name, value in load_weights(checkpoint).items())


def test_a_checkpoint_never_makes_the_folder_of_its_run(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run", 4)
    with pytest.raises(VitkitError, match="gone was moved, renamed or removed"):
        save_checkpoint(tmp_path / "gone", trainer, keep=1)
    assert not (tmp_path / "gone").exists()


def test_nothing_is_written_to_an_empty_folder_in_the_place_of_a_run(tmp_path: Path) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    trainer = trained(run, 4)
    run.rename(moved)
    run.mkdir()
    with pytest.raises(VitkitError, match=f"{run} was moved, renamed or removed"):
        trainer.writer.save(trainer.state, trainer.environment, None, at_once=True)
    assert list(run.iterdir()) == []
    checkpoint, _ = find_checkpoint(moved)
    assert checkpoint is not None and find_damage(checkpoint) is None


def test_the_best_checkpoint_is_kept_beside_the_last_ones(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    for step in range(1, 7):
        best = 2 if step >= 2 else None
        trainer.state.progress = dataclasses.replace(trainer.state.progress, step=step, best_step=best)
        save_checkpoint(tmp_path, trainer, keep=2)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000002", "step-00000005", "step-00000006"]
    assert find_damage(tmp_path / "checkpoints" / "step-00000002") is None
