"""Features and predictions in files: whole parts, continued after a kill, the same rows on a cluster."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitkit
from tests.helpers.guard import watch_files
from vitkit.cli.main import run
from vitkit.errors import VitkitError
from vitkit.jobs import parts

IMAGES = 23


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 6)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in two folders, one of which is no image."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for number in range(IMAGES):
        path = root / ("cats" if number % 2 else "dogs") / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (9, 8, 3), dtype=np.uint8)).save(path)
    (root / "cats" / "07.png").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    path = tmp_path_factory.mktemp("model") / "model"
    vitkit.save_model(made, path)
    return path


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder).to_pylist()
    return found


def test_features_are_those_of_the_model(photos: Path, model: Path, tmp_path: Path) -> None:
    found = vitkit.embed(photos, model, tmp_path / "features", batch_size=3)
    assert (found.images, found.width, found.continued) == (IMAGES, 16, 0)
    assert list(found.rejects) == ["cats/07.png"]
    files = sorted(path.name for path in found.out.glob("*.parquet"))
    assert files == [f"part-{number:05d}.parquet" for number in range(4)]
    table = rows(found.out)
    assert [row["image"] for row in table if "cats" in row["image"]][:2] == ["cats/01.png", "cats/03.png"]
    assert len({row["image"] for row in table}) == IMAGES
    bad = next(row for row in table if row["error"])
    assert bad["features"] is None and bad["error"] == found.rejects["cats/07.png"]
    import torch

    from vitkit.data.transforms import preprocess
    from vitkit.weights.card import preprocessing_of

    loaded = vitkit.load_model(model).eval()
    good = next(row for row in table if row["image"] == "dogs/04.png")
    with Image.open(photos / "dogs" / "04.png") as image:
        pixels = preprocess(np.asarray(image), preprocessing_of(loaded))
    with torch.inference_mode():
        expected = loaded.features(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]
    np.testing.assert_allclose(good["features"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["all.parquet", "all.npy"])
def test_features_in_one_file(photos: Path, model: Path, tmp_path: Path, name: str) -> None:
    several = vitkit.embed(photos, model, tmp_path / "several", batch_size=3)
    single = vitkit.embed(photos, model, tmp_path / name, batch_size=3)
    table = rows(several.out)
    left = sorted(path.name for path in tmp_path.iterdir())
    if name == "all.parquet":
        assert rows(single.out) == table and left == ["all.parquet", "several"]
    else:
        array = np.load(single.out)
        assert array.shape == (IMAGES, 16) and array.dtype == np.float32
        for row, features in zip(table, array, strict=True):
            if row["error"]:
                assert np.isnan(features).all()
            else:
                assert features.tolist() == row["features"]
        assert single.names is not None
        lines = single.names.read_text().splitlines()
        assert lines[0] == "image,split,error" and len(lines) == IMAGES + 1
        assert [line.split(",")[0] for line in lines[1:]] == [row["image"] for row in table]
        assert left == ["all.names.csv", "all.npy", "several"]
    with pytest.raises(VitkitError, match="is there already"):
        vitkit.embed(photos, model, tmp_path / name)
    (tmp_path / "mine.names.csv").write_text("not ours")
    with pytest.raises(VitkitError, match=r"mine\.names\.csv is there already"):
        vitkit.embed(photos, model, tmp_path / "mine.npy")
    assert (tmp_path / "mine.names.csv").read_text() == "not ours"


def test_what_is_missing_or_damaged_is_computed_again(photos: Path, model: Path, tmp_path: Path) -> None:
    out = vitkit.embed(photos, model, tmp_path / "features", batch_size=3).out
    whole = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    (out / "part-00001.parquet").unlink()
    (out / "part-00002.parquet").write_bytes(whole["part-00002.parquet"][:100])
    times = {name: (out / name).stat().st_mtime_ns for name in ("part-00000.parquet", "part-00003.parquet")}
    assert vitkit.embed(photos, model, out, batch_size=3).continued == 2
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == whole
    assert {name: (out / name).stat().st_mtime_ns for name in times} == times


def test_another_model_and_other_images_are_refused(photos: Path, model: Path, tmp_path: Path) -> None:
    out = vitkit.embed(photos, model, tmp_path / "features", batch_size=3).out
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    vitkit.save_model(other, tmp_path / "other")
    fewer = shutil.copytree(photos, tmp_path / "fewer")
    (fewer / "dogs" / "04.png").unlink()
    for data, start, size, word in (
        (photos, tmp_path / "other", 3, "features"),
        (fewer, model, 3, "images"),
        (photos, model, 4, "batch_size"),
    ):
        with pytest.raises(VitkitError, match=f"something else .*{word}.*another --out"):
            vitkit.embed(data, start, out, batch_size=size)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(VitkitError, match=r"holds other files \(thesis.txt\)"):
        vitkit.embed(photos, model, tmp_path / "mine")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-size", "0"], "batch_size is 1 or more"),
        (["--processes", "2"], "--on ray"),
        (["--out", "{photos}/dogs/00.png"], "is a file"),
    ],
)
def test_features_that_cannot_be(
    arguments: list[str], words: str, photos: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(photos=photos) for argument in arguments]
    assert run(["embed", str(photos), str(model), *given]) == 1
    assert words in capsys.readouterr().err


def test_models_without_features_are_refused(photos: Path, tmp_path: Path) -> None:
    config: Any = vitkit.model_config("ViT-16x1x2/4", num_classes=0, image_size=8)
    vitkit.save_model(vitkit.build_model(replace(config, pool="none")), tmp_path / "model")
    with pytest.raises(VitkitError, match="has no pooling"):
        vitkit.embed(photos, tmp_path / "model", tmp_path / "out")


def test_the_command_says_what_it_made(
    photos: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["embed", str(photos), str(model)]) == 0
    printed = capsys.readouterr().out
    out = f"features/{photos.name}-model"
    assert f"Features of {IMAGES} images, 16 of each, in {out}." in printed
    assert "1 of the images could not be read and have no features" in printed
    assert f"read_parquet('{out}')" in printed
    assert run(["embed", "digits", str(model), "--out", "digits.npy"]) == 0
    assert np.load("digits.npy").shape == (1797, 16)


def test_predictions_in_files_are_those_of_the_predictor(photos: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "predictions"
    arguments = ["predict", str(model), str(photos), "--out", str(out), "--batch-size", "3", "--top", "2"]
    assert run(arguments) == 1  # one image cannot be read
    table, predictor = rows(out), vitkit.Predictor(model)
    assert len({row["image"] for row in table}) == IMAGES
    for row in table:
        if row["error"]:
            assert row["image"].endswith("07.png") and row["classes"] == []
            continue
        guesses = predictor(row["image"], top=2)
        assert row["classes"] == [guess.name for guess in guesses]
        np.testing.assert_allclose(row["probabilities"], [guess.probability for guess in guesses], atol=1e-5)
    before = {path.name: path.read_bytes() for path in out.glob("*.parquet")}
    (out / "part-00002.parquet").unlink()
    assert run(arguments) == 1
    assert {path.name: path.read_bytes() for path in out.glob("*.parquet")} == before
    assert run([*arguments, "--json"]) == 1


COMMAND = """
import sys
from vitkit.jobs import parts
parts.PART_ROWS = 6
from vitkit.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_command_that_was_killed_goes_on(photos: Path, model: Path, tmp_path: Path) -> None:
    whole = vitkit.embed(photos, model, tmp_path / "whole", batch_size=3).out
    out = tmp_path / "killed"
    arguments = ["embed", str(photos), str(model), "--out", str(out), "--batch-size", "3"]
    process = subprocess.Popen([sys.executable, "-c", COMMAND, *arguments], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 600
    while not (out / "part-00001.parquet").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert run(arguments) == 0
    names = [path.name for path in sorted(whole.glob("*.parquet"))]
    for name in names:
        assert pq.read_table(out / name).equals(pq.read_table(whole / name))


@pytest.fixture
def sockets() -> Iterator[str]:
    """A short path for Ray's sockets and logs, in an environment that has Ray: scripts/test-ray.

    The paths of sockets must be shorter than those of tests' folders, so it is not one of them.
    """
    pytest.importorskip("ray")
    folder = subprocess.check_output(["mktemp", "-d", "/tmp/rayXXXXXX"], text=True).strip()
    yield folder
    subprocess.run(["rm", "-rf", folder], check=True)


def on_ray(sockets: str, *arguments: str) -> "subprocess.Popen[str]":
    """Begin a command on a cluster of this machine's two processors."""
    code = COMMAND.replace(
        "from vitkit.cli.main",
        "import ray; ray.init(num_cpus=2, include_dashboard=False, "
        f"log_to_driver=False, logging_level='error', _temp_dir={sockets!r})\nfrom vitkit.cli.main",
    )
    # Without the watch over files: Ray's own are where Ray puts them.
    environment = {name: value for name, value in os.environ.items() if name != watch_files.OFFENCES}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments, "--on", "ray", "--processes", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def actors() -> list[int]:
    """List the processes of the cluster that compute parts."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if b"ray::" in path.read_bytes() and b"_Worker" in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def wait_until(condition: Callable[[], object], process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cluster_computes_the_same_rows_though_its_processes_and_the_command_are_killed(
    sockets: str, model: Path, tmp_path: Path
) -> None:
    """Three hundred parts, so that most are missing whenever a process is killed."""
    here = vitkit.embed("digits", model, tmp_path / "here", batch_size=3).out
    there = tmp_path / "there"
    arguments = ("embed", "digits", str(model), "--out", str(there), "--batch-size", "3")
    process = on_ray(sockets, *arguments)
    wait_until(actors, process)
    for number in actors():  # Ray starts others
        os.kill(number, signal.SIGKILL)
    wait_until(lambda: list(there.glob("*.parquet")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 0 < len(list(there.glob("*.parquet"))) < 300
    process = on_ray(sockets, *arguments)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "there already" in out and "Traceback" not in err
    assert [row["image"] for row in rows(there)] == [row["image"] for row in rows(here)]
    for mine, other in zip(rows(there), rows(here), strict=True):
        assert mine["error"] == other["error"]
        if mine["features"]:
            np.testing.assert_allclose(mine["features"], other["features"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_cluster_predicts_as_one_process_does(
    sockets: str, photos: Path, model: Path, tmp_path: Path
) -> None:
    arguments = ("predict", str(model), str(photos), "--batch-size", "3")
    assert run([*arguments, "--out", str(tmp_path / "here")]) == 1  # one image cannot be read
    process = on_ray(sockets, *arguments, "--out", str(tmp_path / "there"))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1 and "1 of 23 images could not be read" in err
    for mine, other in zip(rows(tmp_path / "there"), rows(tmp_path / "here"), strict=True):
        assert (mine["image"], mine["classes"], mine["error"]) == (
            other["image"],
            other["classes"],
            other["error"],
        )
        np.testing.assert_allclose(mine["probabilities"], other["probabilities"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_goes_wrong_on_a_cluster_is_told_in_a_sentence(
    sockets: str, photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = on_ray(sockets, "embed", str(photos), str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    _, err = process.communicate(timeout=600)
    assert process.returncode == 1 and "none" in err and "Traceback" not in err


def test_a_cluster_is_refused_without_ray(
    photos: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ["embed", str(photos), str(model), "--out", str(tmp_path / "out"), "--on", "ray"]
    assert run(arguments) == 1
    assert 'pip install "vitkit[ray]"' in capsys.readouterr().err
