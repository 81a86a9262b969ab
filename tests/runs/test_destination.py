"""Where results are written: a place that cannot be one is refused, and leftovers of killed processes go."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from vitkit.cli.main import run
from vitkit.errors import VitkitError
from vitkit.runs.folder import beside, make_folder, require_folder

COMMANDS = (
    ["train", "--recipe", "digits"],
    ["finetune", "nothing", "--data", "digits"],
    ["train", "--recipe", "digits", "--runs", "2"],
    ["inspect", "afile"],
    ["fewshot", "afile", "--data", "digits"],
    ["bench", "ViT-16x1x1/4"],
    ["vtab", "afile", "--root", "."],
)


def test_a_file_is_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("afile").write_text("mine")
    messages = {
        "afile": "afile is a file: --out names a folder.",
        "afile/below": "afile/below would be in afile, which is a file: --out names a folder.",
    }
    for arguments in COMMANDS:
        for out, message in messages.items():
            assert run([*arguments, "--out", out]) == 1
            error = capsys.readouterr().err
            assert message in error and "Not a directory" not in error and "is kept" not in error
    assert Path("afile").read_text() == "mine" and [*map(str, Path().iterdir())] == ["afile"]


def test_a_file_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.safetensors").touch()
    for arguments in (["train", "--resume"], ["report"]):
        for given in (f"{tmp_path}/model.safetensors", f"{tmp_path}/model.safetensors/below"):
            assert run([*arguments, given]) == 1
            said = f"{given} is a file, or would be in one: expected the folder of a run"
            assert said in capsys.readouterr().err


def test_a_place_that_takes_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VitkitError, match="No folder can be made at /dev/null/x"):
        make_folder(Path("/dev/null/x"))
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # as of a user who may not
    with pytest.raises(VitkitError, match=r"This user may not write to .*, and so not to"):
        require_folder(tmp_path / "a" / "b")
    with pytest.raises(VitkitError, match="This user may not write to"), beside(tmp_path / "out"):
        pass


def test_what_was_finished_is_promised_only_where_work_was_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, promised in ((30, False), (28, True)):  # read-only file system; disk full

        def fail(*_: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number), str(tmp_path))

        monkeypatch.setattr("vitkit.cli.verbs.STARTS.main", fail)
        assert run(["starts"]) == 1
        error = capsys.readouterr().err
        assert ("What was finished before is kept" in error) == promised
        assert "run the same command again" in error


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

    monkeypatch.setattr("vitkit.runs.folder.tempfile.mkdtemp", mkdtemp)
    with beside(tmp_path / "out") as place:
        assert str(place) == made[1] and place.is_dir()
    assert list(tmp_path.iterdir()) == []
