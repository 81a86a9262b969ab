"""Damage to a checkpoint is noticed at any byte, set aside and never removed; leftovers are swept."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.found_checkpoint import find_checkpoint
from tests.helpers.small_checkpoints import committed, contents, flip, trained
from tests.training.small_run import save_checkpoint, small_trainer
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import (
    UnreadableError,
    clean_up,
    find_damage,
    list_set_aside,
    survey,
)


def test_one_changed_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    draw = random.Random(0)
    files = sorted(newer.iterdir())
    for trial in range(200):
        path = files[trial % len(files)]
        whole = path.read_bytes()
        place = draw.randrange(len(whole))
        if trial % 2:
            path.write_bytes(whole[:place])
        else:
            path.write_bytes(
                whole[:place] + bytes([whole[place] ^ 1 << draw.randrange(8)]) + whole[place + 1 :]
            )
        checkpoint, rejected = find_checkpoint(tmp_path)
        assert checkpoint == older and not survey(tmp_path).uncommitted, (path.name, place)
        assert len(rejected) == 1 and newer.name in rejected[0]
        path.write_bytes(whole)
    assert find_damage(newer) is None


@pytest.mark.parametrize("name", ["COMMIT", "manifest.json", "model.safetensors", "state.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    (newer / name).unlink()
    checkpoint, (sentence,) = find_checkpoint(tmp_path)
    assert checkpoint == older
    assert ("never committed" if name == "COMMIT" else name) in sentence


def test_leftovers_are_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    (tmp_path / "checkpoints" / ".step-00000009.1.tmp").mkdir()
    (tmp_path / "checkpoints" / ".step-00000010.1.tmp").write_text("")
    clean_up(tmp_path, survey(tmp_path))
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_damaged_newer_ones_never_push_out_the_one_just_saved(tmp_path: Path) -> None:
    """Steps 4 and 8, 8 damaged; the run goes on from 4 and stops at 5 with room for one."""
    trained(tmp_path, 8)
    flip(tmp_path / "checkpoints" / "step-00000008" / "model.safetensors")
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.name == "step-00000004"
    trainer = small_trainer(tmp_path)
    trainer.resume(checkpoint)
    next(iter(trainer.fit()))
    saved = save_checkpoint(tmp_path, trainer, keep=1)
    assert saved.name == "step-00000005" and find_damage(saved) is None
    (tmp_path / "checkpoints" / "step-00000008" / "COMMIT").rename(tmp_path / "COMMIT")
    clean_up(tmp_path, survey(tmp_path))
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())][-1] == saved.name


def test_what_was_never_committed_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    (newer / "COMMIT").unlink()
    clean_up(tmp_path, survey(tmp_path))
    assert list((tmp_path / "checkpoints").iterdir()) == [older]


def test_a_damaged_checkpoint_is_set_aside_and_never_removed(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    folder = tmp_path / "checkpoints"
    newer = folder / "step-00000008"
    flip(newer / "optimizer.safetensors")
    before = contents(newer)
    for number in ("", "-2"):
        shutil.copytree(newer, tmp_path / "copy")
        checkpoints = survey(tmp_path)
        assert checkpoints.whole == folder / "step-00000004" and not checkpoints.lost
        (aside,) = clean_up(tmp_path, checkpoints)
        assert aside == folder / f"damaged-step-00000008{number}" and aside in list_set_aside(tmp_path)
        assert contents(aside) == before and not newer.exists()
        (tmp_path / "copy").rename(newer)
    # A save of that step does not remove it either.
    trainer = trained(tmp_path / "other", 8)
    save_checkpoint(tmp_path, trainer, keep=1)
    assert contents(folder / "damaged-step-00000008-3") == before and find_damage(newer) is None


def test_when_none_is_whole_that_is_known(tmp_path: Path) -> None:
    assert not survey(tmp_path).lost
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    flip(newer / "COMMIT")
    (older / "state.json").unlink()
    checkpoints = survey(tmp_path)
    assert checkpoints.whole is None and checkpoints.lost and set(checkpoints.damaged) == {older, newer}
    for path in (older, newer):
        (path / "COMMIT").write_text("")  # as a power cut may leave it: never committed, yet kept
    assert not survey(tmp_path).lost and set(survey(tmp_path).damaged) == {older, newer}


def test_something_else_in_the_place_of_checkpoints(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    folder = tmp_path / "checkpoints"
    (folder / "step-99999999").write_text("a file")
    os.mkfifo(folder / "step-99999998")
    (folder / "step-99").mkdir()  # no name of ours
    checkpoints = survey(tmp_path)
    assert checkpoints.whole == folder / "step-00000008" and not checkpoints.lost
    assert {path.name for path in clean_up(tmp_path, checkpoints)} == {
        "damaged-step-99999999",
        "damaged-step-99999998",
    }
    assert (folder / "damaged-step-99999999").read_text() == "a file" and (folder / "step-99").is_dir()
    (folder / "step-99999999").symlink_to("/nowhere")
    with pytest.raises(UnreadableError, match="step-99999999"):
        survey(tmp_path)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to("/nowhere")
    with pytest.raises(UnreadableError, match="checkpoints cannot be read"):
        survey(tmp_path)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(VitkitError, match="is a file, and checkpoints are kept"):
        survey(tmp_path)


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"step": 8, "environment": {}, "files": {}},
        {"step": 8, "environment": {}, "files": {"../../../../etc/passwd": {"bytes": 1, "sha256": "0"}}},
        lambda old: {**old, "files": {**old["files"], "..": {"bytes": 1, "sha256": "0"}}},
        lambda old: {**old, "files": {**old["files"], "a\0b": {"bytes": 1, "sha256": "0"}}},
    ],
    ids=lambda manifest: "edited" if callable(manifest) else str(manifest),
)
def test_a_manifest_that_makes_no_sense_is_damage(tmp_path: Path, manifest: Any) -> None:
    trained(tmp_path, 8)
    newer = tmp_path / "checkpoints" / "step-00000008"
    committed(newer, manifest)
    checkpoints = survey(tmp_path)
    assert list(checkpoints.damaged) == [newer] and "manifest" in checkpoints.damaged[newer]
    assert checkpoints.whole is not None


@pytest.mark.parametrize(
    "state",
    [
        {"step": 9},
        {"step": 8, "log_bytes": -1},
        {"step": 8, "best_step": 9},
    ],
    ids=lambda state: str(state)[:40],
)
def test_a_state_that_makes_no_sense_is_damage(tmp_path: Path, state: Any) -> None:
    trained(tmp_path, 8)
    newer = tmp_path / "checkpoints" / "step-00000008"
    committed(newer, state=state)
    assert "state.json" in (find_damage(newer) or "")
