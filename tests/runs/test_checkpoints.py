"""A run folder that was edited or damaged, and images that changed: nothing is lost, all is said in words."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.cli import Cli
from tests.helpers.photos import image_folder
from tests.training.small_run import contents, flip
from vitkit.cli.main import run
from vitkit.training.checkpoint import find_damage, step_name, survey

OPTIONS = [
    *("--model", "ViT-8x1x2/4", "--image-size", "8", "--batch-size", "8", "--steps", "12", "--polyak", "0.9"),
    *("--evaluate-every", "3", "--checkpoint-every", "3", "--log-every", "2", "--warmup-steps", "0"),
    *("--keep", "4"),
]


pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """Images, a finished run, and the same run as a kill after step 9 leaves it."""
    root = tmp_path_factory.mktemp("made")
    image_folder(root / "images")
    assert run(["train", "--data", str(root / "images"), "--out", str(root / "whole"), *OPTIONS]) == 0
    shutil.copytree(root / "whole", root / "half")
    for path in (root / "half").iterdir():
        if path.name in ("evaluation", "model.safetensors", "model.json", "report.html"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(root / "half" / "checkpoints" / "step-00000012")
    return root


@pytest.fixture
def half(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "half", tmp_path / "run")
    return tmp_path / "run"


def newest(folder: Path) -> Path:
    checkpoint = survey(folder).whole
    assert checkpoint is not None
    return checkpoint


def result(folder: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "average.safetensors", "optimizer.safetensors")
    return {name: (newest(folder) / name).read_bytes() for name in names} | {
        "finished": (folder / "model.safetensors").read_bytes()
    }


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    data = json.loads(path.read_text())
    replaced = change(data)
    path.write_text(json.dumps(data if replaced is None else replaced))


def refused(cli: Cli, folder: Path, *options: str) -> str:
    """The message with which a resume is refused; nothing in the folder has changed."""
    before = contents(folder)
    message = cli(["train", "--resume", str(folder), *options], 1).text
    assert contents(folder) == before
    return message


def test_the_finished_model_is_the_average_of_the_weights(made: Path) -> None:
    finished = load_file(made / "whole" / "model.safetensors")
    origin = json.loads((made / "whole" / "model.json").read_text())["origin"]["weights"]
    step = int(re.findall("[0-9]+", origin)[0])
    checkpoint = made / "whole" / "checkpoints" / step_name(step)
    average, last = (load_file(checkpoint / f"{name}.safetensors") for name in ("average", "model"))
    assert origin.startswith("Polyak average of")
    assert all(torch.equal(value, finished[name]) for name, value in average.items())
    assert any(not torch.equal(value, finished[name]) for name, value in last.items())


@contextmanager
def refusing(word: str, number: int) -> Iterator[None]:
    """Let no file be opened that has a word in its path."""
    original = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if word in str(path):
            raise OSError(number, os.strerror(number), str(path))
        return original(path, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", refuse)
        yield


def test_a_checkpoint_that_cannot_be_read_for_a_moment_stops_the_run(half: Path, cli: Cli) -> None:
    with refusing("checkpoints/step-00000009/model.safetensors", 13):
        message = refused(cli, half)
    assert "step-00000009/model.safetensors cannot be read: Permission denied" in message
    assert "nothing was changed or removed" in message
    assert run(["train", "--resume", str(half)]) == 0


def test_a_damaged_checkpoint_is_named_at_once_and_at_the_end(made: Path, half: Path, cli: Cli) -> None:
    damaged = half / "checkpoints" / "step-00000009"
    flip(damaged / "optimizer.safetensors")
    before = contents(damaged)
    message = cli(["train", "--resume", str(half)]).err
    set_aside = half / "checkpoints" / "damaged-step-00000009"
    assert contents(set_aside) == before
    assert message.count(f"rm -r {set_aside}") == 2 and "optimizer.safetensors is damaged" in message
    assert result(half) == result(made / "whole")
    # Finished, it is named still.
    assert f"rm -r {set_aside}" in cli(["train", "--resume", str(half)]).err


def test_when_no_checkpoint_is_whole_the_user_decides(made: Path, half: Path, cli: Cli) -> None:
    assert "leave --from-scratch out" in refused(cli, half, "--from-scratch")
    for checkpoint in (half / "checkpoints").iterdir():
        flip(checkpoint / "model.safetensors")
    before = contents(half)
    message = refused(cli, half)
    assert "None of the checkpoints" in message and "--from-scratch" in message
    assert run(["train", "--resume", str(half), "--from-scratch"]) == 0
    assert result(half) == result(made / "whole")
    after = contents(half)
    for name, content in before.items():
        if name.startswith("checkpoints/"):
            assert after[name.replace("checkpoints/", "checkpoints/damaged-")] == content
    assert after["damaged-metrics.jsonl"] == before["metrics.jsonl"]


def test_edited_options_are_named_and_refused(half: Path, cli: Cli) -> None:
    whole = (half / "config.json").read_bytes()
    for section, option, value in (
        ("training", "seed", 7),
        ("optimizer", "learning_rate", 0.003),
        ("optimizer", "polyak", None),
        ("training", "steps", 6),
    ):
        edit(half / "config.json", lambda c: c["run"][section].update({option: value}))  # noqa: B023
        message = refused(cli, half)
        shown = "left out" if value is None else repr(value)
        assert f"{section}.{option}:" in message and f"-> {shown}" in message and "config.json" in message
        (half / "config.json").write_bytes(whole)
    edit(half / "config.json", lambda c: c["run"]["loading"].update({"workers": 0}))
    edit(half / "config.json", lambda c: c["run"]["training"].update({"micro_batch_size": 8}))
    assert run(["train", "--resume", str(half)]) == 0


def test_images_that_changed_are_noticed(half: Path, made: Path, tmp_path: Path, cli: Cli) -> None:
    images = tmp_path / "images"
    shutil.copytree(made / "images", images)  # with their times
    place = ("--data", str(images))
    changed = images / "dark" / "7.png"
    times = changed.stat()
    flip(changed)
    message = refused(cli, half, *place)
    assert "1 image file of" in message and str(changed) in message and "--check-images names" in message
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))  # same size, same time: as good as the same
    (images / "dark").rename(images / "other")
    (images / "light").rename(images / "dark")
    (images / "other").rename(images / "light")
    assert refused(cli, half, *place)  # two class folders swapped: other names
    shutil.rmtree(images)
    image_folder(images)  # the same bytes at another time
    message = refused(cli, half, *place)
    assert "60 image files" in message and "and 55 more" in message and "times of change" in message
    assert "hashes" in refused(cli, half, *place, "--check-images", "content")
    assert run(["train", "--resume", str(half), *place, "--check-images", "names"]) == 0
    assert run(["train", "--resume", str(half), *place]) == 0  # those are the ones from now on


def test_the_bytes_of_images_decide_if_so_asked(tmp_path: Path, cli: Cli) -> None:
    images, folder = tmp_path / "images", tmp_path / "run"
    image_folder(images)
    command = ["train", "--data", str(images), "--out", str(folder), *OPTIONS, "--check-images", "content"]
    assert run(command) == 0
    image_folder(images)
    assert run(command) == 0
    flip(images / "dark" / "7.png")
    assert "7.png" in cli(command, 1).err


def test_a_record_of_the_images_that_is_damaged(half: Path, cli: Cli) -> None:
    (half / "image-files.npy").unlink()
    assert "image-files.npy" in refused(cli, half)
    (half / "image-files.npy").write_bytes(b"other")
    assert "--check-images names" in refused(cli, half)
    assert run(["train", "--resume", str(half), "--check-images", "names"]) == 0


def test_a_model_that_does_not_belong_to_its_description_is_written_again(made: Path, tmp_path: Path) -> None:
    """As a kill between the two files leaves it."""
    folder = tmp_path / "run"
    shutil.copytree(made / "whole", folder)
    weights = (folder / "model.safetensors").read_bytes()
    for stale in ({"bytes": len(weights), "sha256": "0" * 64}, {"bytes": 3}, 7):
        edit(folder / "model.json", lambda data: data.update(weights=stale))  # noqa: B023
        assert run(["train", "--resume", str(folder)]) == 0
        recorded = json.loads((folder / "model.json").read_text()).get("weights")
        assert recorded != stale and (folder / "model.safetensors").read_bytes() == weights
    right = {"bytes": len(weights), "sha256": hashlib.sha256(weights).hexdigest(), "xxh3_128": ""}
    edit(folder / "model.json", lambda data: data.update(weights=right))
    before = contents(folder)
    assert run(["train", "--resume", str(folder)]) == 0 and contents(folder) == before


def unfinished(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A run whose training has ended and whose best checkpoint is not the last; no files of the end yet."""
    folder = tmp_path / "run"
    shutil.copytree(made / "whole", folder)
    (folder / "model.safetensors").unlink()
    last = newest(folder)
    state, manifest = last / "state.json", last / "manifest.json"
    edit(state, lambda data: data.update(best_step=9))
    data = state.read_bytes()
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    edit(manifest, lambda data: data["files"].update({"state.json": record}))
    (last / "COMMIT").write_text(hashlib.sha256(manifest.read_bytes()).hexdigest())
    assert find_damage(last) is None
    return folder, folder / "checkpoints" / "step-00000009"


def test_a_best_checkpoint_that_cannot_be_read_is_not_replaced_by_the_last(
    made: Path, tmp_path: Path, cli: Cli
) -> None:
    folder, best = unfinished(made, tmp_path)
    with refusing(best.name, 5):
        assert "run the same command again" in cli(["train", "--resume", str(folder)], 1).text
    assert best.is_dir() and not (folder / "model.safetensors").exists()
    assert run(["train", "--resume", str(folder)]) == 0
    assert "Polyak average of step 9" in (folder / "model.json").read_text()


def test_a_best_checkpoint_that_is_damaged_is_kept_and_the_last_weights_are_used(
    made: Path, tmp_path: Path, cli: Cli
) -> None:
    folder, best = unfinished(made, tmp_path)
    flip(best / "average.safetensors")
    assert "damaged-step-00000009" in cli(["train", "--resume", str(folder)]).err
    assert "step-00000009, the best validation, is not whole" in (folder / "model.json").read_text()
    assert best.with_name("damaged-step-00000009").is_dir() and not best.exists()
