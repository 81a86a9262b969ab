"""A run goes on from its checkpoint to the same bits, and a checkpoint of another run is refused."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

from tests.training.small_run import OPTIMIZER, TRAINING, save_checkpoint, small_trainer, trained
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import find_damage, load_weights, read_manifest, survey, weights_file


def test_a_checkpoint_of_another_model_or_optimiser_is_refused_in_words(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    checkpoint = survey(tmp_path).whole
    assert checkpoint is not None
    for changes, message in (
        ({"optimizer": "sgd"}, "another optimiser"),
        ({"optimizer": "muon"}, "another optimiser"),
        ({"polyak": None}, r"holds a Polyak average of the weights \(polyak\), but .* ask for none"),
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


def test_the_options_of_the_run_and_its_surroundings_are_kept(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.configuration = {"model": "ViT", "training": {"seed": 3}}
    (report,) = trainer.fit(interrupted=lambda: True)
    assert report.checkpoint is not None
    manifest = read_manifest(report.checkpoint)
    assert manifest.configuration == trainer.configuration
    assert {"threads", "torch", "vitkit", "machine", "world_size"} <= manifest.environment.keys()


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


def test_nothing_is_written_where_a_run_is_no_longer(tmp_path: Path) -> None:
    """Neither a folder that is gone, nor into an empty one in its place."""
    run, moved = tmp_path / "run", tmp_path / "moved"
    trainer = trained(run, 4)
    with pytest.raises(VitkitError, match="gone was moved, renamed or removed"):
        save_checkpoint(tmp_path / "gone", trainer, keep=1)
    assert not (tmp_path / "gone").exists()
    run.rename(moved)
    run.mkdir()
    with pytest.raises(VitkitError, match=f"{run} was moved, renamed or removed"):
        trainer.writer.save(trainer.state, trainer.environment, None, at_once=True)
    assert list(run.iterdir()) == [] and survey(moved).whole is not None
