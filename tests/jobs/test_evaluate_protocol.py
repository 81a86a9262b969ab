"""Test sets with ImageNet's classes, on made-up folders of their layouts and a model of random weights."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from vitkit.data.config import ProtocolName
from vitkit.evaluation.protocols import imagenet_wnids, list_labelled, outputs_of_classes, read_wnids
from vitkit.evaluation.statistics import binomial_interval
from vitkit.weights.model_card import ModelCard

WNIDS = imagenet_wnids()
SIDE = 8


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), 1000)


def make_model(folder: Path, outputs: int, names: tuple[str, ...] = ()) -> Path:
    """A model whose answers differ from image to image; its outputs are ImageNet's classes or in disorder."""
    generator = torch.Generator().manual_seed(6)
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=outputs, image_size=SIDE, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(generator=generator)
    model.card = ModelCard(class_names=names)
    return vitkit.save_model(model, folder)


def picture(path: Path, seed: int, border: int = 0) -> Path:
    """An image of noise; with a red border around it, where one is asked for."""
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    framed = np.zeros((SIDE + 2 * border, SIDE + 2 * border, 3), np.uint8)
    framed[..., 0] = 255
    framed[border : border + SIDE, border : border + SIDE] = pixels
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(framed).save(path, format="PNG")
    return path


def ranking(checkpoint: Path) -> Callable[[int], list[int]]:
    """For the image of a seed, all classes from the largest logit to the smallest."""
    predictor = vitkit.Predictor(checkpoint, device="cpu")

    def rank(seed: int) -> list[int]:
        pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        guesses = predictor(Image.fromarray(pixels), top=1000)
        return [int(guess.name.split()[-1]) for guess in guesses]

    return rank


def test_the_classes_are_a_thousand_in_order() -> None:
    assert len(WNIDS) == len(set(WNIDS)) == 1000 and list(WNIDS) == sorted(WNIDS)
    assert (WNIDS[0], WNIDS[1], WNIDS[999]) == ("n01440764", "n01443537", "n15075141")
    assert len(imagenet_wnids("a")) == len(imagenet_wnids("r")) == 200
    assert imagenet_wnids("a")[:2] == ("n01498041", "n01531178")  # classes 6 and 11
    assert [WNIDS.index(wnid) for wnid in imagenet_wnids("r")[:4]] == [1, 2, 4, 6]


@pytest.mark.parametrize(
    ("protocol", "mark"), [("imagenet-a", "a"), ("imagenet-r", "r"), ("imagenet", ""), ("imagenet-v2", "")]
)
def test_a_model_chooses_among_the_classes_of_the_set(
    protocol: ProtocolName, mark: str, checkpoint: Path, tmp_path: Path
) -> None:
    """The folders of ImageNet-V2 have the numbers of classes, which are no words: 10 comes after 9."""
    rank, wnids = ranking(checkpoint), imagenet_wnids(mark)
    folders = {name: str(WNIDS.index(name)) if protocol == "imagenet-v2" else name for name in WNIDS}
    allowed = {WNIDS.index(wnid) for wnid in wnids}
    labels, expected = {}, {}
    for seed in range(16):
        best = next(index for index in rank(seed) if index in allowed)
        labels[seed] = WNIDS[best] if seed % 3 == 0 else wnids[7 * seed]
        expected[seed] = labels[seed] == WNIDS[best]
        picture(tmp_path / "set" / folders[labels[seed]] / f"{seed}.png", seed)
    (tmp_path / "set" / folders[wnids[50]]).mkdir(exist_ok=True)  # an empty folder is no class with images
    (tmp_path / "set" / folders[labels[1]] / "broken.png").write_bytes(b"\x89PNG, and no more")
    evaluation = vitkit.evaluate_protocol(checkpoint, tmp_path / "set", protocol, device="cpu", batch_size=5)
    correct = sum(expected.values())
    assert correct >= 6 and (evaluation.count, evaluation.correct, evaluation.unreadable) == (16, correct, 1)
    assert evaluation.accuracy_interval == binomial_interval(correct, 16)
    assert evaluation.candidates == len(wnids) and not evaluation.left_out
    assert "because it names no classes" in evaluation.note
    for score in evaluation.per_class:
        mine = [seed for seed in expected if labels[seed] == score.name]
        assert (score.count, score.correct) == (len(mine), sum(expected[seed] for seed in mine))
    assert sum(score.count for score in evaluation.per_class) == 16
    accuracies = [score.accuracy for score in evaluation.per_class]
    assert accuracies == sorted(accuracies)
    if mark:  # without the restriction the answer would be another
        assert any(rank(seed)[0] not in allowed for seed in range(16))


def real_labels(path: Path, labels: dict[int, list[int]]) -> Path:
    every: list[list[int]] = [[] for _ in range(50_000)]
    for number, row in labels.items():
        every[number - 1] = row
    path.write_text(json.dumps(every))
    return path


def test_any_of_the_reassessed_labels_is_right(checkpoint: Path, tmp_path: Path) -> None:
    rank = ranking(checkpoint)
    labels = {
        1: [rank(1)[0]],
        2: [rank(2)[1], rank(2)[0]],  # the second of two is right as well
        3: [rank(3)[1]],
        50_000: [rank(50_000)[0], rank(50_000)[0]],
        17: [],
    }
    images = tmp_path / "val"
    for number in labels:
        picture(images / ("n01440764" if number == 3 else ".") / f"ILSVRC2012_val_{number:08d}.JPEG", number)
    for name in ("ILSVRC2012_val_00050001.JPEG", "holiday.png", "again/ILSVRC2012_val_00000001.JPEG"):
        picture(images / name, 1)
    real_labels(tmp_path / "real.json", labels)
    evaluation = vitkit.evaluate_protocol(checkpoint, images, "imagenet-real", device="cpu")
    assert (evaluation.count, evaluation.correct, evaluation.unreadable) == (4, 3, 0)
    assert evaluation.top5_correct == 4, "image 3 is what is second likeliest"
    assert sorted(evaluation.left_out.values()) == [1, 1, 2]
    assert evaluation.left_out["no label fits, as ReaL's raters found"] == 1
    counted = {score.name for score in evaluation.per_class if score.count}
    assert {WNIDS[label] for label in labels[2]} <= counted  # an image with two labels is under both
    # The second of two labels is the fifth answer.
    other = real_labels(tmp_path / "other.json", {1: [rank(1)[500], rank(1)[4]], 2: [rank(2)[5]]})
    again = vitkit.evaluate_protocol(checkpoint, images, "imagenet-real", labels=other, device="cpu")
    assert (again.count, again.correct, again.top5_correct, again.top5_accuracy) == (2, 0, 1, 0.5)
    assert again.top5_accuracy_interval == binomial_interval(1, 2)
    for wrong in ('{"a": 1}', "[[1]]", json.dumps([[1000]] * 50_000), "[["):
        (tmp_path / "real.json").write_text(wrong)
        refused(r"real\.json", list_labelled, "imagenet-real", str(images))
    (tmp_path / "real.json").unlink()
    refused(r"real\.json.*labels", vitkit.evaluate_protocol, checkpoint, images, "imagenet-real")


def objectnet(root: Path, rank: Callable[[int], list[int]]) -> None:
    """Four folders: two classes of ImageNet are a chair, one is a fan, and two folders are unknown to it."""
    mappings = root / "mappings"
    mappings.mkdir(parents=True)
    # Lines of ImageNet's labels, in another order than the classes: line 999 - i is class i.
    lines = [f"thing {999 - line}, such a thing" for line in range(1000)]
    chair = f"{lines[999 - rank(0)[0]]}; {lines[999 - rank(1)[0]]}"
    files = {
        "folder_to_objectnet_label.json": {
            "chair": "Chair", "fan": "Fan", "plate_rack": "Plate rack", "zinc": "Zinc"
        },
        "objectnet_to_imagenet_1k.json": {"Chair": chair, "Fan": lines[999 - rank(2)[0]]},
        "pytorch_to_imagenet_2012_id.json": {str(i): 999 - i for i in range(1000)},
    }  # fmt: skip
    for name, content in files.items():
        (mappings / name).write_text(json.dumps(content))
    (mappings / "imagenet_to_label_2012_v2").write_text("\n".join(lines) + "\n")
    for seed, folder in enumerate(["chair", "chair", "fan", "fan", "zinc", "plate_rack"]):
        picture(root / "images" / folder / f"{seed}.png", seed, border=2)


def test_any_class_that_an_object_is_counts_and_the_red_border_is_cut_off(
    checkpoint: Path, tmp_path: Path, cli: Cli
) -> None:
    """An image that is all border counts as unreadable."""
    rank, root = ranking(checkpoint), tmp_path / "objectnet-1.0"
    objectnet(root, rank)
    Image.new("RGB", (4, 40)).save(root / "images" / "fan" / "7.png")
    evaluation = vitkit.evaluate_protocol(checkpoint, root, "objectnet", device="cpu")
    chairs = {rank(0)[0], rank(1)[0]}
    expected = 2 + 1 + (rank(3)[0] == rank(2)[0])
    assert (evaluation.count, evaluation.correct, evaluation.unreadable) == (4, expected, 1)
    top5 = 2 + sum(rank(2)[0] in rank(seed)[:5] for seed in (2, 3))
    assert evaluation.top5_correct == top5 and evaluation.top5_accuracy == top5 / 4
    assert dict(evaluation.left_out) == {"of classes that ImageNet does not have": 2} and len(chairs) == 2
    assert {score.name: score.count for score in evaluation.per_class} == {"Chair": 2, "Fan": 2}
    # With the border the answers are others, or this test would not notice it.
    predictor = vitkit.Predictor(checkpoint, device="cpu")
    framed = [*sorted((root / "images").glob("[cf]*/[0-5].png"))]
    assert any(predictor(path)[0].name != f"class {rank(int(path.stem))[0]}" for path in framed)
    inner = list_labelled("objectnet", str(root / "images"))
    assert inner.groups == ("Chair", "Fan") and inner.accepted[0] == tuple(sorted(chairs))
    command = ["evaluate", str(checkpoint), "--data", str(root), "--device", "cpu"]
    printed = cli([*command, "--protocol", "objectnet"]).text
    assert "accuracy by objectnet on 4 images" in printed and "choosing among 1,000 classes" in printed
    assert "Left out: 2 images, of classes that ImageNet does not have." in printed
    numbers = json.loads(cli([*command, "--protocol", "objectnet", "--json"]).out)
    assert (numbers["count"], numbers["top5_correct"], len(numbers["per_class"])) == (4, top5, 2)
    for arguments, said in (
        ([*command[:2], "--protocol", "objectnet"], "needs --data"),
        ([*command, "--labels", "x"], "belong to a --protocol"),
        ([*command, "--protocol", "objectnet", "--split", "val"], "leave --split out"),
    ):
        assert said in cli(arguments, 1).err


def test_mappings_of_other_values_are_refused(tmp_path: Path) -> None:
    objectnet(tmp_path, lambda seed: [seed, seed + 1])
    for name, key, value in (
        ("folder_to_objectnet_label", "chair", ["Chair"]),
        ("objectnet_to_imagenet_1k", "Chair", ["thing"]),
        ("pytorch_to_imagenet_2012_id", "7", None),
        *(("pytorch_to_imagenet_2012_id", key, 7) for key in ("5000", "-1")),
        ("pytorch_to_imagenet_2012_id", "", None),  # all of it is missing
    ):
        path = tmp_path / "mappings" / f"{name}.json"
        whole = path.read_text()
        path.write_text(json.dumps({**json.loads(whole), key: value} if key else {}))
        refused("mappings of ObjectNet that agree", list_labelled, "objectnet", str(tmp_path))
        path.write_text(whole)
    path.unlink()
    refused(r"pytorch_to_imagenet_2012_id\.json is missing", list_labelled, "objectnet", str(tmp_path))


# The outputs of a model


def set_of_ten(root: Path, rank: Callable[[int], list[int]]) -> Path:
    for seed in range(10):
        picture(root / WNIDS[rank(seed)[seed % 2]] / f"{seed}.png", seed)
    return root


@pytest.mark.parametrize("by", ["names", "file", "folder"])
def test_outputs_in_another_order_are_matched_by_wnids(by: str, checkpoint: Path, tmp_path: Path) -> None:
    data, wnids = set_of_ten(tmp_path / "set", ranking(checkpoint)), None
    loaded = vitkit.load_model(checkpoint)
    order = np.arange(1000) if by == "folder" else np.random.default_rng(0).permutation(1000)
    with torch.no_grad():
        for name in ("weight", "bias"):
            getattr(loaded.head, name).copy_(getattr(loaded.head, name)[torch.from_numpy(order)])
    names = tuple(WNIDS[i] for i in order)
    loaded.card = ModelCard(class_names=names if by == "names" else ())
    vitkit.save_model(loaded, tmp_path / "model")
    if by == "file":
        wnids = tmp_path / "LOC_synset_mapping.txt"
        wnids.write_text("".join(f"{name} some words, more words\n" for name in names))
    for name in names if by == "folder" else ():
        wnids = tmp_path / "train"
        (wnids / name).mkdir(parents=True)
    evaluation = vitkit.evaluate_protocol(tmp_path / "model", data, "imagenet", wnids=wnids, device="cpu")
    assert (evaluation.count, evaluation.correct) == (10, 5)
    assert evaluation.note == "outputs are matched to classes by WordNet ids"


def test_the_classes_may_be_some_of_many_or_come_after_a_background() -> None:
    many = [f"n{i:08d}" for i in range(20)]
    for place, wnid in enumerate(WNIDS):
        many.insert(2 * place + 1 if place < 20 else len(many), wnid)
    columns, _ = outputs_of_classes("model", len(many), (), many)
    assert [many[column] for column in columns] == list(WNIDS) and len(many) == 1020
    assert (outputs_of_classes("model", len(many), many)[0] == columns).all()
    columns, note = outputs_of_classes("model", 1001, ())
    assert [*columns] == [*range(1, 1001)] and "after a background" in note
    refused(r"has 21,843 outputs: .*imagenet21k_goog_synsets\.txt", outputs_of_classes, "model", 21_843, ())


CLASS_NAMES = ("tench, Tinca tinca", "goldfish", *(f"word {i}" for i in range(2, 999)), "toilet tissue")


def test_words_are_taken_in_the_usual_order_if_they_are_in_it(checkpoint: Path, tmp_path: Path) -> None:
    data = set_of_ten(tmp_path / "set", ranking(checkpoint))
    loaded = vitkit.load_model(checkpoint)
    loaded.card = ModelCard(class_names=CLASS_NAMES)
    vitkit.save_model(loaded, tmp_path / "right")
    evaluation = vitkit.evaluate_protocol(tmp_path / "right", data, "imagenet", device="cpu")
    assert evaluation.correct == 5 and re.match(r"n\d{8} \(.*\w.*\)$", evaluation.per_class[0].name)
    loaded.card = ModelCard(class_names=tuple(sorted(CLASS_NAMES)))
    vitkit.save_model(loaded, tmp_path / "sorted")
    refused("found 'goldfish'", vitkit.evaluate_protocol, tmp_path / "sorted", data, "imagenet", device="cpu")


def test_a_model_of_other_classes_is_refused(tmp_path: Path) -> None:
    picture(tmp_path / "set" / WNIDS[0] / "0.png", 0)
    cases: tuple[tuple[int, tuple[str, ...], str], ...] = (
        (10, (), "has 10 outputs: expected the 1,000 classes of ImageNet"),
        (3, ("n01440764", "n01443537", "n15075141"), "without 997 of them, n01484850 first"),
        (0, (), "has no head"),
    )
    for outputs, names, message in cases:
        model = make_model(tmp_path / f"model-{outputs}", outputs, names)
        refused(message, vitkit.evaluate_protocol, model, tmp_path / "set", "imagenet", device="cpu")


def test_lists_of_wordnet_ids_that_are_none_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    for text in (b"tench\n", b"", f"{WNIDS[0]}\n{WNIDS[0]}\n".encode(), b"\xff\xfe\n"):
        (tmp_path / "wnids.txt").write_bytes(text)
        refused(r"wnids\.txt", read_wnids, str(tmp_path / "wnids.txt"))
    (tmp_path / "wnids.txt").write_text("\n".join(WNIDS[:999]))
    image = picture(tmp_path / "set" / WNIDS[0] / "0.png", 0)
    with pytest.raises(vitkit.VitkitError, match=r"1,000 outputs, and wnids lists 999"):
        vitkit.evaluate_protocol(checkpoint, tmp_path / "set", "imagenet", wnids=tmp_path / "wnids.txt")
    image.write_bytes(b"no image")
    refused("could be read", vitkit.evaluate_protocol, checkpoint, tmp_path / "set", "imagenet", device="cpu")


def test_folders_of_another_layout_are_refused(tmp_path: Path) -> None:
    cases: tuple[tuple[ProtocolName, tuple[str, ...], str], ...] = (
        ("imagenet-a", ("n01440764",), "its 200 classes such as n01498041, .*; found n01440764"),
        ("imagenet", ("cats", "dogs"), "found cats, dogs"),
        ("imagenet-v2", ("7", "n01494475", "4"), "two folders of one class"),
        ("imagenet-real", ("n01440764",), "Expected the labels"),
        ("objectnet", ("chair",), "Expected the labels in .*mappings"),
        ("imagenet", (), "No images in"),
    )
    for number, (protocol, folders, message) in enumerate(cases):
        root = tmp_path / str(number) / "set"
        root.mkdir(parents=True)
        for folder in folders:
            picture(root / folder / "0.png", 0)
        refused(message, list_labelled, protocol, str(root))
