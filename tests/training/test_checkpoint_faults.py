"""A disk that fails at any call of a save or a resume leaves a whole checkpoint."""

import dataclasses
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.training.small_run import contents, fit, flip, resumed, save_checkpoint, small_trainer, trained
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import clean_up, find_damage, survey

CALLS = ("open", "write", "fsync", "close", "mkdir", "makedirs", "rename", "replace", "unlink", "rmdir")
"""Everything of `os` that a save may change the disk with."""
READING = ("open", "read", "close", "stat", "fstat", "lstat", "scandir", "rename", "fsync", "unlink", "rmdir")
"""Everything of `os` that looking for a checkpoint and resuming from it may meet the disk with."""


class Fault(BaseException):
    """Stands for the end of the process: no handler of ours may catch it."""


@contextmanager
def failing(number: int, error: BaseException, calls: tuple[str, ...] = CALLS) -> Iterator[list[str]]:
    """Let the filesystem call with this number fail; yields the names of the calls made."""
    made: list[str] = []
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in calls}

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) - 1 == number:
                if name == "close":
                    originals["close"](*arguments)  # a failed close leaves nothing open
                raise error
            return originals[name](*arguments, **options)

        return call

    for name in calls:
        setattr(os, name, guarded(name))
    try:
        yield made
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        # Handled by the same lines as a full disk: the same attack again is for the heavier tests.
        pytest.param(OSError(errno.EIO, "Input/output error"), marks=pytest.mark.slow),
        pytest.param(OSError(errno.EACCES, "Permission denied"), marks=pytest.mark.slow),
        pytest.param(Fault(), marks=pytest.mark.slow),  # real kills: tests/jobs/test_unkillable.py
    ],
    ids=lambda error: getattr(error, "strerror", "killed"),
)
def test_whatever_call_of_a_save_fails_a_whole_checkpoint_is_left(
    tmp_path: Path, error: BaseException
) -> None:
    """At least one loadable checkpoint at every point of failure, and never a success that is none."""
    trained(tmp_path / "run", 8)
    trainer, _ = resumed(tmp_path / "run")
    fit(trainer, 9)  # not saved yet
    for number in itertools.count():
        run = tmp_path / f"run{number}"
        shutil.copytree(tmp_path / "run", run)
        failed = False
        with failing(number, error) as made:
            try:
                save_checkpoint(run, trainer, keep=1)
            except VitkitError as refusal:
                failed = True
                assert "step 9" in str(refusal) and "bytes" in str(refusal) and str(run) in str(refusal)
            except Fault:
                failed = True
        if len(made) <= number:
            assert not failed and number > 30  # every call has had its turn
            checkpoints = survey(run)
            newest = checkpoints.whole
            assert newest is not None and newest.name == "step-00000009"
            assert not checkpoints.damaged and not checkpoints.uncommitted
            break
        newest = survey(run).whole
        assert newest is not None, (number, made[number])
        is_saved = newest.name == "step-00000009" and find_damage(newest) is None
        assert failed or is_saved, (number, made[number])
        clean_up(run, survey(run))
        # And the run goes on from there; after every eighth failure alone, because a trainer takes its time.
        if number % 8 == 0:
            again, _ = resumed(run)
            for report in again.fit(interrupted=lambda: True):
                assert report.checkpoint is not None and find_damage(report.checkpoint) is None
        shutil.rmtree(run)


def test_each_folder_is_on_the_disk_before_anything_refers_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a COMMIT that is there leads to a checkpoint that is there whole."""
    trainer = trained(tmp_path, 4)
    made: list[tuple[str, str]] = []
    flush, rename, replace = os.fsync, os.rename, os.replace

    def fsync(descriptor: int) -> None:
        made.append(("flush", Path(f"/proc/self/fd/{descriptor}").readlink().name))
        flush(descriptor)

    def moved(call: Callable[..., None]) -> Callable[..., None]:
        def move(old: Path, new: Path) -> None:
            made.append(("rename", Path(new).name))
            call(old, new)

        return move

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", moved(rename))
    monkeypatch.setattr(os, "replace", moved(replace))
    trainer.state.progress = dataclasses.replace(trainer.state.progress, step=5)
    final = save_checkpoint(tmp_path, trainer, keep=9)
    temporary = f".{final.name}.{os.getpid()}.tmp"
    files = [path.name for path in final.iterdir() if path.name != "COMMIT"]
    assert {name for event, name in made[: len(files)] if event == "flush"} == set(files)
    assert made[len(files) :] == [
        ("flush", temporary),
        ("rename", final.name),
        ("flush", "checkpoints"),
        ("flush", f".COMMIT.{os.getpid()}.tmp"),
        ("rename", "COMMIT"),
        ("flush", final.name),
    ]


SYSTEM = [errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EACCES, errno.EPERM, errno.ENOMEM]


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_call_of_a_resume_fails_no_checkpoint_is_lost(tmp_path: Path, first: int) -> None:
    """The newest one is damaged, a leftover is there and the log is damaged, so that all is called for."""
    trained(tmp_path / "run", 8)
    flip(tmp_path / "run" / "checkpoints" / "step-00000008" / "model.safetensors")
    flip(tmp_path / "run" / "metrics.jsonl")
    leftover = tmp_path / "run" / "checkpoints" / "step-00000009"
    leftover.mkdir()
    (leftover / "model.safetensors").write_text("")
    names = ("step-00000004", "step-00000008")
    before = {name: contents(tmp_path / "run" / "checkpoints" / name) for name in names}
    log = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    trainer = small_trainer(tmp_path / "run")
    refused = 0
    for call in itertools.count():
        number = SYSTEM[(first + call) % len(SYSTEM)]
        trainer.run = run = tmp_path / f"run{call}"
        shutil.copytree(tmp_path / "run", run)
        with failing(call, OSError(number, os.strerror(number)), READING) as made:
            try:
                checkpoints = survey(run)
                clean_up(run, checkpoints)
                assert checkpoints.whole is not None
                trainer.resume(checkpoints.whole)
            except VitkitError as error:
                refused += 1
                assert "run the same command again" in str(error)
                # Python's removal of a folder closes its descriptor twice when the first time fails.
                assert os.strerror(number) in str(error) or "could not be tidied: Bad file" in str(error)
        folder = run / "checkpoints"
        aside = folder / "damaged-step-00000008"
        assert contents(folder / "step-00000004") == before["step-00000004"], (call, made[call])
        assert contents(aside if aside.exists() else folder / "step-00000008") == before["step-00000008"]
        aside = run / "damaged-metrics.jsonl"
        assert (aside if aside.exists() else run / "metrics.jsonl").read_bytes() == log
        # Once the system answers again, the run goes on.
        if call % 4 == 0:
            checkpoints = survey(run)
            clean_up(run, checkpoints)
            assert checkpoints.whole is not None and checkpoints.whole.name == "step-00000004"
            trainer.resume(checkpoints.whole)
        shutil.rmtree(run)
        if len(made) <= call:
            assert refused > 30 and call > 60
            break
