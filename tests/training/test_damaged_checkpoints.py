"""Damage to a checkpoint is noticed at any byte, set aside and never removed; leftovers are swept."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.found_checkpoint import find_checkpoint
from tests.training.small_run import contents, fit, flip, resumed, save_checkpoint, trained
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import UnreadableError, clean_up, find_damage, list_set_aside, survey


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("trained")
    trained(folder, 8)
    return folder


@pytest.fixture
def copied(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture
def newer(copied: Path) -> Path:
    return copied / "checkpoints" / "step-00000008"


def test_a_changed_or_missing_byte_and_a_missing_file_are_noticed_anywhere(copied: Path, newer: Path) -> None:
    older = newer.with_name("step-00000004")
    draw = random.Random(0)
    files = sorted(newer.iterdir())
    for trial in range(100):
        path = files[trial % len(files)]
        whole = path.read_bytes()
        place = draw.randrange(len(whole))
        changed = bytearray(whole)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(whole[:place] if trial % 2 else changed)
        checkpoint, rejected = find_checkpoint(copied)
        assert checkpoint == older and not survey(copied).uncommitted, (path.name, place)
        assert len(rejected) == 1 and newer.name in rejected[0]
        path.write_bytes(whole)
    for path in files:
        whole = path.read_bytes()
        path.unlink()
        checkpoint, (sentence,) = find_checkpoint(copied)
        assert checkpoint == older
        assert ("never committed" if path.name == "COMMIT" else path.name) in sentence
        path.write_bytes(whole)
    assert find_damage(newer) is None


def test_leftovers_and_what_was_never_committed_are_swept(copied: Path, newer: Path) -> None:
    (newer.parent / ".step-00000009.1.tmp").mkdir()
    (newer.parent / ".step-00000010.1.tmp").write_text("")
    clean_up(copied, survey(copied))
    assert sorted(path.name for path in newer.parent.iterdir()) == ["step-00000004", "step-00000008"]
    (newer / "COMMIT").unlink()
    clean_up(copied, survey(copied))
    assert [path.name for path in newer.parent.iterdir()] == ["step-00000004"]


def test_damaged_newer_ones_never_push_out_the_one_just_saved(copied: Path, newer: Path) -> None:
    """Steps 4 and 8, 8 damaged; the run goes on from 4 and stops at 5 with room for one."""
    flip(newer / "model.safetensors")
    trainer, _ = resumed(copied)
    assert trainer.state.progress.step == 4
    fit(trainer, 5)
    saved = save_checkpoint(copied, trainer, keep=1)
    assert saved.name == "step-00000005" and find_damage(saved) is None
    (newer / "COMMIT").unlink()
    clean_up(copied, survey(copied))
    assert sorted(newer.parent.iterdir())[-1] == saved


def test_a_damaged_checkpoint_is_set_aside_and_never_removed(copied: Path, newer: Path) -> None:
    folder = newer.parent
    flip(newer / "optimizer.safetensors")
    before = contents(newer)
    for number in ("", "-2"):
        shutil.copytree(newer, copied / "copy")
        checkpoints = survey(copied)
        assert checkpoints.whole == folder / "step-00000004" and not checkpoints.lost
        (aside,) = clean_up(copied, checkpoints)
        assert aside == folder / f"damaged-step-00000008{number}" and aside in list_set_aside(copied)
        assert contents(aside) == before and not newer.exists()
        (copied / "copy").rename(newer)
    # A save of that step does not remove it either.
    save_checkpoint(copied, trained(copied.parent / "other", 8), keep=1)
    assert contents(folder / "damaged-step-00000008-3") == before and find_damage(newer) is None


def test_when_none_is_whole_that_is_known(copied: Path, newer: Path) -> None:
    older = newer.with_name("step-00000004")
    assert not survey(copied / "none").lost
    flip(newer / "COMMIT")
    (older / "state.json").unlink()
    checkpoints = survey(copied)
    assert checkpoints.whole is None and checkpoints.lost and set(checkpoints.damaged) == {older, newer}
    for path in (older, newer):
        (path / "COMMIT").write_text("")  # as a power cut may leave it: never committed, yet kept
    assert not survey(copied).lost and set(survey(copied).damaged) == {older, newer}


def test_something_else_in_the_place_of_checkpoints(copied: Path, newer: Path) -> None:
    folder = newer.parent
    (folder / "step-99999999").write_text("a file")
    os.mkfifo(folder / "step-99999998")
    (folder / "step-99").mkdir()  # no name of ours
    checkpoints = survey(copied)
    assert checkpoints.whole == newer and not checkpoints.lost
    aside = {path.name for path in clean_up(copied, checkpoints)}
    assert aside == {"damaged-step-99999999", "damaged-step-99999998"}
    assert (folder / "damaged-step-99999999").read_text() == "a file" and (folder / "step-99").is_dir()
    (folder / "step-99999999").symlink_to("/nowhere")
    with pytest.raises(UnreadableError, match="step-99999999"):
        survey(copied)
    folder.rename(copied / "elsewhere")
    folder.symlink_to("/nowhere")
    with pytest.raises(UnreadableError, match="checkpoints cannot be read"):
        survey(copied)
    folder.unlink()
    folder.write_text("")
    with pytest.raises(VitkitError, match="is a file, and checkpoints are kept"):
        survey(copied)


def listing(name: str) -> Callable[[Any], Any]:
    return lambda old: {**old, "files": {**old["files"], name: {"bytes": 1, "sha256": "0"}}}


def with_state(state: dict[str, int]) -> bytes:
    return json.dumps({"step": 8, **state}).encode()


@pytest.mark.parametrize(
    ("change", "state", "named"),
    [
        (lambda _: {}, None, "manifest"),
        (lambda _: {"step": 8, "environment": {}, "files": {}}, None, "manifest"),
        (lambda _: {"step": 8, "environment": {}, **listing("../x")({"files": {}})}, None, "manifest"),
        (listing(".."), None, "manifest"),
        (listing("a\0b"), None, "manifest"),
        (lambda old: old, with_state({"step": 9}), "state.json"),
        (lambda old: old, with_state({"log_bytes": -1}), "state.json"),
        (lambda old: old, with_state({"best_step": 9}), "state.json"),
    ],
)
def test_what_makes_no_sense_is_damage_though_its_hashes_are_right(
    copied: Path, newer: Path, change: Callable[[Any], Any], state: bytes | None, named: str
) -> None:
    manifest = change(json.loads((newer / "manifest.json").read_text()))
    if state is not None:
        (newer / "state.json").write_bytes(state)
        record = {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}
        manifest["files"]["state.json"] = record
    data = json.dumps(manifest).encode()
    (newer / "manifest.json").write_bytes(data)
    (newer / "COMMIT").write_text(hashlib.sha256(data).hexdigest())
    checkpoints = survey(copied)
    assert list(checkpoints.damaged) == [newer] and named in checkpoints.damaged[newer]
    assert checkpoints.whole is not None
