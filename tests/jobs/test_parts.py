"""Features and predictions in files: whole parts, continued after a kill, the same rows on a cluster."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from PIL import Image
from safetensors.torch import load_file, save_file

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.fewshot import class_folders
from tests.helpers.guard import watch_files
from tests.helpers.refusals import refused
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.data.sources import open_data
from vitkit.data.transforms import preprocess
from vitkit.jobs import parts
from vitkit.jobs.predict import open_rows
from vitkit.weights.model_card import card_of, preprocessing_of

IMAGES = 23


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 6)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in two folders, one of which is no image."""
    root = class_folders(tmp_path_factory.mktemp("photos"), {"cats": 11, "dogs": 12})
    (root / "cats" / "07.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    return vitkit.save_model(made, tmp_path_factory.mktemp("model") / "model")


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: Path, model: Path) -> Path:
    """Work in a folder that holds copies of the images and of the model."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(photos, "photos")
    shutil.copytree(model, "model")
    return tmp_path


def rows(folder: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return table


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_features_are_those_of_the_model(photos: Path, model: Path, tmp_path: Path) -> None:
    made = vitkit.embed(model, photos, tmp_path / "features", batch_size=3)
    assert (made.images, made.width, made.continued) == (IMAGES, 16, 0)
    assert list(made.rejects) == ["cats/07.png"]
    files = sorted(path.name for path in made.out.glob("*.parquet"))
    assert files == [f"part-{number:05d}.parquet" for number in range(4)]
    table = {row["image"]: row for row in rows(made.out)}
    assert [name for name in table if "cats" in name][:2] == ["cats/00.png", "cats/01.png"]
    assert len(table) == IMAGES
    (bad,) = [row for row in table.values() if row["error"]]
    assert bad["features"] is None and bad["error"] == made.rejects["cats/07.png"]
    loaded = vitkit.load_model(model).eval()
    with Image.open(photos / "dogs" / "04.png") as image:
        pixels = preprocess(np.asarray(image), preprocessing_of(loaded))
    with torch.inference_mode():
        expected = loaded.features(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(table["dogs/04.png"]["features"], expected, rtol=1e-4, atol=1e-5)


def test_features_in_one_file(photos: Path, model: Path, tmp_path: Path) -> None:
    several = vitkit.embed(model, photos, tmp_path / "several", batch_size=3)
    table = rows(several.out)
    assert rows(vitkit.embed(model, photos, tmp_path / "all.parquet", batch_size=3).out) == table
    single = vitkit.embed(model, photos, tmp_path / "all.npy", batch_size=3)
    array = np.load(single.out)
    assert array.shape == (IMAGES, 16) and array.dtype == np.float32
    for row, features in zip(table, array, strict=True):
        assert np.isnan(features).all() if row["error"] else features.tolist() == row["features"]
    assert single.names is not None
    lines = single.names.read_text().splitlines()
    assert lines[0] == "image,split,error"
    assert [line.split(",")[0] for line in lines[1:]] == [row["image"] for row in table]
    (tmp_path / "mine.names.csv").write_text("not ours")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"all.parquet", "all.names.csv", "all.npy", "mine.names.csv", "several"}
    for out, there in (("all.parquet", "parquet"), ("all.npy", "npy"), ("mine.npy", r"mine\.names\.csv")):
        refused(rf"{there} is there already", vitkit.embed, model, photos, tmp_path / out)
    assert (tmp_path / "mine.names.csv").read_text() == "not ours"


def test_a_part_that_is_not_as_written_is_computed_again(photos: Path, model: Path, tmp_path: Path) -> None:
    out = vitkit.embed(model, photos, tmp_path / "features", batch_size=3).out
    path, record = out / "part-00001.parquet", out / "_parts.json"
    whole, facts, table = path.read_bytes(), json.loads(record.read_bytes()), pq.read_table(path)
    place = whole.index(np.float32(table["features"][0].as_py()[0]).tobytes()) + 3
    times = {name: (out / name).stat().st_mtime_ns for name in ("part-00000.parquet", "part-00003.parquet")}

    def with_its_checksum(other: pa.Table) -> None:
        pq.write_table(other, path)
        size, digest = path.stat().st_size, xxhash.xxh3_128_hexdigest(path.read_bytes())
        finished = {**facts["finished"], path.name: {"bytes": size, "xxh3_128": digest}}
        record.write_text(json.dumps({**facts, "finished": finished}))

    def put_a_pipe() -> None:
        path.unlink()
        os.mkfifo(path)

    flipped = whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :]
    damages: tuple[Callable[[], object], ...] = (
        path.unlink,
        lambda: path.write_bytes(whole[:100]),
        lambda: path.write_bytes(flipped),
        lambda: pq.write_table(table.slice(0, 1).take([0] * len(table)), path),
        lambda: with_its_checksum(table.rename_columns(["image", "split", "classes", "error"])),
        lambda: with_its_checksum(table.slice(0, 2)),
        put_a_pipe,
        lambda: os.truncate(path, 6 << 30),
    )
    for number, damage in enumerate(damages):
        damage()
        assert vitkit.embed(model, photos, out, batch_size=3).continued == 3, number
        assert path.read_bytes() == whole and json.loads(record.read_bytes()) == facts, number
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times
    record.write_text(json.dumps({**facts, "finished": {}}))
    assert vitkit.embed(model, photos, out, batch_size=3).continued == 0
    assert path.read_bytes() == whole and json.loads(record.read_bytes()) == facts


@pytest.mark.usefixtures("working")
def test_a_record_of_other_numbers_of_rows_is_refused(cli: Cli) -> None:
    arguments = ["predict", "model", "photos", "--out", "out", "--batch-size", "3"]
    cli(arguments, 1)  # one image cannot be read
    record = Path("out/_parts.json")
    facts = json.loads(record.read_text())
    for edit in ({"rows": -1}, {"part_rows": 0}, {"rows": 10**15, "part_rows": 1}):
        record.write_text(json.dumps({**facts, **edit}))
        before = contents(Path("out"))
        numbers = {"rows": IMAGES, "part_rows": 6, **edit}
        said = f"out holds another table:\n  {numbers['rows']:,} rows in parts of {numbers['part_rows']}\n"
        assert said in cli(arguments, 1).err and contents(Path("out")) == before


def test_another_model_and_other_images_are_refused(photos: Path, model: Path, tmp_path: Path) -> None:
    out = vitkit.embed(model, photos, tmp_path / "features", batch_size=3).out
    before = contents(out)
    other = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    vitkit.save_model(other, tmp_path / "other")
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "dogs" / "04.png").unlink()
    for data, start, size, word in (
        (photos, tmp_path / "other", 3, "another model"),
        (fewer, model, 3, "other images"),
        (photos, tmp_path / "other", 4, "another model\n  batch_size 3"),
    ):
        with pytest.raises(vitkit.VitkitError, match=rf"holds another table:\n  {word}\nGive another out"):
            vitkit.embed(start, data, out, batch_size=size)
    assert contents(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    refused("is there already and holds no table", vitkit.embed, model, photos, tmp_path / "mine")
    config: Any = vitkit.model_config("ViT-16x1x2/4", num_classes=0, image_size=8)
    vitkit.save_model(vitkit.build_model(replace(config, pool="none")), tmp_path / "unpooled")
    refused("has no pooling", vitkit.embed, tmp_path / "unpooled", photos, tmp_path / "out")


def test_folders_of_features_and_predictions_are_no_images(
    working: Path, model: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(working / "photos")
    cli(["embed", str(model), ".", "--batch-size", "3"])
    cli(["predict", str(model), ".", "--out", "cats/named", "--batch-size", "3"], 1)  # one cannot be read
    labelled = open_data(".", Splits(0, 0))
    assert labelled.class_names == ("cats", "dogs") and len(labelled.splits["train"]) == IMAGES
    assert labelled.notes == (
        "2 folders of features or predictions ignored: cats/named/, features/images-model/.",
    )
    monkeypatch.setattr(parts, "PART_ROWS", 600)
    assert run(["embed", str(model), "digits", "--out", "digits.npy"]) == 0
    assert np.load("digits.npy").shape == (1797, 16)


def test_images_that_were_mended_are_read_again(working: Path, cli: Cli) -> None:
    mended = Path("photos/cats/07.png")
    for name in ("features", "all.npy"):
        mended.write_bytes(b"no image")
        arguments = ["embed", "model", "photos", "--out", name, "--batch-size", "3"]
        said = re.search(r"To read them again, mend them, remove (.+) and give", cli(arguments).out)
        assert said is not None
        for path in said[1].split(", "):
            Path(path).unlink()
        shutil.copy("photos/cats/09.png", mended)
        assert "could not be read" not in cli(arguments).out


def test_predictions_in_files_are_the_predictor_s(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ["photos/cats", "photos/dogs"]
    arguments = ["predict", "model", *images, "--out", "out", "--batch-size", "3", "--top", "2"]
    assert run(arguments) == 1  # one image cannot be read
    table, predictor = rows(Path("out")), vitkit.Predictor("model")
    assert len({row["image"] for row in table}) == IMAGES
    for row in table:
        if row["error"]:
            assert row["image"].endswith("07.png") and row["classes"] == []
            continue
        guesses = predictor(row["image"], top=2)
        assert row["classes"] == [guess.name for guess in guesses]
        np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in guesses], atol=1e-5)
    before = contents(Path("out"))
    Path("out/part-00002.parquet").unlink()
    assert run(arguments) == 1
    assert contents(Path("out")) == before
    # A process of a cluster, which works elsewhere, reads what is named from the folder of the command, and
    # takes the parts as the command has divided them.
    Path("out/part-00001.parquet").unlink()
    monkeypatch.chdir("/")
    monkeypatch.setattr(parts, "PART_ROWS", 600)
    worker = parts._Worker(
        str(working / "out"), partial(open_rows, "model", images, 2, None, 3, {}), str(working)
    )
    facts = json.loads(before["_parts.json"])["finished"]["part-00001.parquet"]
    assert worker({"part": 1}) == {"part": 1, **facts}
    assert contents(working / "out") == before


def save_in_shards(folder: Path, seed: int, names: tuple[str, ...] = ("a", "b", "c")) -> Path:
    """Save a model as Hugging Face does a large one, in two files of weights; returns the index of both."""
    generator = torch.Generator().manual_seed(seed)
    made = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8, generator=generator)
    made.card = replace(card_of(made), class_names=names)
    vitkit.save_model(made, folder, "huggingface")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    index = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in {*index.values()}:
        save_file({name: tensors[name] for name in tensors if index[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder / "model.safetensors.index.json"


def test_predictions_of_two_models_do_not_stand_in_one_folder(photos: Path, tmp_path: Path, cli: Cli) -> None:
    model = save_in_shards(tmp_path / "model", 0)
    other = save_in_shards(tmp_path / "other", 1)
    renamed = save_in_shards(tmp_path / "renamed", 0, ("x", "y", "z"))
    arguments = [str(photos), "--out", str(tmp_path / "out")]
    assert run(["predict", str(model), *arguments]) == 1  # one image cannot be read
    (model.parent / "training.json").write_text("{}")  # a file that decides nothing
    assert "1 part was there already" in cli(["predict", str(model), *arguments], 1).out
    shutil.copy(other.parent / "model-1.safetensors", model.parent)
    for path in (model, renamed):
        assert "out holds another table" in cli(["predict", str(path), *arguments], 1).err


COMMAND = """
import sys
from vitkit.jobs import parts
parts.PART_ROWS = 6
from vitkit.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_command_that_was_killed_goes_on(photos: Path, model: Path, tmp_path: Path) -> None:
    whole = vitkit.embed(model, photos, tmp_path / "whole", batch_size=3).out
    out = tmp_path / "killed"
    arguments = ["embed", str(model), str(photos), "--out", str(out), "--batch-size", "3"]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL)
    wait_until((out / "part-00001.parquet").exists, process)
    process.kill()
    process.wait()
    assert run(arguments) == 0
    for path in whole.glob("*.parquet"):
        assert pq.read_table(out / path.name).equals(pq.read_table(path))


@pytest.fixture
def sockets() -> Iterator[str]:
    """Make a folder for Ray's sockets and logs, in an environment that has Ray: scripts/test-ray."""
    pytest.importorskip("ray")
    # A socket's path has 107 characters at most, of which Ray takes 64, so that `tmp_path` is too long. Ray's
    # processes may still write while the folder is removed.
    with tempfile.TemporaryDirectory(prefix="", ignore_cleanup_errors=True) as folder:
        yield folder


def on_ray(sockets: str, *arguments: str) -> "subprocess.Popen[str]":
    """Begin a command on a cluster of this machine's two processors, which was started in another folder."""
    code = COMMAND.replace(
        "from vitkit.cli.main",
        "import os, ray; ray.init(num_cpus=2, include_dashboard=False, "
        f"log_to_driver=False, logging_level='error', _temp_dir={sockets!r})\n"
        f"os.chdir({str(Path.cwd())!r})\nfrom vitkit.cli.main",
    )
    # Without the watch over files: Ray's own are where Ray puts them.
    environment = {name: value for name, value in os.environ.items() if name != watch_files.OFFENCES}
    line = [sys.executable, "-c", code, *arguments, "--on", "ray", "--processes", "2"]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, env=environment, cwd=sockets, start_new_session=True, **options)


def actors() -> list[int]:
    """List the processes of the cluster that compute parts."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ray::" in path.read_bytes() and b"_Worker" in path.read_bytes():
                processes.append(int(path.parent.name))
    return processes


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[Any]") -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cluster_computes_the_same_rows_though_its_processes_and_the_command_are_killed(
    sockets: str, model: Path, tmp_path: Path
) -> None:
    """Three hundred parts, so that most are missing whenever a process is killed."""
    here = vitkit.embed(model, "digits", tmp_path / "here", batch_size=3).out
    there = tmp_path / "there"
    arguments = ("embed", str(model), "digits", "--out", str(there), "--batch-size", "3")
    process = on_ray(sockets, *arguments)
    wait_until(actors, process)
    for number in actors():  # Ray starts others
        os.kill(number, signal.SIGKILL)
    wait_until(lambda: "part-" in (there / "_parts.json").read_text(), process)  # one counts as finished
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 0 < len(list(there.glob("*.parquet"))) < 300
    process = on_ray(sockets, *arguments)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "there already" in out and "Traceback" not in err
    mine, theirs = pq.read_table(there), pq.read_table(here)
    assert mine.drop_columns("features").equals(theirs.drop_columns("features"))
    computed, expected = (np.array(table["features"].to_pylist()) for table in (mine, theirs))
    np.testing.assert_allclose(computed, expected, atol=1e-5)


def test_a_cluster_is_refused_without_ray(
    photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(r'pip install "vitkit\[ray\]"', vitkit.embed, model, photos, tmp_path / "out", on="ray")
    assert not (tmp_path / "out").exists()
