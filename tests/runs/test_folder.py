"""The folder of a run: who holds it, which one a run takes that was given none, and records of strangers."""

import fcntl
import hashlib
import json
import os
import signal
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.cli import Cli
from tests.helpers.noise_samples import PREPROCESSING, Noise
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.jobs.evaluate import keep_evaluation
from vitkit.jobs.fewshot import keep_fewshot
from vitkit.jobs.inspect import inspect
from vitkit.listener import SILENT
from vitkit.runs import folder as folders
from vitkit.runs.config import Run
from vitkit.runs.folder import (
    Owner,
    beside,
    claim,
    contents_of,
    kind_of,
    lock_folder,
    make_folder,
    numbered_folders,
    require_folder,
)
from vitkit.runs.trained_model import require_same_images, write_evaluation

RUN = Run(model="ViT-16x1x1/2")
enter = ExitStack().enter_context


class Hanging(Noise):
    """Images of a disk that does not answer: a worker says that it has begun to read one, and waits."""

    def __init__(self, begun: int) -> None:
        super().__init__(1)
        self.begun = begun

    def decode(self, index: int) -> NDArray[np.uint8]:
        os.write(self.begun, f"{os.getpid()}\n".encode())
        time.sleep(60)
        raise AssertionError


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_the_lock_ends_with_its_process_though_a_worker_lives_on(tmp_path: Path) -> None:
    pipe, begun = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            with lock_folder(tmp_path / "series"), lock_folder(tmp_path / "series" / "seed-0"):
                next(evaluation_batches(Hanging(begun), PREPROCESSING, 1, workers=1))
        finally:
            os._exit(1)
    os.close(begun)
    with os.fdopen(pipe) as lines:
        worker = int(lines.readline())
        try:
            refused("Another process", enter, lock_folder(tmp_path / "series"))
            os.kill(parent, signal.SIGKILL)
            os.waitpid(parent, 0)
            for folder in (tmp_path / "series", tmp_path / "series" / "seed-0"):
                with lock_folder(folder):
                    os.kill(worker, 0)  # it is there still
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_was_forked_leaves_the_lock_to_its_parent(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        with (tmp_path / ".lock").open("w") as file, pytest.raises(BlockingIOError):  # as earlier versions do
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        child = os.fork()
        if not child:
            with pytest.raises(VitkitError), lock_folder(tmp_path):
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        refused("Another process", enter, lock_folder(tmp_path))
    with lock_folder(tmp_path):
        pass


def test_a_folder_that_was_moved_is_not_the_one_that_is_locked(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with lock_folder(run):
        folders.require_locked(run)
        run.rename(tmp_path / "moved")
        refused("was moved, renamed or removed", folders.require_locked, run)
        run.mkdir()
        (run / ".lock").touch()  # of another run, which began there
        refused("was moved, renamed or removed", folders.require_locked, run)
        folders.require_locked(tmp_path / "moved")


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "elsewhere")
    refused("found a link", enter, lock_folder(tmp_path / "run"))
    assert not (tmp_path / "elsewhere").exists()
    (tmp_path / "run" / ".lock").unlink()
    os.mkfifo(tmp_path / "run" / ".lock")
    refused("found a pipe", enter, lock_folder(tmp_path / "run"))


def claimed(*begun: str, ending: str = "", given: Path | None = None) -> AbstractContextManager[Path]:
    """Claim a folder below `runs/` for the run, of which those named hold it already."""

    owner = Owner("run", "config.json", lambda folder: [] if folder.name in begun else ["another's"])
    return claim(owner, given, lambda: numbered_folders("digits", RUN.model, ending))


def fill(*names: str) -> None:
    for name in names:
        folder = Path("runs") / name
        folder.mkdir(parents=True)
        (folder / "config.json").touch()


def test_a_run_takes_the_folder_that_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second, third, fourth = (f"digits-ViT-16x1x1-2{end}" for end in ("", "-2", "-3", "-4"))
    with claimed() as folder:
        assert folder == Path("runs") / first
        refused("Another process is at work", enter, claimed(first, given=folder))
    fill(second, third)  # the first is empty: its run was refused, say
    with claimed(second, third) as folder:
        assert folder.name == second
        with claimed(second, third) as other:
            assert other.name == third
            with claimed(second, third) as new:
                assert new.name == first
                with claimed(second, third) as last:
                    assert last.name == fourth
    with claimed(ending="-sweep") as folder:
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
    with claimed() as folder:
        assert folder.name == "digits-ViT-16x1x1-2-2"


def test_a_new_folder_holds_nothing_but_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / ".lock").touch()
    assert not folders.is_new_folder(tmp_path) and not folders.is_new_folder(tmp_path / "file")
    assert not folders.is_new_folder(tmp_path / "link")
    assert folders.is_new_folder(tmp_path / "none") and folders.is_new_folder(tmp_path / "hidden")


def test_a_folder_with_links_out_is_not_written_to_and_no_evaluation_is_lost(tmp_path: Path) -> None:
    mine, given = tmp_path / "mine", tmp_path / "given"
    mine.mkdir()
    given.mkdir()
    for name in ("checkpoints", "evaluation", "metrics.jsonl", "rate-0.01"):
        (given / name).symlink_to(mine)
        refused(f"{name} is a link that leads out", enter, lock_folder(given))
        refused(f"{name} is a link that leads out", write_evaluation, given, "test", None, None)
        (given / name).unlink()
    (given / "config.json").write_text('{"run": {}}')
    for name in ("model.safetensors", "model.json"):
        (given / name).touch()
    for name in ("inspect", "evaluation", "fewshot"):
        (given / name).symlink_to(mine)
    refused("inspect is a link that leads out", inspect, given)
    heard = Hearing()
    evaluation: Any = SimpleNamespace(split="test", result=None, predictions=None, model=kind_of(given))
    evaluation.trained_on = evaluation.as_saved = True
    assert keep_evaluation(evaluation, heard) is None
    (given / "inspect").unlink()
    assert keep_evaluation(evaluation, heard) is None
    assert any("evaluation is a link that leads out" in note for note in heard.notes)
    (given / "evaluation").unlink()
    models = [SimpleNamespace(start=given, name="a", scores=())]
    few: Any = SimpleNamespace(data_name="photos", models=models)
    assert keep_fewshot(few, listener=heard) == []
    assert "fewshot is a link that leads out" in heard.notes[-1]
    assert not list(mine.iterdir())


def test_a_model_of_any_name_makes_one_folder() -> None:
    assert next(numbered_folders("digits", "../..\0/\nViT/16")) == Path("runs/digits-..-..---ViT-16")


NPY = b"\x93NUMPY\x01\x00"


def npy(header: str, content: bytes = b"") -> bytes:
    padded = header.ljust(117) + "\n"
    return NPY + len(padded).to_bytes(2, "little") + padded.encode() + content


def test_states_of_images_that_are_none_are_refused(tmp_path: Path) -> None:
    """With the hash of them in data.json, as somebody who made them up would have it."""
    for number in range(4):
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    data = open_data(str(tmp_path), Splits(0, 0))
    given = (tmp_path, data, "", "time", SILENT)
    for _ in range(2):
        require_same_images(*given)
    record = json.loads((tmp_path / "data.json").read_text())
    for content in (
        b"",
        NPY,
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000, 2)}"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2,)}", bytes(16)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 2)}", bytes(16)),
    ):
        (tmp_path / "image-files.npy").write_bytes(content)
        record["image_files"] = hashlib.sha256(content).hexdigest()
        (tmp_path / "data.json").write_text(json.dumps(record))
        refused(r"image-files\.npy.*is missing or damaged", require_same_images, *given)


def test_a_path_is_one_kind_of_thing(tmp_path: Path) -> None:
    def folder(name: str, **files: str) -> Path:
        (tmp_path / name).mkdir()
        for end, content in files.items():
            (tmp_path / name / end.replace("_", ".")).write_text(content)
        return tmp_path / name

    run, weights = '{"run": {}}', {"model_safetensors": "", "model_json": "{}"}
    expected: dict[str | Path, str] = {
        folder("run", config_json=run, **weights): "run",
        folder("going", config_json=run, model_safetensors=""): "unfinished run",
        folder("series", series_json="{}", **weights): "series",
        folder("export", engine_json="{}"): "exported model",
        folder("other-library", config_json='{"model_type": "vit"}', model_safetensors=""): "checkpoint",
        folder("damaged", config_json="{"): "checkpoint",
        folder("empty"): "checkpoint",
        tmp_path / "run" / "model.safetensors": "checkpoint",
        tmp_path / "none": "nothing",
        Path("x" * 5000): "nothing",
        "hf:org/name": "address",
        "https://example.org/a.npz": "address",
        "vit-b16-in21k": "address",
    }
    assert {path: kind_of(path).kind for path in expected} == expected
    assert [path.name for path in map(Path, expected) if kind_of(path).config] == ["run", "going"]


CONTENTS: dict[str, list[list[str]]] = {
    "images": [
        ["cats/1.jpg", "dogs/2.PNG"],
        ["train/cats/1.jpg", "test/cats/2.jpg", "labels.json"],
        ["part-0.parquet"],
        ["data/part-0.parquet"],
        ["train800.txt", "images/1.jpg"],
        ["cats/p7/array.npy"],
    ],
    "weights": [
        ["model.safetensors", "model.json"],
        ["ViT-B_16.npz"],
        ["config.json", "checkpoints/step-10", "inspect/filters.png", "evaluation/examples.png"],
        ["model.safetensors", "README.md", "assets/teaser.png"],
    ],
    "both": [
        ["pytorch_model.bin", "cats/1.jpg", "dogs/1.jpg"],
        ["config.json", "train/cats/1.jpg", "train/dogs/1.jpg"],
    ],
    "nothing": [["readme.txt", ".hidden/1.jpg"], []],
}


def test_a_folder_holds_weights_or_images(tmp_path: Path) -> None:
    for contents, of_kind in CONTENTS.items():
        for number, files in enumerate(of_kind):
            folder = tmp_path / contents / str(number)
            folder.mkdir(parents=True)
            for name in files:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(json.dumps({"run": {}}) if name == "config.json" else "")
            assert contents_of(kind_of(folder)) == contents, files


def test_names_and_files_are_weights_or_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("table.csv", "weights.npz"):
        Path(name).write_text("")
    Path("round").mkdir()
    Path("round/again").symlink_to("../round")
    expected = {
        "digits": "images",
        "table.csv": "images",
        "missing.parquet": "images",  # who reads it says that it is not there
        "weights.npz": "weights",
        "vit-b16-in21k": "weights",
        "hf:org/name": "weights",
        "round": "nothing",
        "nowhere": "nothing",
    }
    assert {name: contents_of(kind_of(name)) for name in expected} == expected
    Path("vit-b16-in21k").mkdir()  # goes before the published checkpoint of that name
    assert kind_of("vit-b16-in21k").kind == "checkpoint"


# Where results are written, and what killed processes left there

COMMANDS = (
    ["train", "--recipe", "digits"],
    ["finetune", "nothing", "--data", "digits"],
    ["train", "--recipe", "digits", "--runs", "2"],
    ["inspect", "afile"],
    ["fewshot", "afile", "--data", "digits"],
    ["bench", "ViT-16x1x1/4"],
    ["vtab", "afile", "--root", "."],
)


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_file_is_no_folder(cli: Cli) -> None:
    Path("afile").write_text("mine")
    messages = {
        "afile": "afile is a file: --out names a folder.",
        "afile/below": "afile/below would be in afile, which is a file: --out names a folder.",
    }
    for arguments in COMMANDS:
        for out, message in messages.items():
            error = cli([*arguments, "--out", out], 1).err
            assert message in error and "Not a directory" not in error and "is kept" not in error
    assert Path("afile").read_text() == "mine" and [*map(str, Path().iterdir())] == ["afile"]


def test_a_file_is_no_run(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "model.safetensors").touch()
    for arguments in (["train", "--resume"], ["report"]):
        for given in (f"{tmp_path}/model.safetensors", f"{tmp_path}/model.safetensors/below"):
            said = f"{given} is a file, or would be in one: expected the folder of a run"
            assert said in cli([*arguments, given], 1).err


def test_a_place_that_takes_no_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("No folder can be made at /dev/null/x", make_folder, Path("/dev/null/x"))
    monkeypatch.setattr(os, "access", lambda place, mode: False)  # as of a user who may not
    refused(r"This user may not write to .*, and so not to", require_folder, tmp_path / "a" / "b")
    refused("This user may not write to", enter, beside(tmp_path / "out"))


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
