"""Checkpoints that are written while training goes on."""

import dataclasses
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.small_run import small_trainer, trained
from vitkit.errors import VitkitError
from vitkit.training import checkpoint as checkpoints
from vitkit.training.checkpoint import (
    CheckpointWriter,
    take_snapshot,
)
from vitkit.training.trainer import Trainer


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
    with pytest.raises(VitkitError, match="the disk is full"):
        steps += (report.step for report in trainer.fit())
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
