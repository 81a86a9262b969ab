"""`vitkit serve` as a process: without PyTorch, with several processes, and stopped by SIGTERM under load."""

import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.engines.models import exported as exported
from tests.helpers.without_torch import environment_without_torch
from tests.jobs.serving.live import send
from vitkit.engines import folder, golden

STOPPED = re.compile(r"Stopped\. ([\d,]+) requests? answered, ([\d,]+) images? computed, 0 sent away")


@pytest.fixture
def bundle(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle whose golden set was made by the engine that stands for ONNX Runtime in these tests."""
    monkeypatch.setattr(folder, "version", lambda name: "1.0")
    model, record = folder.serve_folder(exported, 1)
    (exported / "engine.json").unlink()
    shutil.rmtree(exported / folder.GOLDEN)
    golden.write_golden(exported, golden.make_golden_files(3), model, "float32", False)
    folder.write_description(exported, model, "onnxruntime", "float32", record.agreement, None)
    return exported


@contextmanager
def served(bundle: Path, tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Serve a bundle by the command line, where PyTorch cannot be imported."""
    environment = environment_without_torch(tmp_path, tmp_path / "packages")
    command = [sys.executable, "-m", "vitkit", "serve", str(bundle), "--port", "0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            line = ""
            while not (address := re.search(r"http://127\.0\.0\.1:(\d+)", line)):
                line = process.stderr.readline()
                assert line, process.wait()
            yield process, int(address[1])
        finally:
            process.kill()


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_term_under_load_loses_nothing_that_was_accepted(
    bundle: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    content = (tmp_path / "image.png").read_bytes()
    with served(bundle, tmp_path, *options) as (process, port):
        statuses = list[int]()

        def keep_asking() -> None:
            with suppress(OSError, http.client.HTTPException):  # nothing is accepted any more
                while True:
                    statuses.append(send(port, "POST", "/predict", content).status)

        threads = [threading.Thread(target=keep_asking) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(statuses) < 20:
            assert any(thread.is_alive() for thread in threads)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
        for thread in threads:
            thread.join(60)
    assert process.returncode == 0 and {*statuses} == {200}
    stopped = STOPPED.search(printed)  # the server's own count: all that it answered has arrived
    assert stopped and [int(number.replace(",", "")) for number in stopped.groups()] == [len(statuses)] * 2


def test_a_process_that_is_killed_is_replaced(bundle: Path, tmp_path: Path) -> None:
    content = (tmp_path / "image.png").read_bytes()
    with served(bundle, tmp_path, "--processes", "2") as (process, port):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        workers = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 2
        for worker in workers:
            os.kill(int(worker), signal.SIGKILL)
        assert send(port, "POST", "/predict", content).status == 200  # it waits for a process to accept it
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_bundle_that_cannot_be_served_is_said_once(bundle: Path, tmp_path: Path) -> None:
    (bundle / "graph.onnx").write_bytes(b"another")
    command = [sys.executable, "-m", "vitkit", "serve", str(bundle), "--port", "0", "--processes", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.count("was damaged or replaced") == 1
    assert "Traceback" not in done.stderr
