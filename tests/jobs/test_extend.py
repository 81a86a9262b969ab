"""Images and classes are added to a head in closed form and taken out: exactly, whole after a kill."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import picture, saved
from tests.helpers.refusals import refused
from tests.jobs.forked_runs import Case, fork_server
from tests.jobs.hearing import Hearing
from vitkit.runs.closed_form import FILE, HEAD
from vitkit.weights import loading

COLOURS = {
    "blue": (40, 60, 200),
    "green": (40, 180, 60),
    "grey": (128, 128, 128),
    "red": (200, 40, 40),
    "yellow": (220, 210, 40),
}


pytestmark = pytest.mark.usefixtures("without_report")


def paint(folder: Path, name: str, numbers: range) -> None:
    """Write photos of a colour into the folder of a class."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in numbers:
        picture(COLOURS[name], number).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of twelve training and four test images, and twelve more photos of five classes."""
    root = tmp_path_factory.mktemp("photos")
    for name in COLOURS:
        if name in ("blue", "green", "red"):
            paint(root / "first" / "train", name, range(12))
            paint(root / "first" / "test", name, range(100, 104))
        paint(root / "more", name, range(12, 24))
    return root


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved("ViT-16x2x2/4", 0, tmp_path_factory.mktemp("weights") / "start", size=8)


@pytest.fixture(scope="module")
def made(photos: Path, start: str, tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    out = tmp_path_factory.mktemp("runs") / "colours"
    return Path(vitkit.finetune(start, photos / "first", out, freeze="backbone"))


@pytest.fixture
def model(made: Path, tmp_path: Path) -> Path:
    """A copy, which a test may change."""
    return Path(shutil.copytree(made, tmp_path / "model"))


def put(photo: Path, folder: Path, name: str = "") -> None:
    """Copy a photo into a folder, by another name where one is given."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(photo, folder / name)


def head(folder: Path) -> dict[str, tuple[bytes, bytes]]:
    """The bits of each class's weights and bias, as every reader of the model gets them."""
    loaded = loading.load(folder)
    state = loaded.model.state_dict()
    rows = zip(state["head.weight"].numpy(), state["head.bias"].numpy(), strict=True)
    names = loaded.identity.card.class_names
    return {name: (w.tobytes(), b.tobytes()) for name, (w, b) in zip(names, rows, strict=True)}


def learn(start: str, out: Path, *folders: tuple[Path, str, range]) -> Path:
    """Make a model of exactly these photos."""
    exactly = out.parent / "exactly"
    for folder, name, numbers in folders:
        for number in numbers:
            put(folder / name / f"{number}.png", exactly / "train" / name)
    return Path(vitkit.finetune(start, exactly, out, freeze="backbone", splits_test_fraction=0))


def test_the_head_in_closed_form_is_a_run_like_any_other(made: Path, photos: Path) -> None:
    assert {"config.json", "model.safetensors", "model.json", FILE, "evaluation"} <= {
        path.name for path in made.iterdir()
    }
    assert not (made / "checkpoints").exists() and not (made / "metrics.jsonl").exists()
    assert vitkit.evaluate(made).to_json()["accuracy"] > 0.9
    assert vitkit.Predictor(made)(photos / "more" / "red" / "12.png")[0].name == "red"
    solved = loading.load(made).identity.card.origin[HEAD]
    assert solved["images"] == {"blue": 12, "green": 12, "red": 12}
    assert [row.state for row in vitkit.list_runs(made.parent)] == ["ended"]
    measured = vitkit.fewshot(made, str(photos / "first"), shots=[2], seeds=1, methods=["ridge"], cache=False)
    assert not measured.models[0].trained_on_these  # its features are of the start


def test_a_tree_of_classes_is_described_and_compared_as_one(start: str, tmp_path: Path) -> None:
    for name in COLOURS:
        group = "warm" if name in ("red", "yellow") else "cold"
        paint(tmp_path / "tree" / group, name, range(8))
    heard = Hearing()
    vitkit.finetune(
        start, tmp_path / "tree", tmp_path / "run", freeze="backbone", splits_levels=True, listener=heard
    )
    rows = dict(heard.rows)
    assert rows["levels"][0] == "1: never sure: that takes 59 train images, found 32"
    # Without the levels the classes would be two, and pixels of another size would be another comparison.
    assert rows["compare"][1].endswith("tree --image-size 8 --levels, then vitkit compare")


def test_evaluation_warns_of_images_that_were_added(model: Path, photos: Path, tmp_path: Path) -> None:
    assert vitkit.evaluate(model).result.repeated.count == 0
    for name in ("blue", "red"):
        shutil.copytree(photos / "first" / "test" / name, tmp_path / "new" / name)
    vitkit.extend(model, tmp_path / "new")
    heard = Hearing()
    evaluated = vitkit.evaluate(model, listener=heard)
    assert evaluated.split == "test" and evaluated.result.repeated.count == 8
    assert heard.warnings == [
        "8 images of test are in the images of its head too, pixel for pixel: the figures for test are too "
        "good."
    ]
    # Other data is compared as well, also where the classes are no longer those of the run.
    vitkit.extend(model, without="green")
    assert vitkit.evaluate(model, str(tmp_path / "new")).result.repeated.count == 8


def test_images_and_a_class_are_added_as_if_they_had_been_there(
    model: Path, photos: Path, start: str, tmp_path: Path
) -> None:
    new = tmp_path / "new"
    paint(new, "green", range(12, 15))
    paint(new, "yellow", range(12, 18))
    result = vitkit.extend(model, new)
    assert (result.added, result.removed, result.new_classes) == (9, 0, ("yellow",))
    assert result.classes == {"blue": 12, "green": 15, "red": 12, "yellow": 6}
    exactly = [(photos / "first" / "train", name, range(12)) for name in ("blue", "green", "red")]
    exactly += [(photos / "more", "green", range(12, 15)), (photos / "more", "yellow", range(12, 18))]
    assert head(model) == head(learn(start, tmp_path / "other", *exactly))
    assert vitkit.Predictor(model)(photos / "more" / "yellow" / "20.png")[0].name == "yellow"


def test_a_report_says_that_its_run_was_extended(model: Path, photos: Path) -> None:
    for extended in (False, True):
        if extended:
            vitkit.extend(model, without=photos / "first" / "train" / "blue" / "0.png")
        page = vitkit.write_report(model).read_text()
        assert ("Images were added to the head or taken out since" in page) is extended
        assert (f"vitkit extend {model.name}" in page) is extended


def test_what_is_taken_out_leaves_no_trace_in_the_weights(
    model: Path, photos: Path, start: str, tmp_path: Path
) -> None:
    train = photos / "first" / "train"
    result = vitkit.extend(model, without=[train / "red" / "3.png", "green"])
    assert (result.removed, result.removed_classes) == (13, ("green",))
    rest = [(train, "blue", range(12)), (train, "red", range(3)), (train, "red", range(4, 12))]
    left = head(learn(start, tmp_path / "left", *rest))
    assert head(model) == left
    vitkit.finetune(start, photos / "first", model, freeze="backbone")  # the command that made it, again
    assert head(model) == left
    again = vitkit.extend(model, check=[train / "red"])
    states = again.looked_up
    assert "is not in, and was taken out on" in states[str(train / "red" / "3.png")]
    assert states[str(train / "red" / "4.png")] == "is in, as red"
    assert again.difference == 0 and not again.added and again.accuracy > 0.9
    assert not (model / "evaluation").exists()


def test_what_was_added_and_taken_out_leaves_the_first_head(model: Path, made: Path, photos: Path) -> None:
    vitkit.extend(model, photos / "more")
    assert vitkit.extend(model, without=photos / "more").removed == 60
    assert head(model) == head(made)
    first, again = (vitkit.extend(folder).changes[-1] for folder in (made, model))
    assert first.images_hash == again.images_hash


def test_a_photo_of_another_class_is_moved_where_it_is_taken_out_in_the_same_command(
    model: Path, photos: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new" / "red"
    put(photos / "first" / "train" / "blue" / "0.png", new)
    before = head(model)
    refused("in already under another class, the first red/0.png", vitkit.extend, model, tmp_path / "new")
    assert head(model) == before
    result = vitkit.extend(model, tmp_path / "new", without=new)
    assert (result.added, result.removed) == (1, 1)
    assert result.classes == {"blue": 11, "green": 12, "red": 13}


def test_images_that_are_in_and_copies_of_one_image_count_once(model: Path, made: Path, photos: Path) -> None:
    result = vitkit.extend(model, photos / "first")
    assert (result.added, result.present) == (0, 36)
    assert head(model) == head(made)
    new, red = model.parent / "new", photos / "more" / "red"
    for name in ("a.png", "b.png"):
        put(red / "12.png", new / "red", name)
    for name in ("red", "white"):  # one photo in two classes, and in neither yet
        put(red / "13.png", new / name)
    (new / "white" / "broken.png").write_bytes(b"no image")
    result = vitkit.extend(model, new)
    assert (result.added, result.present, [*result.rejects]) == (1, 0, ["white/broken.png"])
    assert not result.new_classes


def test_a_head_that_tells_nothing_is_warned_of(start: str, tmp_path: Path) -> None:
    for name in ("blue", "red"):
        paint(tmp_path / "few" / "train", name, range(1))
    out, heard = tmp_path / "run", Hearing()
    options: dict[str, Any] = {"freeze": "backbone", "splits_test_fraction": 0}
    vitkit.finetune(start, tmp_path / "few", out, listener=heard, **options)
    assert "hardly differs from guessing" in " ".join(heard.warnings)


def test_what_cannot_be_done_is_refused_and_changes_nothing(
    model: Path, made: Path, photos: Path, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused("no class of the model", vitkit.extend, model, without="violet")
    refused("is in: nothing was changed", vitkit.extend, model, without=photos / "more/red/12.png")
    refused("is in: nothing was changed", vitkit.extend, model, without=photos / "more")
    refused("two classes, and one is left", vitkit.extend, model, without=["red", "green"])
    refused("no folder of a model", vitkit.extend, tmp_path)
    refused("--freeze backbone", vitkit.extend, start)
    monkeypatch.chdir(tmp_path)
    refused("--freeze backbone", vitkit.extend, "vit-ti16-augreg-in21k", photos / "more")
    assert not Path("vit-ti16-augreg-in21k").exists()
    assert head(model) == head(made)


def test_a_head_that_is_not_the_solution_of_its_images_is_refused(model: Path) -> None:
    arrays = load_file(model / FILE)
    arrays["rows"][0] += 1
    save_file(arrays, model / FILE)
    refused("is not the solution of the images", vitkit.extend, model)


def test_the_photos_of_the_backbone_itself_stay(photos: Path, made: Path, tmp_path: Path) -> None:
    own = shutil.copytree(photos / "first", tmp_path / "own")
    options: dict[str, Any] = {"model": "ViT-16x1x1/4", "image_size": 8, "steps": 2, "warmup_steps": 0}
    trained = vitkit.train(own, tmp_path / "trained", batch_size=4, **options)
    folder = vitkit.finetune(trained, own, tmp_path / "frozen", freeze="backbone")
    refused("trained on 1 of these images", vitkit.extend, folder, without=own / "train/red/0.png")
    refused("The backbone itself", vitkit.extend, folder, without="red")
    vitkit.extend(folder, photos / "more")
    assert vitkit.extend(folder, without=photos / "more" / "red").removed == 12
    shutil.rmtree(own)
    folder = vitkit.finetune(trained, photos / "more", tmp_path / "another", freeze="backbone")
    refused("trained on own, whose images were not at hand", vitkit.extend, folder, without="grey")
    # A head in closed form has not changed the backbone: from it every photo can go.
    second = vitkit.finetune(made, photos / "more", tmp_path / "second", freeze="backbone")
    assert vitkit.extend(second, without="grey").removed > 0


def test_options_of_training_do_not_go_with_a_closed_form(start: str, photos: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"freeze": "backbone", "data": photos / "first", "out": tmp_path / "run"}
    idle: dict[str, Any] = {"epochs": 3, "augmentation.shift": 2}
    refused("leave epochs, shift out", vitkit.finetune, start, **given, **idle)
    refused("the same for every seed", vitkit.finetune, start, **given, runs=2)
    refused("freeze backbone", vitkit.finetune, start, photos / "first", tmp_path / "run", head="ridge")
    folder = vitkit.finetune(start, **given, head="new", epochs=1)
    assert (folder / "metrics.jsonl").exists() and not (folder / FILE).exists()
    refused("gradient descent", vitkit.extend, folder)


Fails = Callable[[Path, int, str], int]


@pytest.fixture
def failing(photos: Path) -> Any:
    """Run `vitkit extend` in a process in which a filesystem call on the model's folder fails."""
    with fork_server() as ask:

        def extend(folder: Path, number: int, fault: str) -> int:
            arguments = ["extend", str(folder), str(photos / "more"), "--without", "red"]
            return ask(Case(arguments, moment="nowhere", failing=(str(folder), number, fault))).code

        yield extend


@pytest.mark.parametrize(
    "is_slow",
    [False, pytest.param(True, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
    ids=["some", "all"],
)
def test_a_kill_or_a_full_disk_leaves_the_old_model_or_the_new_one_whole(
    is_slow: bool, failing: Fails, made: Path, photos: Path, tmp_path: Path
) -> None:
    whole = Path(shutil.copytree(made, tmp_path / "whole"))
    assert failing(whole, -1, "kill") == 0
    old, new = head(made), head(whole)
    calls = [json.loads(line) for line in Path(f"{whole}.calls").read_text().splitlines()]
    assert len(calls) > 30
    states = set()
    # All calls on the model's own files; of few, the renamings, before and after which something is new.
    important = [number for number, (_, path) in enumerate(calls) if "model" in path or "features" in path]
    renamings = [number for number, (call, _) in enumerate(calls) if call == "os.rename"]
    beside = [near for renaming in renamings for near in (renaming, renaming + 1)]
    for number in important if is_slow else beside:
        for fault in ("kill", "ENOSPC") if is_slow else ("kill",):
            folder = Path(shutil.copytree(made, tmp_path / f"{fault}-{number}"))
            code = failing(folder, number, fault)
            present = head(folder)
            assert present in (old, new), (calls[number], fault)
            states.add(present == new)
            if code:  # the same command again brings it to its end
                assert present == new or failing(folder, -1, "kill") == 0
            vitkit.extend(folder, check=photos / "more" / "grey" / "12.png")
            assert head(folder) == new
            shutil.rmtree(folder)
    assert states == {True, False}


def test_features_do_not_depend_on_the_images_beside_them(photos: Path, start: str, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    for name in ("red", "blue"):
        paint(alone, name, range(12, 13))
    vitkit.finetune(start, alone, tmp_path / "two", freeze="backbone", splits_test_fraction=0)
    vitkit.finetune(start, photos / "more", tmp_path / "sixty", freeze="backbone", splits_test_fraction=0)
    two, sixty = (load_file(tmp_path / name / FILE) for name in ("two", "sixty"))
    rows = {key.tobytes(): row.tobytes() for key, row in zip(sixty["hashes"], sixty["rows"], strict=True)}
    for key, row in zip(two["hashes"], two["rows"], strict=True):
        assert rows[key.tobytes()] == row.tobytes()


def test_an_image_in_two_classes_is_left_out_of_both(start: str, photos: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(photos / "first", tmp_path / "data"))
    shutil.copy(data / "train/red/0.png", data / "train/blue/copy.png")
    folder = vitkit.finetune(start, data, tmp_path / "run", freeze="backbone")
    solved = loading.load(folder).identity.card.origin[HEAD]
    assert solved["images"] == {"blue": 12, "green": 12, "red": 11}


def test_the_command_line_prints_the_numbers_as_json(model: Path, photos: Path, cli: Cli) -> None:
    line = ["extend", str(model), "--data", str(photos / "more"), "--without", "red", "blue", "--json"]
    numbers = json.loads(cli(line).out)
    assert numbers["removed"] == 24 and numbers["added"] == 60 and numbers["difference"] == 0
    assert numbers["changes"][-1]["images"] == numbers["images"] == 72
