"""A checkpoint is whole or it is not one: every byte and every filesystem call."""

import errno
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.training.small_run import fingerprint, small_trainer
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import damage, find_checkpoint, save_checkpoint, sweep
from vitkit.training.trainer import Trainer

CALLS = ("open", "write", "fsync", "close", "mkdir", "makedirs", "rename", "unlink", "rmdir")
"""Everything of `os` that a save may change the disk with."""


def trained(run: Path, steps: int) -> Trainer:
    trainer = small_trainer(run)
    for report in trainer.fit():
        if report.step == steps:
            break
    return trainer


def test_everything_comes_back_bit_by_bit(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 8)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    again = small_trainer(tmp_path)
    again.resume(checkpoint)
    assert fingerprint(again) == fingerprint(trainer)
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    assert {"threads", "torch", "vitkit", "machine", "world_size"} <= manifest["environment"].keys()


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
        found, rejected = find_checkpoint(tmp_path)
        assert found == older, (path.name, place)
        assert len(rejected) == 1 and newer.name in rejected[0]
        path.write_bytes(whole)
    assert damage(newer) is None


@pytest.mark.parametrize("name", ["COMMIT", "manifest.json", "model.safetensors", "state.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    (newer / name).unlink()
    found, (sentence,) = find_checkpoint(tmp_path)
    assert found == older
    assert ("never committed" if name == "COMMIT" else name) in sentence


class Fault(BaseException):
    """Stands for the end of the process: no handler of ours may catch it."""


@contextmanager
def failing(number: int, error: BaseException) -> Iterator[list[str]]:
    """Let the filesystem call with this number fail; yields the names of the calls made."""
    made: list[str] = []
    originals: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CALLS}

    def guarded(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) - 1 == number:
                if name == "close":
                    originals["close"](*arguments)  # a failed close leaves nothing open
                raise error
            return originals[name](*arguments, **options)

        return call

    for name in CALLS:
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
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EACCES, "Permission denied"),
        Fault(),
    ],
    ids=lambda error: getattr(error, "strerror", "killed"),
)
def test_whatever_call_of_a_save_fails_a_whole_checkpoint_is_left(
    tmp_path: Path, error: BaseException
) -> None:
    """At least one loadable checkpoint at every point of failure, and never a success that is none."""
    trained(tmp_path / "run", 8)
    for number in itertools.count():
        run = tmp_path / f"run{number}"
        shutil.copytree(tmp_path / "run", run)
        trainer = small_trainer(run)
        checkpoint, _ = find_checkpoint(run)
        assert checkpoint is not None and checkpoint.name == "step-00000008"
        trainer.resume(checkpoint)
        next(iter(trainer.fit()))  # step 9, not saved yet
        failed = False
        with failing(number, error) as made:
            try:
                save_checkpoint(run, trainer.state, trainer.environment, keep=1)
            except VitkitError as refusal:
                failed = True
                assert "step 9" in str(refusal) and "bytes" in str(refusal) and str(run) in str(refusal)
            except Fault:
                failed = True
        if len(made) <= number:
            assert not failed and number > 30  # every call has had its turn
            found, rejected = find_checkpoint(run)
            assert found is not None and found.name == "step-00000009" and not rejected
            break
        found, _ = find_checkpoint(run)
        assert found is not None, (number, made[number])
        assert failed or (found.name == "step-00000009" and damage(found) is None), (number, made[number])
        # And the run goes on from there.
        sweep(run, found)
        again = small_trainer(run)
        again.resume(found)
        for report in again.fit(interrupted=lambda: True):
            assert report.checkpoint is not None and damage(report.checkpoint) is None
        shutil.rmtree(run)


def _save_with_full_disk(run: Path, limit: int, answer: Any) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit then fails with EFBIG
    trainer = small_trainer(run)
    checkpoint, _ = find_checkpoint(run)
    assert checkpoint is not None
    trainer.resume(checkpoint)
    next(iter(trainer.fit()))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        save_checkpoint(run, trainer.state, trainer.environment, keep=2)
        answer.put("saved")
    except VitkitError as error:
        answer.put(str(error))


def test_a_disk_that_really_refuses(tmp_path: Path) -> None:
    """The kernel's own refusal, in the middle of a file."""
    trained(tmp_path, 8)
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_save_with_full_disk, args=(tmp_path, 20_000, answer))
    process.start()
    message = answer.get(timeout=120)
    process.join()
    assert "could not be written" in message and "File too large" in message
    found, _ = find_checkpoint(tmp_path)
    assert found is not None and found.name == "step-00000008"
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_leftovers_are_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    (tmp_path / "checkpoints" / ".step-00000009.1.tmp").mkdir()
    found, _ = find_checkpoint(tmp_path)
    sweep(tmp_path, found)
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def flip(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])


def test_damaged_newer_ones_never_push_out_the_one_just_saved(tmp_path: Path) -> None:
    """Steps 4 and 8, 8 damaged; the run goes on from 4 and stops at 5 with room for one."""
    trained(tmp_path, 8)
    flip(tmp_path / "checkpoints" / "step-00000008" / "model.safetensors")
    found, _ = find_checkpoint(tmp_path)
    assert found is not None and found.name == "step-00000004"
    trainer = small_trainer(tmp_path)
    trainer.resume(found)
    next(iter(trainer.fit()))
    saved = save_checkpoint(tmp_path, trainer.state, trainer.environment, keep=1)
    assert saved.name == "step-00000005" and damage(saved) is None
    sweep(tmp_path, saved)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())][-1] == saved.name


def test_what_was_never_committed_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    (newer / "COMMIT").unlink()
    sweep(tmp_path, older)
    assert list((tmp_path / "checkpoints").iterdir()) == [older]
