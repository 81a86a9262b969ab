"""The folder of a run: who holds it, and which one a run takes that was given none."""

import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vitkit.data.workers import Reading, Result, compute_ahead
from vitkit.errors import VitkitError
from vitkit.jobs.run_config import Run
from vitkit.jobs.run_folder import claim_run_folder, is_new_folder, lock_run_folder

RUN = Run(model="ViT-16x1x1/2")


class Hanging:
    """Work that never ends: a worker says that it has begun, and waits for a disk that does not answer."""

    def __init__(self, begun: int) -> None:
        self.begun = begun

    def compute(self, number: int, reading: Reading) -> Result:
        os.write(self.begun, f"{os.getpid()}\n".encode())
        time.sleep(60)
        raise AssertionError

    def key(self, sample: int) -> str:
        return str(sample)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_lock_ends_with_its_process_though_a_worker_lives_on(tmp_path: Path) -> None:
    pipe, begun = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            with lock_run_folder(tmp_path / "series"), lock_run_folder(tmp_path / "series" / "seed-0"):
                next(compute_ahead(Hanging(begun), range(1), 1, 0))
        finally:
            os._exit(1)
    os.close(begun)
    with os.fdopen(pipe) as lines:
        worker = int(lines.readline())
        try:
            with pytest.raises(VitkitError, match="Another process"), lock_run_folder(tmp_path / "series"):
                pass
            os.kill(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
            for folder in (tmp_path / "series", tmp_path / "series" / "seed-0"):
                with lock_run_folder(folder):
                    os.kill(worker, 0)  # it is there still
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_was_forked_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    with lock_run_folder(tmp_path):
        child = os.fork()
        if not child:
            with pytest.raises(VitkitError), lock_run_folder(tmp_path):
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(VitkitError, match="Another process"), lock_run_folder(tmp_path):
            pass
    with lock_run_folder(tmp_path):
        pass


def test_an_earlier_version_respects_the_lock(tmp_path: Path) -> None:
    with lock_run_folder(tmp_path), (tmp_path / ".lock").open("w") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VitkitError, match="found a link"), lock_run_folder(tmp_path / "run"):
        pass
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "run" / ".lock").unlink()
    os.mkfifo(tmp_path / "run" / ".lock")
    with pytest.raises(VitkitError, match="found a pipe"), lock_run_folder(tmp_path / "run"):
        pass


def begun(*names: str) -> Callable[[Path], bool]:
    return lambda folder: folder.name in names


def fill(*names: str) -> None:
    for name in names:
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "config.json").touch()


def test_a_run_takes_the_folder_that_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third, fourth = (f"digits-ViT-16x1x1-2{end}" for end in ("", "-2", "-3", "-4"))
    with claim_run_folder(RUN, "digits", begun()) as folder:
        assert folder == Path("runs") / first
    fill(second, third)  # the first is empty: its run was refused, say
    with claim_run_folder(RUN, "digits", begun(second, third)) as folder:
        assert folder.name == second
        with claim_run_folder(RUN, "digits", begun(second, third)) as other:
            assert other.name == third
            with claim_run_folder(RUN, "digits", begun(second, third)) as new:
                assert new.name == first
                with claim_run_folder(RUN, "digits", begun(second, third)) as last:
                    assert last.name == fourth
    with claim_run_folder(RUN, "digits", begun(), "-sweep") as folder:
        assert folder.name == f"{first}-sweep"


def test_a_folder_that_is_taken_before_it_is_locked_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flock = fcntl.flock

    def slow(descriptor: int, operation: int) -> None:
        """Lock after another process has begun a run there, and ended."""
        monkeypatch.setattr(fcntl, "flock", flock)
        (Path("runs") / "digits-ViT-16x1x1-2" / "config.json").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", slow)
    with claim_run_folder(RUN, "digits", begun()) as folder:
        assert folder.name == "digits-ViT-16x1x1-2-2"


def test_runs_that_begin_together_take_different_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    together, taken = threading.Barrier(4), []

    def claim() -> None:
        together.wait()
        with claim_run_folder(RUN, "digits", begun()) as folder:
            taken.append(folder.name)
            together.wait()

    threads = [threading.Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [f"digits-ViT-16x1x1-2{end}" for end in ("", "-2", "-3", "-4")]


def test_a_new_folder_holds_nothing_but_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".lock").touch()
    assert not is_new_folder(tmp_path) and not is_new_folder(tmp_path / "file")
    assert not is_new_folder(tmp_path / "link")
    assert is_new_folder(tmp_path / "none") and is_new_folder(tmp_path / "hidden")
