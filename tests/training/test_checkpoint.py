"""A checkpoint is whole or it is not one: every byte and every filesystem call."""

import dataclasses
import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.models.test_vit import TINY
from tests.training import small_run
from tests.training.small_run import OPTIMIZER, TRAINING, fingerprint, small_trainer
from vitkit.errors import VitkitError
from vitkit.training import checkpoint as checkpoints
from vitkit.training.checkpoint import (
    CheckpointWriter,
    UnreadableError,
    find_checkpoint,
    find_damage,
    list_set_aside,
    load_weights,
    read_manifest,
    save_checkpoint,
    survey,
    sweep,
    take_snapshot,
    weights_file,
)
from vitkit.training.ended import read_ended, remove_checkpoints
from vitkit.training.trainer import Trainer
from vitkit.weights.files.safetensors import read_safetensors, safetensors_chunks

CALLS = ("open", "write", "fsync", "close", "mkdir", "makedirs", "rename", "replace", "unlink", "rmdir")
"""Everything of `os` that a save may change the disk with."""
READING = ("open", "read", "close", "stat", "fstat", "lstat", "scandir", "rename", "fsync", "unlink", "rmdir")
"""Everything of `os` that looking for a checkpoint and resuming from it may meet the disk with."""


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


def test_muon_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    optimizer = dataclasses.replace(OPTIMIZER, optimizer="muon")
    whole = small_trainer(tmp_path / "whole", optimizer=optimizer)
    for _ in whole.fit():
        pass
    stopped = small_trainer(tmp_path / "stopped", optimizer=optimizer)
    for report in stopped.fit():
        if report.step == 8:
            break
    checkpoint, _ = find_checkpoint(tmp_path / "stopped")
    assert checkpoint is not None
    again = small_trainer(tmp_path / "stopped", optimizer=optimizer)
    again.resume(checkpoint)
    assert again.state.progress.step == 8
    for _ in again.fit():
        pass
    assert fingerprint(again) == fingerprint(whole)
    with pytest.raises(VitkitError, match="another optimiser"):
        small_trainer(tmp_path / "stopped").resume(checkpoint)


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
        assert found == older and not survey(tmp_path).uncommitted, (path.name, place)
        assert len(rejected) == 1 and newer.name in rejected[0]
        path.write_bytes(whole)
    assert find_damage(newer) is None


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
        assert failed or (found.name == "step-00000009" and find_damage(found) is None), (
            number,
            made[number],
        )
        sweep(run, survey(run))
        # And the run goes on from there; after every fourth failure alone, because a trainer takes its time.
        if number % 4 == 0:
            again = small_trainer(run)
            again.resume(found)
            for report in again.fit(interrupted=lambda: True):
                assert report.checkpoint is not None and find_damage(report.checkpoint) is None
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
    final = save_checkpoint(tmp_path, trainer.state, trainer.environment, keep=9)
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


def test_a_disk_that_really_refuses(tmp_path: Path) -> None:
    """The kernel's own refusal, in the middle of a file."""
    trained(tmp_path, 8)
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_save_with_full_disk, args=(tmp_path, 20_000, answer))
    process.start()
    message = answer.get(timeout=1800)
    process.join()
    assert "could not be written" in message and "File too large" in message
    found, _ = find_checkpoint(tmp_path)
    assert found is not None and found.name == "step-00000008"
    assert not list((tmp_path / "checkpoints").glob(".*"))


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
    for one, other in zip(plain, background, strict=True):
        for file in one.iterdir():
            assert file.read_bytes() == (other / file.name).read_bytes(), file


@pytest.mark.usefixtures("small_saves")
def test_a_save_in_the_background_holds_what_was_there_when_it_began(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 4)
    state, writer = trainer.state, CheckpointWriter(tmp_path, 1, lambda: 1 << 40)
    for number in range(50):
        state.progress = dataclasses.replace(state.progress, step=100 + number)
        snapshot = take_snapshot(state, trainer.environment)
        expected = {name: b"".join(chunks) for name, chunks in snapshot.files.items()}
        writer.save(state, trainer.environment, None, at_once=False)
        with torch.no_grad():  # training goes on
            for value in (*state.model.parameters(), *state.optimizer.state.values()):
                for tensor in value.values() if isinstance(value, dict) else [value]:
                    tensor.add_(1)
        writer.wait()
        path = writer.committed()
        assert path is not None and path.name == f"step-00000{100 + number}"
        assert {name: (path / name).read_bytes() for name in expected} == expected
    assert writer.committed() is None


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
    threads: list[Immediate] = []

    def begin(**made: Any) -> Immediate:
        threads.append(Immediate(**made))
        return threads[-1]

    monkeypatch.setattr(threading, "Thread", begin)
    for limit, spare, at_once in ((0, size, True), (10 * size, 1 << 40, True), (0, 1 << 40, False)):
        monkeypatch.setattr(checkpoints, "BACKGROUND_BYTES", limit)
        threads.clear()
        writer = CheckpointWriter(tmp_path, 1, partial(int, spare))
        writer.save(trainer.state, trainer.environment, None, at_once=False)
        writer.wait()
        assert (not threads) == at_once


class Immediate:
    """A thread that has done its work when it has begun."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str) -> None:
        self.start = lambda: target(*args)

    def join(self) -> None:
        """Nothing is left to wait for."""


def test_leftovers_are_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    (tmp_path / "checkpoints" / ".step-00000009.1.tmp").mkdir()
    (tmp_path / "checkpoints" / ".step-00000010.1.tmp").write_text("")
    sweep(tmp_path, survey(tmp_path))
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
    assert saved.name == "step-00000005" and find_damage(saved) is None
    (tmp_path / "checkpoints" / "step-00000008" / "COMMIT").rename(tmp_path / "COMMIT")
    sweep(tmp_path, survey(tmp_path))
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())][-1] == saved.name


def test_what_was_never_committed_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    (newer / "COMMIT").unlink()
    sweep(tmp_path, survey(tmp_path))
    assert list((tmp_path / "checkpoints").iterdir()) == [older]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_damaged_checkpoint_is_set_aside_and_never_removed(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    folder = tmp_path / "checkpoints"
    newer = folder / "step-00000008"
    flip(newer / "optimizer.safetensors")
    before = contents(newer)
    for number in ("", "-2"):
        shutil.copytree(newer, tmp_path / "copy")
        found = survey(tmp_path)
        assert found.whole == folder / "step-00000004" and not found.lost
        (aside,) = sweep(tmp_path, found)
        assert aside == folder / f"damaged-step-00000008{number}" and aside in list_set_aside(tmp_path)
        assert contents(aside) == before and not newer.exists()
        (tmp_path / "copy").rename(newer)
    # A save of that step does not remove it either.
    trainer = trained(tmp_path / "other", 8)
    save_checkpoint(tmp_path, trainer.state, trainer.environment, keep=1)
    assert contents(folder / "damaged-step-00000008-3") == before and find_damage(newer) is None


def test_when_none_is_whole_that_is_known(tmp_path: Path) -> None:
    assert not survey(tmp_path).lost
    trained(tmp_path, 8)
    older, newer = sorted((tmp_path / "checkpoints").iterdir())
    flip(newer / "COMMIT")
    (older / "state.json").unlink()
    found = survey(tmp_path)
    assert found.whole is None and found.lost and set(found.damaged) == {older, newer}
    for path in (older, newer):
        (path / "COMMIT").write_text("")  # as a power cut may leave it: never committed, yet kept
    assert not survey(tmp_path).lost and set(survey(tmp_path).damaged) == {older, newer}


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
    kept = ("step-00000004", "step-00000008")
    before = {name: contents(tmp_path / "run" / "checkpoints" / name) for name in kept}
    log = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    trainer = small_trainer(tmp_path / "run")
    refused = 0
    for call in itertools.count():
        number = SYSTEM[(first + call) % len(SYSTEM)]
        trainer.run = run = tmp_path / f"run{call}"
        shutil.copytree(tmp_path / "run", run)
        with failing(call, OSError(number, os.strerror(number)), READING) as made:
            try:
                found = survey(run)
                sweep(run, found)
                assert found.whole is not None
                trainer.resume(found.whole)
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
        found = survey(run)
        sweep(run, found)
        assert found.whole is not None and found.whole.name == "step-00000004"
        trainer.resume(found.whole)
        shutil.rmtree(run)
        if len(made) <= call:
            assert refused > 30 and call > 60
            break


def test_something_else_in_the_place_of_checkpoints(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    folder = tmp_path / "checkpoints"
    (folder / "step-99999999").write_text("a file")
    os.mkfifo(folder / "step-99999998")
    (folder / "step-99").mkdir()  # no name of ours
    found = survey(tmp_path)
    assert found.whole == folder / "step-00000008" and not found.lost
    assert {path.name for path in sweep(tmp_path, found)} == {
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


def committed(checkpoint: Path, manifest: Any = None, state: Any = None) -> None:
    """Write a manifest or a state that somebody made up, with all hashes right."""
    old = json.loads((checkpoint / "manifest.json").read_text())
    if state is not None:
        data = json.dumps(state).encode()
        (checkpoint / "state.json").write_bytes(data)
        old["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    made = manifest(old) if callable(manifest) else manifest
    data = json.dumps(old if made is None else made).encode()
    (checkpoint / "manifest.json").write_bytes(data)
    (checkpoint / "COMMIT").write_text(hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        [],
        None.__class__.__name__,
        {"files": {}},
        {"step": 8, "environment": {}, "files": {}},
        {"step": "8", "environment": {}, "files": {}},
        {"step": 8, "environment": [], "files": {"state.json": {"bytes": 1, "sha256": "0"}}},
        {"step": 8, "environment": {}, "files": {"../../../../etc/passwd": {"bytes": 1, "sha256": "0"}}},
        lambda old: {**old, "files": {**old["files"], "..": {"bytes": 1, "sha256": "0"}}},
        lambda old: {**old, "files": {**old["files"], "a\0b": {"bytes": 1, "sha256": "0"}}},
        {"step": 8, "environment": {}, "files": {"model.safetensors": 3}},
        {"step": 8, "environment": {}, "files": [1]},
    ],
    ids=lambda manifest: "edited" if callable(manifest) else str(manifest),
)
def test_a_manifest_that_makes_no_sense_is_damage(tmp_path: Path, manifest: Any) -> None:
    trained(tmp_path, 8)
    newer = tmp_path / "checkpoints" / "step-00000008"
    committed(newer, manifest)
    found = survey(tmp_path)
    assert list(found.damaged) == [newer] and found.whole is not None and "manifest" in found.damaged[newer]


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        {"step": 9},
        {"step": True},
        {"step": 8, "window": {"loss": "x"}},
        {"step": 8, "log_bytes": -1},
        {"step": 8, "best_step": 10**400},
    ],
    ids=lambda state: str(state)[:40],
)
def test_a_state_that_makes_no_sense_is_damage(tmp_path: Path, state: Any) -> None:
    trained(tmp_path, 8)
    newer = tmp_path / "checkpoints" / "step-00000008"
    committed(newer, state=state)
    assert "state.json" in (find_damage(newer) or "")


def test_a_checkpoint_of_another_model_or_optimiser_is_refused_in_words(tmp_path: Path) -> None:
    trained(tmp_path, 8)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    for changes, words in (
        ({"optimizer": "sgd"}, "another optimiser"),
        ({"polyak": None}, "holds a Polyak average of the weights, but polyak asks for none"),
    ):
        other = small_trainer(tmp_path, optimizer=dataclasses.replace(OPTIMIZER, **changes))
        with pytest.raises(VitkitError, match=words):
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


def test_a_checkpoint_of_the_first_format_resumes(tmp_path: Path) -> None:
    """Without options in the manifest and without a hash of the log in the state."""
    whole = trained(tmp_path / "whole", 12)
    trained(tmp_path / "run", 8)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000008"
    state = json.loads((checkpoint / "state.json").read_text())
    del state["log_sha256"]
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    del manifest["configuration"]
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))
    committed(checkpoint, state=state)
    again = small_trainer(tmp_path / "run")
    assert again.resume(checkpoint) == []
    list(again.fit())
    assert fingerprint(again) == fingerprint(whole)


def test_parameters_of_the_first_version_are_read_by_the_names_of_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first version called the pooling by attention `attention_pool`."""

    def chunks_of_then(tensors: dict[str, torch.Tensor], **options: Any) -> Iterator[bytes | memoryview]:
        former = {key.replace("pooling.", "attention_pool."): value for key, value in tensors.items()}
        yield from safetensors_chunks(former, **options)

    monkeypatch.setattr(small_run, "TINY", dataclasses.replace(TINY, pool="map"))
    monkeypatch.setattr(checkpoints, "safetensors_chunks", chunks_of_then)
    trainer = trained(tmp_path, 8)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None and trainer.state.average is not None
    assert "attention_pool.probe" in read_safetensors(checkpoint / "average.safetensors")
    again = small_trainer(tmp_path)
    again.resume(checkpoint)
    assert fingerprint(again) == fingerprint(trainer)
    assert load_weights(checkpoint).keys() == trainer.state.average.state_dict().keys()


def test_a_file_that_the_manifest_does_not_list_is_not_read(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 4)
    trainer.state.average = None
    checkpoint = save_checkpoint(tmp_path / "plain", trainer.state, trainer.environment, keep=1)
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
    with pytest.raises(VitkitError, match="leads out of its folder"):
        remove_checkpoints(tmp_path / "given")
    assert contents(tmp_path / "mine") == before


def test_a_record_of_an_ended_run_that_was_cut_short_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 4)
    (tmp_path / ".ended.json.123.tmp").write_text("{")
    remove_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "ended.json", "metrics.jsonl"}
    (tmp_path / "ended.json").write_text('{"step": -1, "environment": {}}')
    with pytest.raises(VitkitError, match=r"ended\.json: step: expected 0 or more"):
        read_ended(tmp_path)


def test_the_best_checkpoint_is_kept_beside_the_last_ones(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    for step in range(1, 7):
        best = 2 if step >= 2 else None
        trainer.state.progress = dataclasses.replace(trainer.state.progress, step=step, best_step=best)
        save_checkpoint(tmp_path, trainer.state, trainer.environment, keep=2)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000005", "step-00000006"]
    assert find_damage(tmp_path / "checkpoints" / "step-00000002") is None


def test_names_are_flushed_before_anything_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut keeps what was flushed, in whatever order the rest came."""
    opened, order = dict[int, str](), list[tuple[str, str]]()
    originals = {name: getattr(os, name) for name in ("open", "fsync", "rename", "replace")}

    def open_(path: Any, *rest: Any, **more: Any) -> int:
        descriptor: int = originals["open"](path, *rest, **more)
        opened[descriptor] = str(path)
        return descriptor

    def fsync(descriptor: int) -> None:
        originals["fsync"](descriptor)
        order.append(("flush", Path(opened[descriptor]).name))

    def moving(name: str) -> Callable[..., None]:
        def move(source: Any, target: Any) -> None:
            originals[name](source, target)
            order.append(("name", Path(target).name))

        return move

    trainer = small_trainer(tmp_path)
    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, moving(name))
    save_checkpoint(tmp_path, trainer.state, trainer.environment, keep=1)
    monkeypatch.undo()
    files = [("flush", path.name) for path in (tmp_path / "checkpoints" / "step-00000000").iterdir()]
    hidden = f".step-00000000.{os.getpid()}.tmp"
    commit = f".COMMIT.{os.getpid()}.tmp"
    assert sorted(order[: len(files) - 1]) == sorted(set(files) - {("flush", "COMMIT")})
    assert order[len(files) - 1 :] == [
        ("flush", hidden),
        ("name", "step-00000000"),
        ("flush", "checkpoints"),
        ("flush", commit),
        ("name", "COMMIT"),
        ("flush", "step-00000000"),
    ]
