"""What killed processes left beside a destination is swept, and nothing else."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from vitkit.jobs.destination import beside


def leftover(name: str) -> Path:
    path = Path(name)
    path.mkdir()
    (path / "graph.bin").write_bytes(b"1")
    return path


def test_leftovers_of_dead_processes_are_swept_and_others_stay(tmp_path: Path) -> None:
    dead, alive, elsewhere, own = (
        leftover(f"{tmp_path}/{name}")
        for name in (".out.dead.unfinished", ".out.alive.unfinished", ".other.x.unfinished", ".out.backup")
    )
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # as another process holds it
    try:
        with beside(tmp_path / "out") as place:
            assert not dead.exists() and place.parent == tmp_path
            with beside(tmp_path / "out") as second:  # another one that works on the same
                assert place.exists() and second != place
    finally:
        os.close(lock)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(p.name for p in (alive, elsewhere, own))
    with beside(tmp_path / "out"):
        assert not alive.exists()


def test_a_folder_that_was_taken_before_it_was_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, made = tempfile.mkdtemp, list[str]()

    def mkdtemp(**arguments: str) -> str:
        made.append(whole(**arguments))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr("vitkit.jobs.destination.tempfile.mkdtemp", mkdtemp)
    with beside(tmp_path / "out") as place:
        assert str(place) == made[1] and place.is_dir()
    assert list(tmp_path.iterdir()) == []
