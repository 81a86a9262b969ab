"""Few-shot evaluation as a job, at the command line and in training: features, draws, what is said."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.fewshot import SIZE, Seen, class_folders, counted, save_start, write_image
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import DecodeRule, Loading, Preprocessing, Splits
from vitkit.data.listing import class_numbers
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import open_data
from vitkit.data.transforms import preprocess
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.evaluation.fewshot.methods import Draws, fit, follow, open_fewshot_data
from vitkit.training.config import TrainingConfig
from vitkit.weights.model_card import ModelCard, TrainingData


def test_numbers_are_those_of_each_step_done_by_hand(data: str, start: str) -> None:
    fewshot = vitkit.fewshot(start, data, shots=(5, 1, 5), seeds=2, methods=("ridge",), cache=False)
    opened = open_data(data, Splits(val_fraction=0, test_fraction=0.2))
    model = vitkit.load_model(start)
    evaluator_images = Preprocessing(SIZE, antialias=False)  # what a file without preprocessing stands for

    def features(split: str, indices: Any) -> Any:
        images = [preprocess(opened.splits[split].decode(int(i)), evaluator_images) for i in indices]
        with torch.inference_mode():
            return model.features(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)).numpy()

    labels = class_numbers(opened.splits["train"].labels)
    true = opened.splits["test"].labels
    test = features("test", range(len(true)))
    assert fewshot.shots == (1, 5) and fewshot.test_images == len(true) == 8
    for score in fewshot.models[0].scores:
        for seed in (0, 1):
            drawn = Draws(labels, 3, seed).take(score.shots)
            predicted = fit("ridge", features("train", drawn), labels[drawn], 3).predict(test)
            assert score.accuracies[seed] == (predicted == true).mean()
    assert (fewshot.chance, fewshot.majority, fewshot.models[0].features) == (1 / 3, 3 / 8, 16)


def test_features_are_computed_once_for_what_is_drawn_or_tested(data: str, start: str) -> None:
    seen, hearing = Seen(), Hearing()
    small: dict[str, Any] = {"shots": (1, 2), "seeds": 2, "batch_size": 5}
    labels = class_numbers(open_data(data, Splits(0, 0.2)).splits["train"].labels)
    needed = len({index for seed in (0, 1) for index in Draws(labels, 3, seed).take(2).tolist()}) + 8
    with counted(seen):
        first = vitkit.fewshot(start, data, **small)
        assert len(seen) == needed
        assert vitkit.fewshot(start, data, **small) == first
        assert len(seen) == needed  # all of it was kept
        vitkit.fewshot(start, data, cache=False, **small)
        assert len(seen) == 2 * needed
        for entry in Path("cache/features").iterdir():
            entry.write_bytes(entry.read_bytes()[:-1])
        assert vitkit.fewshot(start, data, listener=hearing, **small) == first
        assert sum("damaged" in note for note in hearing.notes) == 2 and len(seen) == 3 * needed
        vitkit.fewshot(save_start(Path("other"), seed=1), data, **small)
        assert len(seen) == 4 * needed


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=6).filter(lambda counts: max(counts) > 1),
    shots=st.integers(1, 12),
    seed=st.integers(0, 4),
    bad=st.floats(0, 0.5),
)
def test_no_test_image_is_among_the_shots(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], shots: int, seed: int, bad: float
) -> None:
    root = tmp_path_factory.mktemp("images")
    for name, count in enumerate(counts):
        (root / str(name)).mkdir()
        for i in range(count):
            (root / str(name) / f"{i}.png").write_bytes(b"%d %d" % (name, i))  # listed, never decoded
    opened = open_fewshot_data(str(root))
    unreadable = np.random.default_rng(0).permutation(len(opened.pool))[: int(bad * len(opened.pool))]
    tested = {opened.test.key(i) for i in range(len(opened.test))}
    draws = Draws(class_numbers(opened.pool.labels), opened.classes, seed)
    drawn = draws.take(shots, unreadable.tolist())
    keys = {opened.pool.key(i) for i in drawn.tolist()}
    assert len(keys) == len(drawn) and not tested & keys
    assert not set(unreadable.tolist()) & set(drawn.tolist())
    assert np.bincount(opened.pool.labels[drawn], minlength=len(counts)).max() <= shots


def test_the_test_split_is_taken_else_val_else_a_part(tmp_path: Path) -> None:
    for splits, tested, folder, pool in (
        ("train val test", "test", "test", 20),
        ("train val", "val", "val", 20),
        ("train", "test", "train", 16),
    ):
        for split in splits.split():
            class_folders(tmp_path / splits / split, {"a": 10, "b": 10})
        opened = open_fewshot_data(str(tmp_path / splits))
        assert (opened.test_split, len(opened.pool)) == (tested, pool)
        assert {opened.test.key(i).split("/")[0] for i in range(len(opened.test))} == {folder}


def test_every_checkpoint_meets_the_same_images(data: str, tmp_path: Path) -> None:
    """One of them refuses an image that the others read: it is left out for all."""
    Image.fromarray(np.full((64, 64, 3), 60, np.uint8)).save(tmp_path / "images" / "dark" / "00.png")
    rule = DecodeRule(max_pixels=1000)
    card = ModelCard(preprocessing=Preprocessing(SIZE, decode=rule))
    strict, loose = save_start(tmp_path / "strict", card=card), save_start(tmp_path / "loose")
    both = vitkit.fewshot([loose, strict], data, shots=(3, 30), cache=False)
    alone = vitkit.fewshot(strict, data, shots=(3, 30), cache=False)
    assert both.rejects == alone.rejects and list(both.rejects) == ["dark/00.png"]
    assert both.models[1].scores == alone.models[0].scores


def test_for_an_unreadable_shot_the_next_one_is_drawn(data: str, start: str) -> None:
    opened = open_fewshot_data(data)
    first, second = Draws(class_numbers(opened.pool.labels), 3, 0).take(2)[:2].tolist()
    path = Path(data) / opened.pool.key(first)
    path.write_bytes(b"no image")
    measure = partial(vitkit.fewshot, start, data, methods=("knn",))
    fewshot = measure(shots=(1,), seeds=1)
    assert list(fewshot.rejects) == [opened.pool.key(first)]
    assert measure(shots=(1,), seeds=1) == fewshot  # from the cache
    left = np.bincount(opened.pool.labels) - [1, 0, 0]  # the first shot is one of class 0
    assert list(measure(shots=(30,)).fewer.values()) == left.tolist()
    path.write_bytes((Path(data) / opened.pool.key(second)).read_bytes())
    assert measure(shots=(1,), seeds=1).models == fewshot.models


def test_no_readable_test_image_is_an_error(start: str, tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images" / "train", {"a": 3, "b": 3}).parent
    for path in class_folders(root / "test", {"a": 1, "b": 1}).glob("*/*"):
        path.write_bytes(b"no image")
    refused(r"None of the 2 test images of .* The first, test/a/00.png: ", vitkit.fewshot, start, str(root))


def test_a_class_with_fewer_images_than_shots_is_named(start: str, tmp_path: Path) -> None:
    data, hearing = str(class_folders(tmp_path / "few", {"a": 9, "b": 1, "c": 7})), Hearing()
    fewshot = vitkit.fewshot(start, data, shots=(1, 5), listener=hearing)
    assert fewshot.fewer == {"b": 1}
    assert any("fewer than 5" in note and "b (1)" in note for note in hearing.notes)
    assert fewshot.models[0].scores[0].class_accuracy[1] is None  # its only image is a shot


def test_draws_that_are_all_alike_are_given_no_interval(start: str, tmp_path: Path) -> None:
    """Every image is a shot: another draw would be the same."""
    data = str(class_folders(tmp_path / "few", {"a": 8, "b": 8}))
    fewshot = vitkit.fewshot(start, data, shots=(50,), methods=("ridge",), seeds=3)
    score = fewshot.models[0].best
    assert score.interval == (score.mean, score.mean) and score.shown_interval is None
    several = vitkit.fewshot(start, data, shots=(1,), methods=("ridge",), seeds=3).models[0].best
    apart = replace(several, accuracies=(0.5, 0.75), interval=(0.4, 0.8))
    assert apart.shown_interval == (0.4, 0.8)


def test_test_images_among_the_shots_are_counted(start: str, tmp_path: Path) -> None:
    root, hearing = tmp_path / "images", Hearing()
    class_folders(root / "train", {"a": 4, "b": 4})
    for i in range(3):
        write_image(root / "test" / "a" / f"{i}.png", 900 + i, 60)
        write_image(root / "test" / "b" / f"{i}.png", 800 + i, 120)
    copied = Image.open(root / "train" / "a" / "01.png")
    copied.save(root / "test" / "b" / "copy.bmp")  # another file, the same pixels
    almost = np.array(copied)
    almost[0, 0, 0] ^= 1
    Image.fromarray(almost).save(root / "test" / "a" / "almost.png")
    fewshot = vitkit.fewshot(start, str(root), shots=(4,), listener=hearing)
    assert fewshot.repeated == 1
    assert any("1 test image is among the shots" in note for note in hearing.notes)
    # What looks the same to the model and is another file is told apart by its pixels.
    wide = Image.fromarray(np.full((40, 40, 3), 77, np.uint8))
    wide.save(root / "train" / "a" / "00.png")
    Image.fromarray(np.full((20, 20, 3), 77, np.uint8)).save(root / "test" / "a" / "small.png")
    assert vitkit.fewshot(start, str(root), shots=(4,)).repeated == 1


def test_the_head_does_not_matter_and_without_pooling_a_model_is_refused(data: str, tmp_path: Path) -> None:
    without = save_start(tmp_path / "without")
    other = save_start(tmp_path / "with", num_classes=7, card=ModelCard(class_names=tuple("abcdefg")))
    scores = [vitkit.fewshot(path, data, shots=(2,)).models[0].scores for path in (without, other)]
    assert scores[0] == scores[1]
    config = replace(vitkit.load_model(other).config, pool="none")
    vitkit.save_model(vitkit.build_model(config), tmp_path / "tokens")
    refused(r"has no pooling \(pool none\).*token, mean or map", vitkit.fewshot, tmp_path / "tokens", data)


def test_data_that_a_model_was_trained_on_is_cut_as_it_was_then(data: str, tmp_path: Path) -> None:
    splits = Splits(0.25, 0.25, seed=3)
    fingerprint = open_data(data, splits).fingerprint()
    card = ModelCard(data=TrainingData(absolute_spec(data), "images", splits, fingerprint))
    hearing = Hearing()
    start = save_start(tmp_path / "trained", card=card)
    fewshot = vitkit.fewshot(start, data, shots=(1,), listener=hearing)
    assert fewshot.models[0].trained_on_these and fewshot.test_images == 9
    assert any("was trained on" in note for note in hearing.notes)


HOSTILE = "cat\x1b[2J"


def test_one_checkpoint_at_the_command(data: str, start: str, cli: Cli) -> None:
    (Path(data) / "dark").rename(Path(data) / HOSTILE)
    (Path(data) / "light").rename(Path(data) / "<i>light")
    shown = cli(["fewshot", start, "--data", data, "--shots", "1,4", "--out", "out"]).out
    assert "\x1b" not in shown and "a class drawn at random is right for 33.3%" in shown
    numbers, page = json.loads(Path("out/images.json").read_text()), Path("out/images.html").read_text()
    assert (numbers["models"][0]["start"], numbers["data"]) == (Path(start).name, Path(data).name)
    scores = numbers["models"][0]["scores"]
    best = max(scores, key=lambda score: (score["shots"], score["mean"]))
    assert f"is right on {best['mean']:.1%} of" in page
    assert "<svg" in page and "Class by class" in page and str(Path(data).parent) not in page
    for score in scores:
        assert f"{score['mean']:.2%}" in page and f"{score['mean']:.2%}" in shown
    assert "<i>light" not in page and "&lt;i&gt;light" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")  # needs no network


def test_accuracy_is_drawn_over_the_pretraining(data: str, tmp_path: Path, cli: Cli) -> None:
    """As Figure 4 (right) of the paper: two architectures, and a checkpoint that tells nothing."""
    sizes = {"few": 1_000, "many": 1_000_000, "untold": None}
    starts = []
    for seed, (name, size) in enumerate(sizes.items()):
        origin = {} if size is None else {"training_images": size}
        starts.append(save_start(tmp_path / name, seed, card=ModelCard("ViT-16x2x2/4", origin=origin)))
    command = ["--data", data, "--shots", "1,2", "--methods", "ridge,knn", "--image-size", "8", "12"]
    numbers = json.loads(cli(["fewshot", *starts, *command, "--json"]).out)
    assert [model["name"] for model in numbers["models"]] == list(sizes)
    assert [model["pretraining_images"] for model in numbers["models"]] == list(sizes.values())
    shown = cli(["fewshot", *starts, *command]).text
    assert f"{data} --image-size 8 12 (to compare them)" in shown
    svg = Path("fewshot/images-pretraining.svg").read_text()
    assert "images of the pre-training" in svg and "ViT-16x2x2/4" in svg
    page = Path("fewshot/images.html").read_text()
    assert "few, pre-trained on 1,000 images" in page and "untold, pre-trained" not in page
    assert page.count("<td>many</td>") == 4  # a row for each method and number of shots
    assert run(["fewshot", starts[0], starts[2], *command, "--out", "one"]) == 0
    assert not Path("one/images-pretraining.png").exists()
    assert "images of the pre-training" not in Path("one/images.html").read_text()


def extractors(preprocessing: Preprocessing) -> Any:
    return partial(FeatureExtractor, preprocessing=preprocessing, device=torch.device("cpu"))


def test_the_evaluator_measures_what_the_command_does_and_changes_nothing(data: str, start: str) -> None:
    model = vitkit.load_model(start).train()
    preprocessing = Preprocessing(SIZE, antialias=False)
    tracking = FewShotTracking(data, shots=(1, 5))
    evaluate = follow(tracking, extractors(preprocessing), ("ridge", "knn"))
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    measured = evaluate(model, torch.nn.Module())
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, before, model.parameters()))
    scores = vitkit.fewshot(start, data, shots=(1, 5), methods=("ridge", "knn")).models[0].scores
    assert measured == {f"{score.method}_{score.shots}_shots": score.mean for score in scores}
    assert evaluate(model, torch.nn.Module()) == measured
    with torch.no_grad():  # other features, by weights that are the same in every run of the test
        model.get_parameter("blocks.0.mlp.fc1.weight").normal_(generator=torch.Generator().manual_seed(1))
    assert evaluate(model, torch.nn.Module()) != measured


@pytest.mark.parametrize("wrong", [{"shots": (0,)}, {"shots": ()}, {"every": 0}, {}])
def test_following_that_cannot_be_meant_is_refused(wrong: dict[str, Any], data: str) -> None:
    with pytest.raises(vitkit.VitkitError, match=r"few-shot evaluation|every is at least 1|found Linear"):
        tracking = FewShotTracking(data, **wrong)
        follow(tracking, extractors(Preprocessing(SIZE)))(torch.nn.Linear(2, 2), torch.nn.Module())


def test_few_shot_accuracy_is_logged_while_a_model_is_trained(data: str, tmp_path: Path) -> None:
    """Every three steps and after the last, with the accuracy that the command finds of the model; the
    weights are those of a run without."""
    other, hearing = str(class_folders(tmp_path / "other", {"x": 9, "y": 9})), Hearing()
    run = vitkit.Run(
        data=data,
        model="ViT-16x2x2/4",
        preprocessing=Preprocessing(SIZE),
        training=TrainingConfig(steps=6, batch_size=4, evaluate_every=2),
        loading=Loading(workers=0),
    )
    following = replace(run, fewshot=FewShotTracking("other", 3, (2, 4)))
    followed = vitkit.train(following, "followed", listener=hearing)
    alone = vitkit.train(run, "alone")
    assert (followed / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (followed / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line.get("evaluator") == "fewshot"]
    assert [line["step"] for line in measured] == [3, 6]
    assert all({"ridge_2_shots", "ridge_4_shots"} <= line.keys() for line in measured)
    others = list(map(json.loads, (alone / "metrics.jsonl").read_text().splitlines()))
    assert [line for line in lines if line not in measured] == others
    assert any("4 shots" in detail for _, _, detail in hearing.milestones)
    page = (followed / "report.html").read_text()
    assert "Few-shot accuracy while it was trained" in page and "; at step 6: 2 shots" in page
    for line in measured:
        assert f">{line['ridge_4_shots']:.1%}</td>" in page
    assert "Few-shot accuracy while" not in (alone / "report.html").read_text()
    assert json.loads((followed / "config.json").read_text())["run"]["fewshot"]["data"] == other
    nowhere = replace(run, fewshot=FewShotTracking("nowhere"))
    refused("No data at", vitkit.train, nowhere, "nothing")
    assert not Path("nothing").exists()
