"""The device, and the memory that the machine still gives, from files of the system as Linux writes them."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitkit.runs.machine import available_memory, deterministic, find_device

GIB = 2**30


def system(root: Path, files: dict[str, str]) -> Path:
    files = {"proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {8 * GIB // 1024} kB\n"} | files
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_memory_of_this_machine_is_known() -> None:
    found = available_memory()
    assert found is not None and found > 2**20


def test_memory_without_control_groups(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, {"proc/self/cgroup": "0::/\n"})) == 8 * GIB


@pytest.mark.parametrize("path", ["/", "/job/step"])
def test_memory_below_the_limit_of_a_group_of_version_2(tmp_path: Path, path: str) -> None:
    folder = "sys/fs/cgroup" + path.rstrip("/")
    files = {
        "proc/self/cgroup": f"0::{path}\n",
        f"{folder}/memory.max": f"{3 * GIB}\n",
        f"{folder}/memory.current": f"{2 * GIB}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {GIB // 2}\n",
    }
    assert available_memory(system(tmp_path, files)) == GIB + GIB // 2


def test_memory_below_the_limit_of_a_group_above(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
        "sys/fs/cgroup/job/step/memory.current": "1\n",
        "sys/fs/cgroup/job/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/job/memory.current": f"{3 * GIB}\n",
    }
    assert available_memory(system(tmp_path, files)) == 0


def test_memory_below_the_limit_of_a_group_of_version_1(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "4:cpu,memory:/job\n3:cpuset:/\n0::/\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    assert available_memory(system(tmp_path, files)) == GIB


def test_finding_a_device_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch, "empty", lambda *arguments, **options: None)  # as if the GPU were there
    assert find_device("cuda") == torch.device("cuda")
    assert not torch.are_deterministic_algorithms_enabled()
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize("before", [None, ":16:8"])
def test_kernels_are_deterministic_while_a_run_lasts(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if before is not None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", before)
    with deterministic(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(KeyboardInterrupt), deterministic(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (before or ":4096:8")
        raise KeyboardInterrupt
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == before


ROUNDS = """
import ctypes, resource, sys
from vitkit.runs.machine import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
blocks = (ctypes.c_void_p * 128)()
for number in range(6):  # it takes a few until nothing more is asked for
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for place in range(128):  # of 1 MiB each; nothing of Python's may lie above them
        blocks[place] = libc.malloc(2**20)
        libc.memset(blocks[place], 1, 2**20)
    for place in reversed(range(128)):  # the last first, so that the end of the heap is free
        libc.free(blocks[place])
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
@pytest.mark.parametrize("variable", [None, "MALLOC_TRIM_THRESHOLD_"])
def test_freed_memory_is_kept_unless_the_user_chose(variable: str | None) -> None:
    """The system clears next to no pages in a later round of 128 MiB, or most of them."""
    own = {} if variable is None else {variable: str(2**20)}

    def pages_cleared(word: str) -> int:
        command = [sys.executable, "-c", ROUNDS, word]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **own}
        return int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)

    given_back, found = pages_cleared("leave"), pages_cleared("keep")
    assert given_back > 1000  # a page has 4 KiB, or is a huge one
    assert found > 1000 if variable else found < given_back / 10
