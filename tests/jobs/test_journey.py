"""The whole way of a user, from check to report, on a folder as people have them."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import WORKER_TIMEOUT
from vitkit.data.decode.image import decode
from vitkit.data.stream.loader import evaluation_batches
from vitkit.data.transforms import preprocess
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation import run_model
from vitkit.jobs.options import InspectOptions, PredictOptions
from vitkit.jobs.predict import predict_images
from vitkit.listener import SILENT, Listener, Progress
from vitkit.models.config.compute_config import Precision
from vitkit.runs.folder import kind_of
from vitkit.weights.model_card import LossFunction, ModelCard, Task

TINY = (
    "--model",
    "ViT-16x2x2/4",
    "--image-size",
    "16",
    "--batch-size",
    "8",
    "--warmup-steps",
    "0",
    "--epochs",
    "2",
)

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def picture(colour: tuple[int, int, int], seed: int) -> Image.Image:
    draw = np.random.default_rng(seed)
    height, width = draw.integers(12, 40, 2)
    noise = draw.integers(-40, 40, (height, width, 3))
    return Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mixed sizes and formats, a grey and a CMYK image, and two files that are no images."""
    root = tmp_path_factory.mktemp("photos")
    for name, colour in (("red fruit", (200, 40, 40)), ("sky", (60, 90, 220))):
        (root / name).mkdir()
        for i in range(24):
            image = picture(colour, i)
            match i % 6:
                case 0:
                    image.convert("CMYK").save(root / name / f"{i}.jpg")
                case 1:
                    image.convert("L").save(root / name / f"{i}.png")
                case 2:
                    image.convert("RGBA").save(root / name / f"{i}.webp", lossless=True)
                case _:
                    image.save(root / name / f"{i}.png")
    (root / "sky" / "page.jpg").write_text("<html>not found</html>")
    whole = (root / "sky" / "3.png").read_bytes()
    (root / "sky" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / ".cache").mkdir()
    return root


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert run(["train", "--data", str(photos), "--out", str(out), *TINY]) == 0
    return out


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def test_check_first(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "check", str(photos)]) == 0
    text = capsys.readouterr().out
    for words in ("red fruit", "page.jpg", "cut.png", "CMYK", "vitkit finetune "):
        assert words in text
    assert run(["data", "check", str(photos), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["bad"]) == 2


def test_a_run_folder_holds_everything(trained: Path, photos: Path) -> None:
    names = {path.name for path in trained.iterdir()}
    assert {
        "config.json",
        "data.json",
        "model.safetensors",
        "model.json",
        "metrics.jsonl",
        "report.html",
    } <= names
    record = json.loads((trained / "data.json").read_text())
    rejected = {key for files in record["rejects"].values() for key in files}
    assert {Path(key).name for key in rejected} == {"page.jpg", "cut.png"}
    assert sum(sum(counts.values()) for counts in record["counts"].values()) == 50
    report = (trained / "report.html").read_text()
    for words in ("red fruit", "page.jpg", "cut.png", "vitkit train", "stratified"):
        assert words in report
    card = json.loads((trained / "model.json").read_text())
    assert card["class_names"] == ["red fruit", "sky"]
    assert card["preprocessing"]["image_size"] == [16, 16] and card["augmentation"]["flip"]


def test_the_same_command_again_does_nothing(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*") if path.is_file()}
    assert run(["train", "--data", str(photos), "--out", str(trained), *TINY]) == 0
    assert "has finished" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_other_options_do_not_touch_a_run(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["train", "--data", str(photos), "--out", str(trained), *TINY, "--learning-rate", "0.5"]
    assert run(options) == 1
    message = capsys.readouterr().err
    assert "--learning-rate 0.001 -> 0.5" in message and "--out" in message
    assert run(["train", "--resume", str(trained), "--seed", "3"]) == 1
    assert "--seed 0 -> 3" in capsys.readouterr().err


def test_a_run_from_before_an_option_existed_is_the_same_run(trained: Path, tmp_path: Path) -> None:
    """Its config.json and model.json lack the option, which had its default then, and so has the run."""
    run_folder = tmp_path / "run"
    shutil.copytree(trained, run_folder)
    record = json.loads((run_folder / "config.json").read_text())
    card = json.loads((run_folder / "model.json").read_text())
    for name in ("interpolation", "crop_offset", "border"):
        del record["run"]["preprocessing"][name], card["preprocessing"][name]
    (run_folder / "config.json").write_text(json.dumps(record))
    (run_folder / "model.json").write_text(json.dumps(card))
    assert run(["train", "--resume", str(run_folder)]) == 0
    assert vitkit.Predictor(run_folder).preprocessing == vitkit.Predictor(trained).preprocessing


def test_without_out_the_same_run_is_found_again_and_another_gets_its_own_folder(
    photos: Path, tmp_path: Path
) -> None:
    base = ["train", "--data", str(photos), *TINY, "--steps", "1"]
    assert run(base) == 0
    assert run(base) == 0
    assert run([*base, "--seed", "1"]) == 0
    name = f"{photos.name}-ViT-16x2x2-4"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [name, f"{name}-2"]


def test_evaluate_needs_the_run_alone(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(trained)]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert run(["evaluate", str(trained), "--split", "train", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    kept = json.loads((trained / "evaluation" / "train.json").read_text())
    assert found["count"] == kept["count"] and found["split"] == "train"
    assert found["count"] + found["bad"] == sum(
        json.loads((trained / "data.json").read_text())["counts"]["train"].values()
    )


class Recording(Listener):
    """Keeps what a job tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.loops: list[str] = []
        self.done: list[int] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        self.loops.append(what)

        def progress(
            done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
        ) -> None:
            self.done.append(done)

        yield progress


def test_jobs_print_nothing_and_tell_a_listener(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    images = [photos / "sky" / "3.png", Path("nowhere.png")]
    heard = Recording()
    vitkit.evaluate(copy)
    for listener in (SILENT, heard):
        found = vitkit.evaluate(copy, batch_size=4, listener=listener)
        vitkit.inspect(copy, images, tmp_path / "pictures", listener=listener)
        vitkit.write_report(copy, listener=listener)
        options = PredictOptions(copy, images=images, listener=listener)
        paths = [predicted.path.name for predicted in predict_images(options)]
        assert paths == ["3.png", "nowhere.png"]
    assert capsys.readouterr() == ("", "")
    assert heard.loops == [
        *("listing images", "evaluating test", "looking for training images among the others"),
        *("drawing pictures", "writing the report"),
        *("listing images", "predicting"),
    ]
    count = found.result.count + found.result.bad
    assert heard.done[: -(-count // 4)] == [*range(4, count, 4), count]
    assert heard.done[-1] == 2
    (note,) = heard.notes
    assert note.startswith("nowhere.png: ")


def test_what_was_asked_for_is_the_precision(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact, rounded = (vitkit.evaluate(trained, precision=name) for name in PRECISIONS)
    assert (vitkit.evaluate(trained).predictions.logits == exact.predictions.logits).all()  # on a CPU
    assert (exact.predictions.logits != rounded.predictions.logits).any()
    np.testing.assert_allclose(exact.predictions.logits, rounded.predictions.logits, rtol=0, atol=0.1)
    image = photos / "sky" / "3.png"
    guesses = [vitkit.Predictor(trained, precision=name)(image)[0] for name in PRECISIONS]
    assert guesses[0].name == guesses[1].name and guesses[0].probability != guesses[1].probability
    assert vitkit.Predictor(trained)(image)[0] == guesses[0]
    outputs = []
    for name in PRECISIONS:
        assert run(["predict", str(trained), str(image), "--json", "--precision", name]) == 0
        assert run(["evaluate", str(trained), "--split", "train", "--json", "--precision", name]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] != outputs[1]


def test_a_run_is_validated_and_evaluated_in_its_own_precision(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, predict = [], run_model.predict

    def spy(*arguments: Any, **options: Any) -> Any:
        asked.append(options["precision"])
        return predict(*arguments, **options)

    monkeypatch.setattr(run_model, "predict", spy)  # of the validation, and of what comes after training
    monkeypatch.setattr("vitkit.jobs.train.write_report", lambda folder, **_options: folder)
    options = ["train", "--data", str(photos), "--out", "run", *TINY, "--precision", "bfloat16"]
    assert run(options) == 0
    assert len(asked) >= 3 and set(asked) == {"bfloat16"}


def test_evaluation_obeys_the_limit_of_pixels_and_keeps_no_such_numbers(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    before = (copy / "evaluation" / "test.json").read_bytes()
    with pytest.raises(VitkitError, match="no readable image"):
        vitkit.evaluate(copy, max_pixels=1)
    assert run(["evaluate", str(copy), "--max-pixels", "1000000"]) == 0
    assert "Kept in" not in capsys.readouterr().out
    assert (copy / "evaluation" / "test.json").read_bytes() == before


def test_evaluation_waits_for_workers_as_long_as_asked(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def spy(*arguments: Any, **options: Any) -> Any:
        asked.append(options["worker_timeout"])
        return evaluation_batches(*arguments, **options)

    monkeypatch.setattr("vitkit.runs.finish.evaluation_batches", spy)
    assert run(["evaluate", str(trained), "--worker-timeout", "12.5"]) == 0
    vitkit.evaluate(trained)
    assert asked == [12.5, WORKER_TIMEOUT]
    assert run(["evaluate", str(trained), "--worker-timeout", "-1"]) == 1
    assert "--worker-timeout of 0 seconds (no limit) or more, found -1.0" in " ".join(
        capsys.readouterr().err.split()
    )


def test_two_files_are_enough_anywhere(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(trained / name, tmp_path / name)
    assert run(["predict", "model.safetensors", str(photos / "sky" / "3.png")]) == 0
    assert "%" in capsys.readouterr().out
    assert run(["evaluate", "model.safetensors"]) == 1  # they do not say where the images are
    assert "does not say where its data is" in capsys.readouterr().err
    assert run(["evaluate", "model.safetensors", "--data", str(photos)]) == 0


def test_other_data_is_matched_by_class_name(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(3):
        (tmp_path / "new" / "sky").mkdir(parents=True, exist_ok=True)
        picture((60, 90, 220), 100 + i).save(tmp_path / "new" / "sky" / f"{i}.png")
    assert run(["evaluate", str(trained), "--data", "new", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == 3 and found["per_class"][1]["count"] == 3
    (tmp_path / "new" / "sky").rename(tmp_path / "new" / "sea")
    assert run(["evaluate", str(trained), "--data", "new"]) == 1
    assert "sea" in capsys.readouterr().err


def saved(name: str, num_classes: int, out: Path, size: int = 16, **changes: Any) -> str:
    config = dataclasses.replace(vitkit.model_config(name, num_classes, size), **changes)
    return str(vitkit.save_model(vitkit.build_model(config), out))


@pytest.mark.parametrize(
    ("num_classes", "pool", "words"), [(0, "mean", "has no head"), (2, "none", "no prediction")]
)
def test_a_model_that_names_no_classes(
    num_classes: int,
    pool: str,
    words: str,
    photos: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = saved("ViT-16x1x2/4", num_classes, tmp_path / "features", pool=pool)
    with pytest.raises(VitkitError, match=words):
        vitkit.Predictor(model)
    assert run(["evaluate", model, "--data", str(photos)]) == 1
    assert words in capsys.readouterr().err
    assert run(["card", model]) == 0
    said = capsys.readouterr().out
    assert "vitkit predict" not in said and ("no head" in said) == (num_classes == 0)
    assert run(["inspect", model, "--images", str(photos / "red fruit"), "--out", "pictures"]) == 0
    assert "attention-rollout.png" in capsys.readouterr().out


def test_outputs_without_names_are_matched_in_order(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, three = (saved("ViT-16x1x2/4", count, tmp_path / str(count)) for count in (2, 3))
    assert run(["evaluate", two, "--data", str(photos)]) == 0
    captured = capsys.readouterr()
    assert "no class names" in captured.err and "alphabetical order: red fruit, sky." in captured.err
    assert f"on 48 images of {photos.name}" in captured.out
    assert run(["evaluate", three, "--data", str(photos)]) == 1
    assert "3 outputs and no class names" in capsys.readouterr().err
    assert run(["evaluate", two, "--data", str(photos), "--split", "test"]) == 1
    assert "Leave out --split" in capsys.readouterr().err


def test_another_size_and_heads_that_the_file_does_not_say(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (trained / "evaluation" / "test.json").read_bytes()
    assert run(["evaluate", str(trained), "--image-size", "24"]) == 0
    assert (trained / "evaluation" / "test.json").read_bytes() == before  # those of the model as it is
    assert run(["predict", str(trained), "--image-size", "24", str(photos / "sky" / "3.png")]) == 0
    assert "24 x 24" in distances_at_24(trained, tmp_path / "larger")
    predictor = vitkit.Predictor(trained, image_size=24)
    assert predictor.preprocessing.image_size == predictor.model.config.image_size == (24, 24)
    model = vitkit.create_model("ViT-12x1x3/4", 2, 16)
    file = str(vitkit.save_model(model, tmp_path / "model.npz", format="official"))
    image = str(photos / "sky" / "3.png")
    capsys.readouterr()
    for arguments in (
        ["predict", file, image],
        ["evaluate", file, "--data", str(photos)],
        ["inspect", file],
        ["card", file],
        ["cost", file],
    ):
        assert run([*arguments, "--num-heads", "5"]) == 1
        assert "5" in capsys.readouterr().err


def distances_at_24(model: Path, out: Path) -> str:
    assert run(["inspect", str(model), "--image-size", "24", "--out", str(out)]) == 0
    return (out / "attention-distance.svg").read_text()


def test_why_there_are_no_pictures_of_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size, words in (
        ("BiT-R50x1", 32, "a ResNet has none"),
        ("Axial-ViT-16x1x2/4", 16, "along rows and columns"),
        ("ViT-16x1x2/16", 16, "one patch"),
        ("ViT-16x1x2/4", 16, "give some with --images"),
    ):
        model = saved(name, 2, tmp_path / name.replace("/", "-"), size)
        assert run(["inspect", model]) == 0
        said = capsys.readouterr().out
        assert words in said and "Next: vitkit card" in said and "vitkit report" not in said


def test_pictures_of_a_model_by_address_are_put_here(tmp_path: Path) -> None:
    assert InspectOptions("https://example.org/a/model.npz").folder == Path("inspect")
    assert InspectOptions(str(tmp_path / "model.npz")).folder == tmp_path / "inspect"


def test_a_folder_with_a_config_of_another_library_is_no_run(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert kind_of(trained).kind == "run" and kind_of(tmp_path).kind == "checkpoint"


def test_a_run_without_splits_says_so(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ["--splits.val-fraction", "0", "--splits.test-fraction", "0", "--steps", "1"]
    assert run(["train", "--data", str(photos), "--out", "run", *TINY, *whole]) == 0
    capsys.readouterr()
    assert run(["evaluate", "run"]) == 1
    assert "trained on all of it" in capsys.readouterr().err
    assert run(["evaluate", "run", "--split", "train"]) == 0
    assert "train images of" in capsys.readouterr().out


def test_predict_takes_files_folders_and_lists(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["predict", str(trained), str(photos / "red fruit"), "--json", "--top", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 24
    assert {line["predictions"][0]["class"] for line in lines} <= {"red fruit", "sky"}
    monkeypatch.setattr("sys.stdin", iter([f"{photos / 'sky' / '3.png'}\n", "\n"]))
    assert run(["predict", str(trained), "-", "--json"]) == 0
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(guess["probability"] for guess in line["predictions"]) == pytest.approx(1, abs=1e-4)


def test_what_cannot_be_read_is_said_and_the_rest_is_predicted(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(photos / "sky" / "page.jpg"), str(photos / "sky" / "3.png"), "nowhere.png"]
    assert run(["predict", str(trained), *paths, "--json"]) == 1
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert ["error" in line for line in lines] == [True, False, True, True]
    assert lines[-1]["exit_code"] == 1  # of the command, after those of its images
    assert "2 of 3 images could not be read; the others are above" in captured.err
    assert run(["predict", str(trained), "nowhere.png"]) == 1
    assert "1 of 1 images could not be read.\n" in capsys.readouterr().err


def test_the_predictor_takes_what_people_have(trained: Path, photos: Path) -> None:
    predictor = vitkit.Predictor(trained)
    path = photos / "sky" / "3.png"
    with Image.open(path) as image:
        pixels = np.asarray(image)
        guesses = [predictor(source) for source in (path, str(path), path.read_bytes(), image, pixels)]
    assert all(guess == guesses[0] for guess in guesses)
    assert len(guesses[0]) == 2 and guesses[0][0].probability >= guesses[0][1].probability
    with pytest.raises(VitkitError, match=r"\(height, width, 3\)"):
        predictor(np.zeros((4, 4)))
    with pytest.raises(DecodeError):
        predictor(photos / "sky" / "cut.png")


def test_prediction_is_evaluation(trained: Path) -> None:
    """The same pixels, the same logits, whichever way an image comes in."""
    found = vitkit.evaluate(trained)
    predictor = vitkit.Predictor(trained)
    samples = found.data.splits[found.split]
    for row, index in enumerate(found.predictions.ids[:5].tolist()):
        file = samples.file(index)
        best = predictor(file, top=1)[0]
        assert best.name == found.data.class_names[found.predictions.predicted[row]]
        logits = torch.from_numpy(found.predictions.logits[row])
        assert best.probability == pytest.approx(logits.softmax(0).max().item(), abs=1e-5)


def test_inspect_draws_the_papers_figures(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"filters", "positions", "attention-distance", "attention-rollout"}
    assert run(["inspect", str(trained)]) == 0
    written = {path.name for path in (trained / "inspect").iterdir()}
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert run(["inspect", str(trained), "--images", str(photos / "sky"), "--out", "pictures"]) == 0
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == names
    model = vitkit.create_model("ViT-16x2x2/4", num_classes=3, image_size=16)
    official = vitkit.save_model(model, tmp_path / "official.npz", format="official")
    assert run(["inspect", str(official), "--out", "weights"]) == 0
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == {"filters", "positions"}
    assert "--images" in capsys.readouterr().out


def test_inspect_measures_on_as_many_images_as_the_paper(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for i in range(130):
        picture((90, 90, 90), i).save(tmp_path / "many" / f"{i}.png")
    model = saved("ViT-8x1x2/8", 2, tmp_path / "model")
    assert run(["inspect", model, "--images", "many", "--out", "pictures"]) == 0
    assert "128 images of 16 x 16 pixels" in (tmp_path / "pictures" / "attention-distance.svg").read_text()
    figure = (tmp_path / "pictures" / "attention-rollout.svg").read_text()
    assert "predicted class" in figure


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_predictions_are_probabilities_by_the_loss_of_the_model(
    loss: LossFunction, photos: Path, tmp_path: Path
) -> None:
    model = vitkit.create_model("ViT-8x1x2/8", num_classes=3, image_size=16)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    model.card = ModelCard(class_names=("a", "b", "c"), task=Task(loss=loss))
    predictor = vitkit.Predictor(vitkit.save_model(model, tmp_path / "model"), device="cpu")
    guesses = predictor(photos / "sky" / "3.png", top=3)
    pixels = preprocess(
        decode(photos / "sky" / "3.png", predictor.preprocessing.decode), predictor.preprocessing
    )
    assert isinstance(predictor.model, torch.nn.Module)
    with torch.no_grad():
        logits = predictor.model(torch.from_numpy(pixels).permute(2, 0, 1)[None])[0]
    shares = logits.sigmoid() if loss == "sigmoid" else logits.softmax(0)
    expected = sorted(zip(shares.tolist(), "abc", strict=True), reverse=True)
    assert [guess.name for guess in guesses] == [name for _, name in expected]
    assert [guess.probability for guess in guesses] == pytest.approx(
        [share for share, _ in expected], abs=1e-6
    )
    assert (sum(guess.probability for guess in guesses) == pytest.approx(1)) == (loss == "softmax")


def test_the_report_can_be_written_again_also_without_the_images(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    record = json.loads((copy / "model.json").read_text())
    record["data"]["spec"] = str(tmp_path / "gone")
    (copy / "model.json").write_text(json.dumps(record))
    assert run(["report", str(copy)]) == 0
    captured = capsys.readouterr()
    assert "report.html" in captured.out and "gone" in captured.err
    assert run(["report", str(photos)]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_changed_images_do_not_continue_a_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = tmp_path / "images"
    shutil.copytree(photos, images)
    options = ["train", "--data", str(images), "--out", "run", *TINY]
    assert run(options) == 0
    (tmp_path / "run" / "report.html").unlink()
    (images / "sky" / "5.png").unlink()
    assert run(options) == 1
    assert "not those that run was started with" in capsys.readouterr().err


def test_moved_images_continue_a_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "images")
    assert run(["train", "--data", "images", "--out", "run", *TINY]) == 0
    for name in ("report.html", "model.json"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert run(["train", "--resume", "run"]) == 1
    assert "images" in capsys.readouterr().err
    assert run(["train", "--resume", "run", "--data", "elsewhere"]) == 0
    assert run(["evaluate", "run"]) == 0


def test_a_refused_run_leaves_no_folder(photos: Path, tmp_path: Path) -> None:
    assert run(["train", "--data", str(photos), "--model", "ViT-7x1x2/4", "--out", "run"]) == 1
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert run(["train", "--data", str(photos), "--out", "run", *TINY]) == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    "call",
    [
        "jobs.train.save_model",
        # These lie between the first and the last.
        pytest.param("runs.finish.evaluate_split", marks=pytest.mark.slow),
        pytest.param("runs.finish.write_evaluation", marks=pytest.mark.slow),
        "jobs.train.write_report",
    ],
)
def test_ended_after_training_the_rest_is_made_up_for(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    options = ["train", "--data", str(photos), "--out", "run", *TINY]

    def end(*arguments: object, **others: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"vitkit.{call}", end)
        assert run(options) == 130
    (tmp_path / "run" / ".report.html.77.tmp").write_text("left by a killed process")
    if call != "jobs.train.save_model":
        assert run(["report", "run"]) == 0  # written early, it does not make the run a finished one
    assert run(options) == 0
    names = {path.name for path in (tmp_path / "run").iterdir() if path.name != ".lock"}
    assert {"model.json", "evaluation", "report.html"} <= names
    assert not [name for name in names if name.startswith(".")]
    assert (tmp_path / "run" / "evaluation" / "test.json").exists()


def test_a_damaged_best_checkpoint_is_not_used(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["train", "--data", str(photos), "--out", "run", *TINY, "--patience", "2", "--epochs", "40"]

    def end(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("vitkit.jobs.train.save_model", end)
        assert run(options) == 130
    best, *_ = sorted((tmp_path / "run" / "checkpoints").iterdir())
    weights = best / "average.safetensors"
    weights = weights if weights.exists() else best / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert run(options) == 0
    assert "not whole" in capsys.readouterr().err
    assert "not whole" in json.loads((tmp_path / "run" / "model.json").read_text())["origin"]["weights"]


def test_data_that_changed_is_not_taken_for_the_models_own(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "images")
    assert run(["train", "--data", "images", "--out", "run", *TINY]) == 0
    before = (tmp_path / "run" / "evaluation" / "test.json").read_bytes()
    picture((60, 90, 220), 7).save(tmp_path / "images" / "sky" / "new.png")
    assert run(["evaluate", "run"]) == 1
    assert "not those the model was trained with" in capsys.readouterr().err
    assert (tmp_path / "run" / "evaluation" / "test.json").read_bytes() == before
    assert run(["report", "run"]) == 0
    assert "Without pictures" in capsys.readouterr().err


def test_a_disk_that_refuses_is_one_message(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(["train", "--data", str(photos), "--out", "file/run", *TINY]) == 1
    assert "file" in capsys.readouterr().err
    (tmp_path / "run" / "speed.jsonl").mkdir(parents=True)
    shutil.rmtree(tmp_path / "run")
    assert run(["train", "--data", str(photos), "--out", "run", *TINY, "--steps", "1"]) == 0
    for name in ("speed.jsonl", "report.html"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / "speed.jsonl").mkdir()
    assert run(["train", "--data", str(photos), "--out", "run", *TINY, "--steps", "1"]) == 1
    message = capsys.readouterr().err
    assert "speed.jsonl" in message and "same command again" in message


def test_training_from_python_is_silent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_options = vitkit.recipe("digits")
    short = dataclasses.replace(
        run_options, training=dataclasses.replace(run_options.training, steps=2), model="ViT-16x1x2/4"
    )
    out = vitkit.train(short, tmp_path / "run")
    assert vitkit.load_model(out).card.class_names == tuple("0123456789")
    assert capsys.readouterr() == ("", "")


def test_a_listener_hears_how_training_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_options, heard = vitkit.recipe("digits"), Hearing()
    training = dataclasses.replace(run_options.training, steps=4, evaluate_every=2)
    short = dataclasses.replace(run_options, training=training, model="ViT-16x1x2/4")
    out = vitkit.train(short, tmp_path / "run", listener=heard)
    headings = [heading for heading, _ in heard.rows if heading]
    assert headings == [
        *("data", "classes", "model", "training", "device", "folder", "images", "time"),
        *("val", "test", "weights", "report"),
    ]
    # What a run is going to do is told before the images are read; how long it takes, once that is known.
    moments = ["listing images", "folder", "reading train images", "measuring the speed", "time"]
    assert sorted(moments, key=heard.order.index) == moments
    assert [(loop, done) for loop, done, _ in heard.milestones] == [("training", 2), ("training", 4)]
    assert all("  val " in detail and "images/s" in detail for _, _, detail in heard.milestones)
    validations = [line for line in heard.measured if line["kind"] == "validation"]
    best = max(validations, key=lambda line: (line["accuracy"], -line["loss"], -line["step"]))
    ending = f"  best {best['accuracy']:.1%} at step {best['step']}"
    assert heard.milestones[-1][2].endswith(ending)  # what was the best so far, the last one or not
    # During a validation nothing else is told: it is named before.
    assert [heard.details["training", step].endswith("  validation next") for step in (1, 2, 3, 4)] == [
        *(True, False, True, False),
    ]
    # The numbers that are heard are those that are kept.
    assert heard.measured == list(map(json.loads, (out / "metrics.jsonl").read_text().splitlines()))
    assert heard.runs == [(out, 0, 4)] and len(validations) == 2
    again = Hearing()
    assert vitkit.train(short, out, listener=again) == out
    assert again.rows == [("", [f"This run has finished: {out}"])]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "Which images"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--recipe", "digit"], "Did you mean 'digits'"),
        (["train", "--recipe", "digits", "--model", "ViT-Q/4"], "No model is named"),
        (["train", "--recipe", "digits", "--device", "cuda:9"], "device"),
        (["train", "--recipe", "digits", "--optimizer", "adam"], "adamw"),
        (["train", "--recipe", "digits", "--epoch", "3"], "--epochs"),
        (["train", "--resume", "nowhere"], "no run folder"),
        (["evaluate", "nowhere"], "No checkpoint"),
        (["predict", "nowhere", "x.png"], "No checkpoint"),
        (["inspect", "nowhere"], "No checkpoint"),
        (["data"], "check PATH"),
        (["data", "check", "nowhere"], "nowhere"),
        (["models", "x*"], "No name matches"),
        (["models", "vit-b/160"], "Near it: ViT-B/16"),
        (["models", "ViT-7x1x2/4"], "width 7"),
        (["trian"], "Did you mean 'train'"),
        (["train", "--recipe", "digits", "--threads", "0"], "threads"),
        (["train", "--recipe", "digits", "--beta1", "1.5"], "beta1"),
        (["train", "--recipe", "digits", "--representation-size", "-3"], "representation_size"),
        (["train", "--recipe", "digits", "--splits.val-fraction", "0", "--patience", "2"], "validation"),
        (["train", "--resume", "x", "--out", "y"], "--out"),
        (["predict", "nowhere", "x.png", "--top", "0"], "top"),
        (["data", "check", "~nobody_of_this_name/x"], "~nobody_of_this_name"),
    ],
)
def test_mistakes_get_one_message_and_no_traceback(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(arguments)
    except SystemExit as exit:  # of the option parser
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert words in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "ViT-B*", "--image-size", "224"]) == 0
    assert "86,567,656" in capsys.readouterr().out
    assert run(["recipes"]) == 0
    assert "digits" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert vitkit.__version__ in capsys.readouterr().out
