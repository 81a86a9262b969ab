"""A run goes on from its checkpoint to the same bits, and a checkpoint of another run is refused."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.refusals import refused
from tests.training.small_run import (
    OPTIMIZER,
    TRAINING,
    contents,
    fingerprint,
    fit,
    flip,
    log_of,
    resumed,
    save_checkpoint,
    small_trainer,
    trained,
)
from vitkit.errors import VitkitError
from vitkit.training import checkpoint as checkpoints
from vitkit.training.checkpoint import (
    CheckpointWriter,
    clean_up,
    find_damage,
    list_set_aside,
    load_weights,
    read_ended,
    remove_checkpoints,
    survey,
    take_snapshot,
    weights_file,
)
from vitkit.training.config import TrainingConfig
from vitkit.training.trainer import Trainer


def test_a_checkpoint_of_another_model_or_optimiser_is_refused_in_words(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    checkpoint = survey(tmp_path).whole
    assert checkpoint is not None
    without = r"holds a Polyak average of the weights \(polyak\), but .* ask for none"
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"optimizer": replace(OPTIMIZER, optimizer="sgd")}, "another optimiser"),
        ({"optimizer": replace(OPTIMIZER, optimizer="muon")}, "another optimiser"),
        ({"optimizer": replace(OPTIMIZER, polyak=None)}, without),
        ({"training": replace(TRAINING, steps=5)}, "at step 8, but the run's options ask for 5 steps"),
    )
    for changes, message in cases:
        refused(message, small_trainer(tmp_path, **changes).resume, checkpoint)
    other = small_trainer(tmp_path)
    other.state.model.head = torch.nn.Linear(16, 7)
    refused(r"another model than the run's options describe: .*head\.weight", other.resume, checkpoint)


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


def test_checkpoints_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    trained(tmp_path / "mine", 8)
    before = contents(tmp_path / "mine")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "checkpoints").symlink_to(tmp_path / "mine" / "checkpoints")
    refused("leads out of its folder", remove_checkpoints, tmp_path / "given")
    assert contents(tmp_path / "mine") == before


def test_a_record_of_an_ended_run_that_was_cut_short_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 4)
    (tmp_path / ".ended.json.123.tmp").write_text("{")
    remove_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "ended.json", "metrics.jsonl"}
    (tmp_path / "ended.json").write_text('{"step": -1, "environment": {}}')
    refused(r"ended\.json: step: expected a count", read_ended, tmp_path)


# Checkpoints that are written while training goes on


def in_background(trainer: Trainer) -> Trainer:
    trainer.writer = CheckpointWriter(trainer.run, 2, lambda: 1 << 40)
    return trainer


@pytest.fixture
def small_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "BACKGROUND_BYTES", 0)


@pytest.mark.usefixtures("small_saves")
def test_a_run_that_saves_in_the_background_commits_the_same_bytes(tmp_path: Path) -> None:
    for name, prepare in (("plain", lambda trainer: trainer), ("background", in_background)):
        reported = [report.checkpoint for report in prepare(small_trainer(tmp_path / name)).fit()]
        assert reported[-1] is not None  # the last one is waited for
    plain, background = (
        sorted((tmp_path / name / "checkpoints").iterdir()) for name in ("plain", "background")
    )
    assert [path.name for path in plain] == [path.name for path in background]
    for folder, same in zip(plain, background, strict=True):
        for file in folder.iterdir():
            assert file.read_bytes() == (same / file.name).read_bytes(), file


@pytest.mark.usefixtures("small_saves")
def test_a_save_in_the_background_holds_what_was_there_when_it_began(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 4)
    state, writer = trainer.state, CheckpointWriter(tmp_path, 1, lambda: 1 << 40)
    for number in range(20):
        state.progress = dataclasses.replace(state.progress, step=100 + number)
        snapshot = take_snapshot(state, trainer.environment)
        expected = {name: b"".join(chunks) for name, chunks in snapshot.files.items()}
        writer.save(state, trainer.environment, None, at_once=False)
        with torch.no_grad():  # training goes on
            for value in (*state.model.parameters(), *state.optimizer.state.values()):
                for tensor in value.values() if isinstance(value, dict) else [value]:
                    tensor.add_(1)
        writer.wait()
        path = writer.take_committed()
        assert path is not None and path.name == f"step-00000{100 + number}"
        assert {name: (path / name).read_bytes() for name in expected} == expected
    assert writer.take_committed() is None


@pytest.mark.usefixtures("small_saves")
def test_a_save_in_the_background_that_fails_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Path:
        raise VitkitError("the disk is full")

    trainer, steps = in_background(small_trainer(tmp_path)), list[int]()
    monkeypatch.setattr(checkpoints, "commit", refuse)
    refused("the disk is full", steps.extend, (report.step for report in trainer.fit()))
    assert len(steps) < 8  # the first save is at step 4: it is heard of by the second at the latest


def test_what_is_small_or_finds_no_room_is_saved_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trained(tmp_path, 4)
    size = take_snapshot(trainer.state, trainer.environment).bytes
    threads, commit = list[threading.Thread](), checkpoints.commit

    def noted(*arguments: Any) -> Path:
        threads.append(threading.current_thread())
        return commit(*arguments)

    monkeypatch.setattr(checkpoints, "commit", noted)
    for limit, spare, at_once in ((0, size, True), (10 * size, 1 << 40, True), (0, 1 << 40, False)):
        monkeypatch.setattr(checkpoints, "BACKGROUND_BYTES", limit)
        threads.clear()
        writer = CheckpointWriter(tmp_path, 1, partial(int, spare))
        writer.save(trainer.state, trainer.environment, None, at_once=False)
        writer.wait()
        assert (threads == [threading.main_thread()]) == at_once


# Damage is noticed at any byte, set aside and never removed; leftovers are swept


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
        checkpoints = survey(copied)
        assert checkpoints.whole == older and not checkpoints.uncommitted, (path.name, place)
        assert [*checkpoints.damaged] == [newer]
        path.write_bytes(whole)
    for path in files:
        whole = path.read_bytes()
        path.unlink()
        checkpoints = survey(copied)
        assert checkpoints.whole == older
        if path.name == "COMMIT":
            assert checkpoints.uncommitted == (newer,) and not checkpoints.damaged
        else:
            assert path.name in checkpoints.damaged[newer] and not checkpoints.uncommitted
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
    refused("step-99999999", survey, copied)
    folder.rename(copied / "elsewhere")
    folder.symlink_to("/nowhere")
    refused("checkpoints cannot be read", survey, copied)
    folder.unlink()
    folder.write_text("")
    refused("is a file, and checkpoints are kept", survey, copied)


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


# The log of a run holds what its checkpoint says it held, or the user hears of it


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, and one that was left after step 8."""
    root = tmp_path_factory.mktemp("logs")
    trained(root / "whole", 0)
    trained(root / "run", 8)
    return root


@pytest.mark.parametrize("damage", ["flipped", "halved", "emptied", "not UTF-8", "deleted"])
def test_a_damaged_log_is_noticed_kept_and_begun_again(folders: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    log = tmp_path / "run" / "metrics.jsonl"
    content = log.read_bytes()
    broken = {
        "flipped": content[:9] + bytes([content[9] ^ 1]) + content[10:],
        "halved": content[: len(content) // 2],
        "emptied": b"",
        "not UTF-8": b"\xff" * 5000,
    }.get(damage)
    log.unlink() if broken is None else log.write_bytes(broken)
    trainer, sentences = resumed(tmp_path / "run")
    assert len(sentences) == 1 and "A new one begins after step 8" in sentences[0]
    aside = tmp_path / "run" / "damaged-metrics.jsonl"
    if broken is None:
        assert not aside.exists() and "is gone" in sentences[0]
    else:
        assert aside.read_bytes() == broken and str(aside) in sentences[0]
    # A kill before the next checkpoint, with lines written already: no second copy is set aside.
    fit(trainer, 9)
    trainer, sentences = resumed(tmp_path / "run")
    assert sentences == [] and not (tmp_path / "run" / "damaged-metrics.jsonl-2").exists()
    list(trainer.fit())
    for name in ("model", "average", "optimizer"):
        last = f"checkpoints/step-00000012/{name}.safetensors"
        assert (tmp_path / "run" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()
    lines = log_of(tmp_path / "run")
    assert lines[0] == {"kind": "restart", "step": 8}
    assert lines[1:] == [line for line in log_of(tmp_path / "whole") if line["step"] > 8]
    assert resumed(tmp_path / "run")[1] == []  # the last checkpoint knows the new log


def test_lines_beyond_the_checkpoint_are_no_damage(folders: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(folders / "run", tmp_path / "run"))
    log = run / "metrics.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + b'{"kind": "train", "st')
    trainer, sentences = resumed(run)
    assert sentences == []
    next(iter(trainer.fit()))
    assert log.read_bytes().startswith(before)
    assert [line["step"] for line in log_of(run)] == [3, 4, 6, 8, 9]


def test_a_pipe_is_no_log(folders: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    refused("expected a regular file", list, small_trainer(tmp_path).fit())
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    refused("expected a regular file", resumed, tmp_path / "run")


OFTEN = replace(TRAINING, log_every=100, evaluate_every=100, checkpoint_every=2)


@pytest.mark.parametrize(
    ("training", "step", "last", "committed", "replaced"),
    [(TRAINING, 1, 2, 0, True), (TRAINING, 6, 7, 4, False), (OFTEN, 2, 3, 2, True), (OFTEN, 1, 1, 0, False)],
    ids=["no checkpoint yet", "before a line", "between checkpoints", "before the first checkpoint"],
)
def test_a_folder_that_is_moved_gets_no_second_half(
    tmp_path: Path, training: TrainingConfig, step: int, last: int, committed: int, replaced: bool
) -> None:
    whole = trained(tmp_path / "whole", 0, training=training)
    run, moved, steps = tmp_path / "run", tmp_path / "moved", list[int]()
    with pytest.raises(VitkitError, match=f"{run} was moved, renamed or removed .* --resume"):
        for report in small_trainer(run, training).fit():
            steps.append(report.step)
            if report.step == step:
                run.rename(moved)
                if replaced:
                    run.mkdir()
    assert steps[-1] == last and not list(run.glob("*")) and run.exists() == replaced
    trainer, _ = resumed(moved, training=training)
    assert trainer.state.progress.step == committed
    list(trainer.fit())
    assert fingerprint(trainer) == fingerprint(whole)
