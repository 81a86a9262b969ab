"""`vitkit starts --try`: the same images for every start, honest differences, and who is left out."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.fewshot import class_folders, save_start
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.evaluation import statistics
from vitkit.evaluation.fewshot.methods import FewShotScore, open_fewshot_data
from vitkit.jobs import try_starts as job
from vitkit.jobs.try_starts import Tried, accuracy_interval, compare, rank
from vitkit.models.measure import forward_flops, inference_memory
from vitkit.weights.files import download
from vitkit.weights.files.download import Fetched

NAME = "vit-s16-augreg-in21k"
QUICK: dict[str, Any] = {"shots": 3, "seeds": 3}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return str(class_folders(tmp_path / "images", {"dark": 12, "grey": 12, "light": 12}))


@pytest.fixture
def starts(tmp_path: Path) -> list[str]:
    """Three starts, the most expensive first."""
    large = save_start(tmp_path / "large", 2, name="ViT-32x2x2/2")
    return [large, save_start(tmp_path / "one", 0), save_start(tmp_path / "two", 1)]


def make_tried(name: str, right: Any, gflops: float = 1.0) -> Tried:
    """A start with predictions made up: `(S, N)`, whether each is right."""
    right = np.asarray(right, bool)
    accuracies = tuple(right.mean(1).tolist())
    score = FewShotScore("ridge", 3, accuracies, float(right.mean()), None, None, (), (), (), right)
    return Tried(
        start=name,
        name=name,
        features=1,
        trained_on_these=False,
        scores=(score,),
        licence="",
        gflops=gflops,
        milliseconds=1.0,
        minutes=0.1,
        interval=(0.0, 1.0),
    )


# The numbers


def test_accuracies_are_those_of_fewshot_and_differences_those_of_its_predictions(
    photos: str, starts: list[str]
) -> None:
    result = vitkit.try_starts(photos, starts, **QUICK)
    fewshot = vitkit.fewshot(starts, photos, shots=(3,), seeds=3, methods=("ridge",))
    accuracies = {model.start: model.scores[0].accuracies for model in fewshot.models}
    assert {each.start: each.best.accuracies for each in result.models} == accuracies
    assert result.test_images == fewshot.test_images == 8
    best, *others = result.models
    assert best.to_best is None and best.best.mean == max(each.best.mean for each in result.models)
    for each in others:
        assert each.to_best is not None
        paired = statistics.paired_difference(best.best.right.astype(float), each.best.right.astype(float))
        assert replace(each.to_best, interval=paired.interval, p=paired.p) == paired
        assert each.to_best.interval[0] <= paired.interval[0] < paired.interval[1] <= each.to_best.interval[1]
        assert each.to_best.mean == pytest.approx(each.best.mean - best.best.mean)
    for each in result.models:
        assert each.gflops == forward_flops(vitkit.load_model(each.start).config) / 1e9
        assert each.milliseconds > 0 and each.interval[0] <= each.best.mean <= each.interval[1]


def test_a_difference_is_adjusted_over_all_pairs_because_the_best_was_chosen_by_it() -> None:
    rng = np.random.default_rng(0)
    rights = [rng.random((5, 60)) < level for level in (0.75, 0.7, 0.35)]
    ranked = rank([make_tried(f"start {number}", right) for number, right in enumerate(rights)])
    assert [each.best.mean for each in ranked] == sorted((right.mean() for right in rights), reverse=True)
    first, second, third = (each.best.right for each in ranked)
    pairs = ((first, second), (first, third), (second, third))
    adjusted = statistics.holm([compare(*pair).p for pair in pairs])
    assert [each.adjusted_p for each in ranked] == [1, *adjusted[:2]]
    assert ranked[1].adjusted_p >= statistics.SURE > ranked[2].adjusted_p


def test_a_few_images_prove_little() -> None:
    """Starts that agree everywhere, or differ always alike, have no spread that a variance would show."""
    always = np.ones((5, 12), bool)
    assert accuracy_interval(always) == statistics.binomial_interval(12, 12)
    equal = compare(always, always)
    assert equal.p == 1 and equal.interval == statistics.bonett_price(0, 0, 12)[0]
    few = compare(np.zeros((5, 3), bool), np.ones((5, 3), bool))
    assert few.p == 1 and few.interval == (-1.0, 1.0)
    rng = np.random.default_rng(2)
    many = rng.random((5, 400)) < 0.5
    wider = statistics.paired_difference(np.zeros(many.shape), many.astype(float)).interval
    low, high = accuracy_interval(many)
    assert low <= wider[0] and high >= wider[1]


@pytest.mark.parametrize(("draws", "images"), [(3, 50), (3, 400), (5, 50), (5, 400)])
def test_starts_of_equal_accuracy_differ_rarely(draws: int, images: int) -> None:
    """In at most 8 % of 200 test sets, for a test at 5 %: images are hard for both, draws good or bad."""
    rng, differing = np.random.default_rng(0), 0
    for _ in range(200):
        image = rng.normal(0.8, 1.0, images) + rng.normal(0, 0.7, (2, 1, images))
        draw = rng.normal(0, 0.2, (draws, 1)) + rng.normal(0, 0.15, (2, draws, 1))
        right = image + draw + rng.normal(0, 0.6, (2, draws, images)) > 0
        differing += compare(right[0], right[1]).p < statistics.SURE
    assert differing <= 16


def test_what_is_said_of_starts_that_may_be_equal_and_of_others(photos: str, starts: list[str]) -> None:
    tried = replace(vitkit.try_starts(photos, starts[1], **QUICK), test_images=60)
    right = np.random.default_rng(1).random((5, 60)) < 0.8
    right[:, 0] = True
    almost = right.copy()
    almost[:, 0] = False

    def said(*models: Tried) -> str:
        return " ".join(replace(tried, models=tuple(rank(models))).headline())

    dear = make_tried("dear", right, 9.0)
    equal = said(dear, make_tried("cheap", almost, 2.0))
    assert "It is 1.7 points ahead of cheap (p " in equal
    assert "No difference found from cheap (2 GFLOPs); dear has 9 GFLOPs." in equal
    far = said(dear, make_tried("cheap", ~right, 2.0))
    assert "points ahead of cheap" in far and "No difference" not in far
    assert "ahead" not in said(dear)


def test_of_many_test_images_a_part_with_their_proportions_is_taken(
    tmp_path: Path, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = str(tmp_path / "many")
    class_folders(tmp_path / "many" / "train", {"dark": 3, "grey": 3, "light": 3})
    class_folders(tmp_path / "many" / "test", {"dark": 60, "grey": 30, "light": 30})
    assert vitkit.try_starts(photos, starts[1], **QUICK).test_images == 120
    monkeypatch.setattr(job, "MOST_TEST_IMAGES", 40)
    assert vitkit.try_starts(photos, starts[1], **QUICK).test_images == 40
    opened = job.with_fewer(open_fewshot_data(photos), 40)
    assert np.bincount(opened.test.labels).tolist() == [20, 10, 10]


# Who is left out


def test_whoever_cannot_be_tried_is_left_out_by_name_and_costs_the_others_nothing(
    photos: str, starts: list[str], tmp_path: Path
) -> None:
    pools_not = str(tmp_path / "no_pool")
    vitkit.save_model(
        vitkit.build_model(replace(vitkit.load_model(starts[1]).config, pool="none")), pools_not
    )
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    given = ["nowhere", pools_not, str(tmp_path / "broken.safetensors"), NAME, *starts]
    result = vitkit.try_starts(photos, given, **QUICK)
    assert sorted(each.start for each in result.models) == sorted(starts)
    reasons = {Path(name).name: reason for name, reason in result.left_out.items()}
    assert reasons["nowhere"] == "No checkpoint at nowhere."
    assert "has no pooling" in reasons["no_pool"]
    assert set(reasons) == {"nowhere", "no_pool", "broken.safetensors", NAME}
    assert reasons[NAME].startswith("not on this disk (about 120 MB at hf:timm/vit_small_patch16_224.")
    refused("No start could be tried. nowhere: No checkpoint", vitkit.try_starts, photos, ["nowhere"])


def test_cheap_starts_go_first_and_the_time_leaves_out_the_dear_ones(
    photos: str, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing = Hearing()
    # An image takes a second of the large start and none of the others.
    monkeypatch.setattr(job, "measure_pace", lambda extractor, _: float(extractor.model.config.width == 32))
    result = vitkit.try_starts(photos, starts, minutes=0.1, listener=hearing, **QUICK)
    features = [loop for loop in hearing.loops if loop.startswith("features of shots")]
    assert features == ["features of shots, one", "features of shots, two"]
    (reason,) = result.left_out.values()
    assert reason.startswith("time: its features take about ") and "of minutes are left" in reason


def test_what_would_take_too_long_or_too_much_memory_is_left_out(
    photos: str, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused("No start could be tried.*time: ", vitkit.try_starts, photos, starts, minutes=1e-9)
    memory = inference_memory(vitkit.load_model(starts[1]).config, job.BATCH)
    monkeypatch.setattr(job, "free_memory", lambda device: memory.peak + memory.weights)
    result = vitkit.try_starts(photos, starts, **QUICK)
    assert len(result.models) == 2
    assert next(iter(result.left_out.values())).startswith("memory: its features take ")


# Fetching and licences


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somewhere else, from where every address is answered with a small model; the addresses."""
    elsewhere, addresses = Path(save_start(tmp_path / "elsewhere", 5)), list[str]()

    def fetch(address: str, _: Any) -> Fetched:
        addresses.append(address)
        return Fetched(elsewhere, {"source": address})

    monkeypatch.setattr(download, "from_hub", fetch)
    return addresses


def test_a_start_is_fetched_with_permission_alone(photos: str, starts: list[str], mirror: list[str]) -> None:
    given = [starts[1], NAME, "vit-b16-mae-*"]
    result = vitkit.try_starts(photos, given, **QUICK)
    assert set(result.left_out) == {NAME, "vit-b16-mae-in1k"}
    refused("nowhere", vitkit.try_starts, "nowhere", NAME, download=True)  # there are no images
    assert not mirror
    result = vitkit.try_starts(photos, given, download=True, **QUICK)
    assert len(mirror) > 0 and not result.left_out
    licences = {each.start: each.licence.partition(" ")[0] for each in result.models}
    assert licences == {starts[1]: "", NAME: "Apache-2.0", "vit-b16-mae-in1k": "CC-BY-NC-4.0"}


def test_without_a_network_the_starts_that_are_here_are_tried(
    photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> None:
        raise vitkit.VitkitError(f"{address} cannot be fetched: no network.")

    monkeypatch.setattr(download, "_list_files", refuse)
    save_start(tmp_path / "cache" / "starts" / "vit-b16-dino-in1k")  # put by hand
    result = vitkit.try_starts(photos, download=True, **QUICK)
    assert [each.start for each in result.models] == ["vit-b16-dino-in1k"]
    assert result.models[0].licence.startswith("Apache-2.0")
    assert set(result.left_out) == {*job.CANDIDATES}
    assert "no network" in result.left_out[NAME]


# The command line


def test_the_verb_prints_the_table_and_the_numbers(photos: str, starts: list[str], cli: Cli) -> None:
    line = ["starts", "--try", photos, *starts[1:], "--shots", "3", "--seeds", "2"]
    said = cli([*line, "--model", "ViT-H/14"]).text
    assert "left out vit-h14-in21k: not on this disk (about 2,523 MB at hf:" in said
    numbers = json.loads(cli([*line, "--json"]).out)
    assert [len(each["scores"][0]["accuracies"]) for each in numbers["models"]] == [2, 2]
    assert "right" not in numbers["models"][0]["scores"][0]
    assert "--minutes belongs to --try DATA" in cli(["starts", "--minutes", "3"], 1).text
