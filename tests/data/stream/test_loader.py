"""Batches: the same whoever makes them, evaluation exactly once, bad files masked and counted."""

import dataclasses
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from vitkit.data.augment import augment
from vitkit.data.config import Augmentation, Preprocessing
from vitkit.data.decode.image import Header
from vitkit.data.stream.batch import Batch
from vitkit.data.stream.loader import TrainLoader, evaluation_batches
from vitkit.data.stream.memory_samples import (
    MemorySamples,
    check_decode_memory,
    keep_in_memory,
    largest_decoding,
)
from vitkit.data.stream.order import sample_at, sample_rng
from vitkit.errors import DecodeError, VitkitError
from vitkit.signals import STOP_SIGNALS

# Of torch, on machines with a single core, and of Python 3.12 about forking beside threads.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

PREPROCESSING = Preprocessing((8, 8))
AUGMENTATION = Augmentation(shift=1)


class Noise:
    """Samples of random pixels and varying size; those in `bad` cannot be read."""

    def __init__(
        self, count: int, bad: frozenset[int] = frozenset(), late: frozenset[int] = frozenset()
    ) -> None:
        self.labels = np.arange(count, dtype=np.int64) % 7
        self.targets = {"labels": self.labels, "places": np.random.default_rng(count).random((count, 2))}
        self.bad = bad
        self.late = late  # readable header, unreadable pixels

    def __len__(self) -> int:
        return len(self.labels)

    def key(self, index: int) -> str:
        return f"noise {index}"

    def file(self, index: int) -> bytes | Path:
        return b""

    def header(self, index: int) -> Header:
        if index in self.bad:
            raise DecodeError("broken on purpose")
        return Header("PNG", "RGB", (8 + index % 3, 9))

    def size(self, index: int) -> tuple[int, int]:
        return self.header(index).size

    def decode(self, index: int) -> NDArray[np.uint8]:
        height, width = self.size(index)
        if index in self.late:
            raise DecodeError("broken late")
        return np.random.default_rng(index).integers(1, 256, (height, width, 3), dtype=np.uint8)


class Deadly(Noise):
    """Kills the process that asks for sample 5, as the system does when memory runs out."""

    def decode(self, index: int) -> NDArray[np.uint8]:
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().decode(index)


def train_loader(
    samples: Noise | MemorySamples, batch_size: int = 16, workers: int = 0, quota: float = 1.0
) -> TrainLoader:
    return TrainLoader(
        samples, PREPROCESSING, AUGMENTATION, batch_size=batch_size, seed=3, workers=workers, bad_quota=quota
    )


def assert_equal(first: list[Batch], second: list[Batch]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.targets.keys() == other.targets.keys()
        assert all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))


def test_a_batch_is_what_order_and_augmentation_say() -> None:
    samples = Noise(10)
    (batch,) = train_loader(samples, batch_size=16).batches(2, 3)
    epochs, ids = sample_at(np.arange(32, 48), 10, 3)
    assert batch.ids.tolist() == ids.tolist()
    assert batch.labels.tolist() == samples.labels[ids].tolist()
    assert batch.targets["places"].tolist() == samples.targets["places"][ids].tolist()
    assert batch.mask.all()
    assert (batch.images.dtype, batch.labels.dtype) == (torch.uint8, torch.int64)
    assert (batch.mask.dtype, batch.ids.dtype) == (torch.bool, torch.int64)
    assert batch.images.shape == (16, 3, 8, 8) and batch.images.is_contiguous()
    for slot in range(16):
        rng = sample_rng(3, int(epochs[slot]), int(ids[slot]))
        expected = augment(samples.decode(int(ids[slot])), PREPROCESSING, AUGMENTATION, rng)
        np.testing.assert_array_equal(batch.images[slot].permute(1, 2, 0).numpy(), expected)


def test_epochs_are_whole_across_batches() -> None:
    ids = torch.cat([batch.ids for batch in train_loader(Noise(10), batch_size=4).batches(0, 10)])
    for epoch in ids.reshape(4, 10).tolist():
        assert sorted(epoch) == list(range(10))


@given(st.integers(1, 40), st.integers(1, 20), st.integers(0, 30), st.integers(1, 4))
@settings(deadline=None, max_examples=30)
def test_resumed_at_any_step_the_batches_are_the_same(
    size: int, batch_size: int, start: int, count: int
) -> None:
    whole = list(train_loader(Noise(size), batch_size).batches(0, start + count))
    resumed = list(train_loader(Noise(size), batch_size).batches(start, start + count))
    assert_equal(whole[start:], resumed)


def test_workers_change_nothing() -> None:
    samples = Noise(50, bad=frozenset({3, 30}))
    alone, helped = train_loader(samples), train_loader(samples, workers=2)
    assert_equal(list(alone.batches(3, 9)), list(helped.batches(3, 9)))
    assert alone.rejects == helped.rejects != {}
    mine: dict[str, str] = {}
    theirs: dict[str, str] = {}
    assert_equal(
        list(evaluation_batches(samples, PREPROCESSING, 16, rejects=mine)),
        list(evaluation_batches(samples, PREPROCESSING, 16, workers=2, rejects=theirs)),
    )
    assert mine == theirs and len(mine) == 2


def test_places_of_the_batch_alone_are_read() -> None:
    samples = Noise(20)
    (whole,) = train_loader(samples, 12).batches(1, 2)
    places = np.array([11, 4, 5, 6])
    loader = TrainLoader(samples, PREPROCESSING, AUGMENTATION, batch_size=12, seed=3, places=places)
    (part,) = loader.batches(1, 2)
    for mine, theirs in zip(part.tensors(), whole.tensors(), strict=True):
        assert torch.equal(mine, theirs[places])
    nothing = TrainLoader(samples, PREPROCESSING, None, batch_size=12, seed=3, places=places[:0])
    assert [len(batch) for batch in nothing.batches(0, 2)] == [0, 0]


def test_without_augmentation_training_sees_what_evaluation_sees() -> None:
    samples = Noise(6)
    (train,) = TrainLoader(samples, PREPROCESSING, None, batch_size=6, seed=0).batches(0, 1)
    (evaluation,) = evaluation_batches(samples, PREPROCESSING, 6)
    assert torch.equal(train.images, evaluation.images[train.ids])


@pytest.mark.parametrize("memory", [False, True])
def test_bad_files_are_masked_and_counted_exactly(memory: bool) -> None:
    noise = Noise(40, bad=frozenset({0, 7}), late=frozenset({21}))
    samples = keep_in_memory(noise, 10**9) if memory else noise
    assert isinstance(samples, MemorySamples if memory else Noise)
    loader = TrainLoader(samples, PREPROCESSING, AUGMENTATION, batch_size=10, seed=0, bad_quota=0.1)
    batches = list(loader.batches(0, 8))  # two epochs
    ids, mask = torch.cat([b.ids for b in batches]), torch.cat([b.mask for b in batches])
    assert sorted(ids[~mask].tolist()) == [0, 0, 7, 7, 21, 21]
    assert loader.rejects == {
        "noise 0": "broken on purpose",
        "noise 7": "broken on purpose",
        "noise 21": "broken late",
    }
    for batch in batches:
        assert not batch.images[~batch.mask].any()
        assert batch.images[batch.mask].flatten(1).any(dim=1).all()
    rejects: dict[str, str] = {}
    evaluated = list(evaluation_batches(samples, PREPROCESSING, 16, rejects=rejects))
    assert sum(int((~batch.mask).sum()) for batch in evaluated) == 3
    assert rejects == loader.rejects


def test_a_batch_of_bad_files_alone() -> None:
    (batch,) = train_loader(Noise(4, bad=frozenset(range(4))), 4).batches(0, 1)
    assert not batch.mask.any() and not batch.images.any()


def test_the_quota_of_bad_files() -> None:
    bad = frozenset(range(3))
    list(train_loader(Noise(40, bad=bad), quota=0.06).batches(0, 5))  # ceil(2.4) = 3 are allowed
    with pytest.raises(VitkitError, match=r"3 of 40 training files .* 2 allowed") as caught:
        list(train_loader(Noise(40, bad=bad), quota=0.05).batches(0, 5))
    assert "noise 1: broken on purpose" in str(caught.value)
    assert "vitkit data check" in str(caught.value) and "--bad-quota" in str(caught.value)
    with pytest.raises(VitkitError) as caught:
        list(train_loader(Noise(40, bad=frozenset(range(20))), 40, quota=0).batches(0, 1))
    assert str(caught.value).count("broken on purpose") == 5


@pytest.mark.parametrize("size", [1, 2, 3, 5, 63, 64, 65, 97, 100])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_evaluation_meets_every_sample_exactly_once(size: int, batch_size: int) -> None:
    samples = Noise(size)
    batches = list(evaluation_batches(samples, PREPROCESSING, batch_size))
    assert torch.cat([batch.ids for batch in batches]).tolist() == list(range(size))
    assert torch.cat([batch.labels for batch in batches]).tolist() == samples.labels.tolist()
    assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert len(batches) == -(-size // batch_size)


def test_evaluation_of_chosen_samples() -> None:
    batches = list(evaluation_batches(Noise(20), PREPROCESSING, 2, indices=[5, 3, 19]))
    assert [batch.ids.tolist() for batch in batches] == [[5, 3], [19]]
    assert list(evaluation_batches(Noise(20), PREPROCESSING, 2, workers=2, indices=[])) == []


def test_a_dying_worker_is_named() -> None:
    with pytest.raises(
        VitkitError, match=r"process died while batch \d+ was awaited.*DataLoader.*by SIGKILL.*--workers"
    ):
        list(train_loader(Deadly(10), batch_size=5, workers=2).batches(0, 6))


def test_a_worker_that_dies_during_other_work_is_named_at_the_next_batch() -> None:
    batches = train_loader(Noise(10), batch_size=5, workers=1).batches(0, 100)
    next(batches)
    (worker,) = multiprocessing.active_children()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    # A training step: no signal handler may raise here. Waiting for the worker would bury it too early.
    time.sleep(0.5)
    with pytest.raises(VitkitError, match="data loading process died"):
        list(batches)


def test_workers_leave_it_to_their_parent_to_answer_signals() -> None:
    batches = train_loader(Noise(10), batch_size=5, workers=2).batches(0, 40)
    next(batches)
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        for number in STOP_SIGNALS:
            os.kill(worker.pid, number)
    assert len(list(batches)) == 39
    assert not multiprocessing.active_children()


class Endless(Noise):
    """Sample 5 is on a disk that does not answer."""

    def decode(self, index: int) -> NDArray[np.uint8]:
        if index == 5:
            time.sleep(30)  # far longer than anybody waits, and no test hangs where nobody gives up
        return super().decode(index)


def test_a_hanging_worker_and_its_image_are_named() -> None:
    batches = evaluation_batches(Endless(10), PREPROCESSING, 2, workers=2, worker_timeout=2)
    with pytest.raises(
        VitkitError, match=r"Batch 2 did not come within .* process \d+ .* image noise 5\. .*--worker-timeout"
    ):
        list(batches)
    assert not multiprocessing.active_children()


def test_a_stopped_worker_is_named() -> None:
    loader = TrainLoader(Noise(10), PREPROCESSING, None, batch_size=5, seed=0, workers=2, worker_timeout=2)
    batches = loader.batches(0, 1000)
    next(batches), next(batches)  # of each worker one
    stopped = multiprocessing.active_children()[0].pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    going_on = threading.Timer(30, os.kill, (stopped, signal.SIGCONT))  # no test hangs where nobody gives up
    going_on.start()
    with pytest.raises(VitkitError, match=f"did not come within .* process {stopped} hangs"):
        try:
            list(batches)
        finally:
            going_on.cancel()
    assert not multiprocessing.active_children()


def test_a_stopped_worker_is_named_where_the_others_wait_for_it() -> None:
    """A worker that is stopped while it hands over a batch holds a lock that the others wait for."""
    stopped = multiprocessing.RawValue("q", 0)

    class Locked(Noise):
        def decode(self, index: int) -> NDArray[np.uint8]:
            worker = get_worker_info()
            assert worker is not None
            if index >= 10:  # after a batch of each worker, so that both are there when the time is counted
                if worker.id == 1:
                    time.sleep(0.5)  # its thread that sends has sent the batch before
                    stopped.value = os.getpid()
                    os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(600)  # the first worker makes the batch that is awaited
            return super().decode(index)

    with pytest.raises(VitkitError, match=r"Batch [12] did not come") as refusal:
        list(evaluation_batches(Locked(20), PREPROCESSING, 5, workers=2, worker_timeout=2))
    assert f"process {stopped.value} hangs" in str(refusal.value)


def test_without_a_limit_a_batch_is_waited_for() -> None:
    class Late(Noise):
        def decode(self, index: int) -> NDArray[np.uint8]:
            time.sleep(0.2)
            return super().decode(index)

    batches = evaluation_batches(Late(10), PREPROCESSING, 10, workers=1, worker_timeout=0)
    assert [len(batch) for batch in batches] == [10]


def test_no_process_outlives_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.data.stream.workers.GRACE_SECONDS", 0.2)
    batches = evaluation_batches(Endless(10), PREPROCESSING, 2, workers=2)
    next(batches)
    del batches
    assert not multiprocessing.active_children()


def in_process(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from tests.data.stream.test_loader import *\n" + textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        start_new_session=True,
    )


def test_keeping_labels_keeps_no_file_open() -> None:
    """And keeping images, each of which is one, ends in words; and a loader that still lives at the end of
    the program does not keep it from ending."""
    process = in_process("""
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        kept = []
        for batch in evaluation_batches(Noise(600), PREPROCESSING, 1, workers=2):
            kept += [batch.labels, batch.ids, batch.mask]
        assert len(kept) == 1800
        batches = evaluation_batches(Noise(600), PREPROCESSING, 1, workers=2)
        try:
            kept += [batch.images for batch in batches]
        except VitkitError as error:
            print(error)
        kept.clear()
        living = evaluation_batches(Noise(600), PREPROCESSING, 1, workers=2)
        next(living)
        """)
    out, errors = process.communicate(timeout=1800)
    assert process.returncode == 0, errors
    assert "the limit of open files is reached. Raise it (`ulimit -n 4096`" in out
    assert "Traceback" not in errors


def test_the_time_that_the_whole_program_was_stopped_does_not_count() -> None:
    process = in_process("""
        class Slow(Noise):
            def decode(self, index):
                print("reading", flush=True)
                time.sleep(2)
                return super().decode(index)

        list(evaluation_batches(Slow(1), PREPROCESSING, 1, workers=1, worker_timeout=3))
        """)
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    time.sleep(1.5)  # the wait is under way
    os.killpg(process.pid, signal.SIGSTOP)
    time.sleep(3.5)
    os.killpg(process.pid, signal.SIGCONT)
    _, errors = process.communicate()
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "limit of open files"),
        (RuntimeError("unable to open shared memory object </torch_1_2_3> in read-write mode"), "/dev/shm"),
        (
            RuntimeError("unable to mmap 19267584 bytes from file </torch_1>: Cannot allocate memory"),
            "memory",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "/dev/shm"),
        (MemoryError(), "not enough memory"),
        (VitkitError("exactly this"), "exactly this"),
    ],
)
def test_what_workers_lack_is_told_in_words(error: Exception, words: str) -> None:
    class Poor(Noise):
        def decode(self, index: int) -> NDArray[np.uint8]:
            raise error

    with pytest.raises(VitkitError, match=words) as caught:
        list(train_loader(Poor(10), workers=1).batches(0, 1))
    assert "Traceback" not in str(caught.value) and "Caught" not in str(caught.value)


def test_an_error_in_a_worker_is_not_hidden() -> None:
    class Faulty(Noise):
        def decode(self, index: int) -> NDArray[np.uint8]:
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        list(train_loader(Faulty(10), workers=1).batches(0, 1))


def test_memory_holds_the_same_pixels() -> None:
    noise = Noise(10)
    seen: list[tuple[int, int]] = []
    headers: list[tuple[int, int]] = []

    def decoded(done: int, total: int) -> None:
        assert len(headers) == 10  # all of them come first
        seen.append((done, total))

    kept = keep_in_memory(noise, 10**6, decoded, lambda done, total: headers.append((done, total)))
    assert isinstance(kept, MemorySamples)
    assert seen == headers == [(done, 10) for done in range(1, 11)]
    for index in range(10):
        np.testing.assert_array_equal(kept.decode(index), noise.decode(index))
        assert kept.size(index) == noise.size(index)
        assert (kept.key(index), kept.file(index), kept.header(index)) == (
            f"noise {index}",
            b"",
            noise.header(index),
        )
    assert kept.labels is noise.labels and len(kept) == 10


class Growing(Noise):
    """Sample 1 has another size when its pixels are read than its header said a moment ago."""

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        super().__init__(count)
        self.new_size = size

    def decode(self, index: int) -> NDArray[np.uint8]:
        return np.full((*self.new_size, 3), 77, dtype=np.uint8) if index == 1 else super().decode(index)


@pytest.mark.parametrize("size", [(20, 30), (2, 2), (8, 9), (9, 9)])
@pytest.mark.parametrize("count", [2, 4])
def test_an_image_that_changes_its_size_leaves_its_neighbours_alone(
    count: int, size: tuple[int, int]
) -> None:
    samples = keep_in_memory(Growing(count, size), 10**6)
    assert isinstance(samples, MemorySamples)
    for index in range(count):
        if index != 1:
            np.testing.assert_array_equal(samples.decode(index), Noise(count).decode(index))
    if size == (9, 9):  # as the header said
        assert (samples.decode(1) == 77).all()
    else:
        reason = rf"changed while it was read: its header said 9 x 9 .* has {size[0]} x {size[1]}"
        with pytest.raises(DecodeError, match=reason):
            samples.decode(1)


class Enormous(Noise):
    def header(self, index: int) -> Header:
        return Header("PNG", "RGB", (10**8, 10**8))


def test_memory_that_is_not_there() -> None:
    with pytest.raises(VitkitError, match=r"not enough memory for .* Give a lower --memory-gib"):
        keep_in_memory(Enormous(2), 10**18)


class Demanding(Noise):
    def header(self, index: int) -> Header:
        return dataclasses.replace(super().header(index), decoding_bytes=index * 10**6)


def test_memory_of_all_workers_is_checked() -> None:
    largest = largest_decoding(Demanding(1000, bad=frozenset({0, 999})))
    assert 990 * 10**6 < largest <= 998 * 10**6
    assert largest_decoding(Demanding(1)) == 0
    assert largest_decoding(Noise(0)) == 0
    assert check_decode_memory(10**8, 4, None) is None
    assert check_decode_memory(10**8, 4, 4 * 10**8) is None
    assert check_decode_memory(10**8, 0, 10**8) is None
    warning = check_decode_memory(10**8, 4, 3 * 10**8)
    assert warning is not None
    assert "400 MB of memory at a time (4 x 100 MB" in warning and "300 MB are free" in warning
    assert "--workers" in warning and "--max-pixels" in warning


def test_memory_has_a_limit() -> None:
    needed = sum((8 + index % 3) * 9 * 3 for index in range(10))
    noise = Noise(10)
    assert isinstance(keep_in_memory(noise, needed), MemorySamples)
    assert keep_in_memory(noise, needed - 1) is noise


def test_batches_can_be_cut_and_moved() -> None:
    (batch,) = evaluation_batches(Noise(6), PREPROCESSING, 6)
    part = batch.slice(2, 5)
    assert part.ids.tolist() == [2, 3, 4] and len(part) == 3
    assert torch.equal(part.images, batch.images[2:5])
    moved = batch.to("meta")
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert_equal([batch.to(torch.device("cpu"))], [batch])


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(VitkitError, match="no images"):
        train_loader(Noise(0))
    with pytest.raises(VitkitError, match="batch_size"):
        train_loader(Noise(5), batch_size=0)
    with pytest.raises(VitkitError, match="workers"):
        train_loader(Noise(5), workers=-1)
    with pytest.raises(VitkitError, match="bad_quota"):
        train_loader(Noise(5), quota=1.5)
    with pytest.raises(VitkitError, match="batch_size"):
        list(evaluation_batches(Noise(5), PREPROCESSING, 0))
