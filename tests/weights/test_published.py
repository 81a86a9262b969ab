"""Published checkpoints by name: the table is right, and a name stands where a path does."""

import csv
import functools
import hashlib
import json
import math
import re
import runpy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import vitkit
from tests.helpers.file_server import Hosted, npz, running_server
from tests.helpers.refusals import refused
from vitkit.cli import console
from vitkit.cli.main import run
from vitkit.cli.verbs import print_starts
from vitkit.durable import cache_folder
from vitkit.errors import VitkitError
from vitkit.jobs.finetune import finetune_run
from vitkit.models.config import ResNetConfig
from vitkit.models.measure import forward_flops, parameters
from vitkit.models.zoo import list_models, model_config, name_here
from vitkit.runs.start import absolute_start, find_start
from vitkit.weights.files import download
from vitkit.weights.files.download import Fetched
from vitkit.weights.loading import load, save_model
from vitkit.weights.model_card import ModelCard, card_of
from vitkit.weights.published import (
    FREE_LICENCES,
    LICENCE_TERMS,
    SOURCES,
    PublishedStart,
    describe_origin_licence,
    is_address,
    pretraining_images,
    starts,
)

STARTS = starts()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return cache_folder()


# The table


def test_names_are_of_one_kind_and_none_is_a_model() -> None:
    names = [start.name for start in STARTS]
    assert len(set(names)) == len(names) == 108
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name) for name in names)
    assert not {model.lower() for model in list_models()} & set(names)


def test_sizes_and_costs_are_those_of_the_models() -> None:
    @functools.cache
    def measured(*model: Any) -> tuple[int, float]:
        config = model_config(*model)
        return parameters(config), forward_flops(config, head=True) / 1e9

    for start in STARTS:
        count, gflops = measured(start.model, start.classes, start.image_size)
        # Layer scales, registers and tanh layers are a few numbers beside the weights.
        assert math.isclose(start.parameters, count, rel_tol=0.025), start.name
        assert math.isclose(start.gflops, gflops, rel_tol=0.03, abs_tol=0.05), start.name


def test_an_accuracy_has_a_source_and_a_start_that_is_not_free_one_beside_it() -> None:
    by_name = {start.name: start for start in STARTS}
    for start in STARTS:
        measured = {start.accuracy is None, not start.accuracy_by, not start.accuracy_source}
        assert len(measured) == 1, start.name
        assert start.accuracy is None or 60 < start.accuracy < 90
        assert start.licence in LICENCE_TERMS
        assert (start.licence in FREE_LICENCES) == (not start.free), start.name
        if start.free:
            beside = by_name[start.free]
            assert beside.licence in FREE_LICENCES and not beside.gate
            assert math.isclose(beside.parameters, start.parameters, rel_tol=0.02)
        assert not start.gate or start.licence not in FREE_LICENCES
    (mae,) = starts("vit-b16-mae-in1k")
    assert mae.terms == "CC-BY-NC-4.0 (no commercial use)"
    assert replace(mae, licence="a new one").terms == "a new one"


def test_an_address_is_of_the_model_and_the_size() -> None:
    """The words of the addresses themselves, which their publishers chose, say the same as the columns."""
    for start in STARTS:
        assert start.source and set(start.source) <= set(SOURCES)
        for address in start.addresses:
            assert re.fullmatch(r"hf:[\w-]+/[\w.-]+|(gs|https)://[\w./+-]+\.(npz|pth)", address)
            here = name_here(address.removeprefix("hf:")) if address.startswith("hf:") else None
            assert here in (None, start.model)
            size = re.search(r"(?:_|-|res_)(224|256|384|512)(?=\.|_|-|$)", address)
            if size and not (start.model.startswith("BiT") and address.startswith("hf:")):
                assert int(size[1]) == start.image_size


def test_the_list_is_cut_down_by_name_model_and_data() -> None:
    only = starts("vit-b16-in21k*", model="vit-b/16", data="imagenet21k")
    assert [start.name for start in only] == ["vit-b16-in21k"]
    tuned = starts("vit-b16-in21k*", data="ImageNet-21k, ImageNet-1k")
    assert [start.image_size for start in tuned] == [224, 384]
    assert {start.model for start in starts(model="BiT-*", data="imagenet-1k")} == {
        f"BiT-{name}" for name in ("R50x1", "R101x1", "R50x3", "R101x3", "R152x4")
    }
    assert len(starts(data="imagenet")) == len([start for start in STARTS if "ImageNet" in start.data])
    for wrong, message in (
        ({"model": "ViT-B/17"}, "has the model 'ViT-B/17'. Known: ViT-B/16;"),
        ({"data": "JFT"}, "has the data 'JFT'. Known: ImageNet-21k;"),
    ):
        refused(re.escape(message), starts, **wrong)
    refused(r"'vit-b16-augreg-in22k'\. Near it: vit-b16-augreg-in21k,", starts, "vit-b16-augreg-in22k")


# Names in place of paths


def test_a_name_is_an_address_that_holds_from_every_folder() -> None:
    assert is_address("vit-b16-in21k") and absolute_start("vit-b16-in21k") == "vit-b16-in21k"
    assert not is_address("vit-b16-in22k")


def test_files_put_into_the_cache_by_hand_are_found_by_the_name(cache: Path) -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    save_model(model, cache / "starts" / "vit-ti16-augreg-in21k")
    loaded = vitkit.load_model("vit-ti16-augreg-in21k")
    assert torch.equal(loaded.state_dict()["head.weight"], model.state_dict()["head.weight"])
    assert "put by hand" in card_of(loaded).origin["source"]
    started = find_start(finetune_run("vit-ti16-augreg-in21k", "digits").start)
    assert started.name == "vit-ti16-augreg-in21k" and started.config.image_size == (8, 8)


def test_the_name_says_the_image_size_that_a_file_does_not_record(cache: Path) -> None:
    folder = cache / "starts" / "bit-r50x1-in21k-in1k"
    bit = vitkit.build_model(
        ResNetConfig((16, 16), (1, 1, 1, 1), 3, image_mean=(0.5,) * 3, image_std=(0.5,) * 3)
    )
    save_model(bit, folder / "BiT.npz", format="official")
    assert vitkit.load_model("bit-r50x1-in21k-in1k").config.image_size == (448, 448)
    assert vitkit.load_model("bit-r50x1-in21k-in1k", image_size=32).config.image_size == (32, 32)
    refused("give image_size", vitkit.load_model, folder / "BiT.npz")


def test_what_cannot_be_fetched_says_where_to_put_it(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = Mock(side_effect=VitkitError("It cannot be fetched: no network."))
    monkeypatch.setattr(download, "from_hub", fetch)
    there = re.escape(f"put into the folder {cache / 'starts' / 'vit-b16-in21k'}")
    refused(there, vitkit.load_model, "vit-b16-in21k")
    assert fetch.call_args.args[0] == "hf:timm/vit_base_patch16_224.orig_in21k"


def test_a_file_of_the_name_goes_first_and_it_is_said(tmp_path: Path) -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    save_model(model, tmp_path / "vit-b16-in21k")
    assert not is_address("vit-b16-in21k")
    loaded = load("vit-b16-in21k")
    assert loaded.identity.config.width == 16
    assert any("has the name of a published checkpoint" in note for note in loaded.notes)
    assert not any("published" in note for note in load(tmp_path / "vit-b16-in21k").notes)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("vit-b16-in22k", "at vit-b16-in22k. Published checkpoints of a name like that: vit-b16-in21k"),
        ("vit-b16", "like that: vit-b16-in21k, vit-b16-in21k-in1k-224"),
        ("ViT-B/16", "ViT-B/16 is the name of a model: vitkit starts --model ViT-B/16"),
        ("google/vit-x", "On the hub it may be hf:google/vit-x."),
        ("vit_base_patch16_clip_224.openai", "may be hf:timm/vit_base_patch16_clip_224.openai.$"),
        ("my_weights", "No checkpoint at my_weights.$"),
    ],
)
def test_a_name_that_is_none_is_answered_with_near_ones(wrong: str, message: str) -> None:
    refused(message, vitkit.load_model, wrong)


def test_a_narrow_terminal_is_shown_fewer_columns_and_whole_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns, headings in ((80, 5), (110, 6), (160, 9)):
        monkeypatch.setattr(console, "out", console.Terminal(width=columns))
        assert run(["starts"]) == 0
        printed = capsys.readouterr().out
        assert "\N{HORIZONTAL ELLIPSIS}" not in printed
        assert len(re.split(r"\s{2,}", printed.splitlines()[0].strip())) == headings
    assert all(start.name in printed for start in STARTS)
    assert run(["starts", "--model", "ViT-H/14", "--json"]) == 0
    assert '"gs://vit_models/imagenet21k/ViT-H_14.npz"' in capsys.readouterr().out


# Pins


COMMIT, DIGEST = "c" * 40, hashlib.sha256(b"weights").hexdigest()


def test_starts_are_pinned_by_what_the_hub_and_the_servers_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    script = Path(__file__).parents[2] / "scripts" / "pin-starts"
    pin_starts, table = runpy.run_path(str(script))["main"], tmp_path / "published.csv"
    columns = [field.name for field in fields(PublishedStart)]
    values = ("x", "ViT-B/16", "original", "ImageNet", "224", "0", "1", "1", "35.1", "A")
    row = dict(zip(columns, values, strict=False))

    def rows() -> dict[str, tuple[str, str]]:
        with table.open(newline="") as file:
            return {line["name"]: (line["revision"], line["sha256"]) for line in csv.DictReader(file)}

    lfs = {"sha256": DIGEST, "size": 7, "pointerSize": 1}
    weights = {"rfilename": "model.safetensors", "size": 7, "lfs": lfs}
    models: dict[str, list[dict[str, Any]]] = {
        "large": [weights, {**weights, "rfilename": "sub/x.npz"}],
        "small": [{"rfilename": "pytorch_model.bin", "size": 7}],
    }
    with running_server() as server:
        for name, siblings in models.items():
            said = json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode()
            server.files[f"/api/models/timm/{name}"] = Hosted(said)
        server.files["/weights.npz"] = Hosted(npz())
        here = ["--table", str(table), "--endpoint", server.url("")]
        places = {
            "one": "hf:timm/large gs://b/x.npz",
            "two": "hf:timm/small",
            "three": server.url("/weights.npz"),
        }
        with table.open("w", newline="") as file:
            lines = csv.DictWriter(file, columns, restval="", lineterminator="\n")
            lines.writeheader()
            lines.writerows([{**row, "name": name, "addresses": place} for name, place in places.items()])
        assert pin_starts(here) == 1
        digest = hashlib.sha256(npz()).hexdigest()
        assert rows() == {"one": (COMMIT, DIGEST), "two": ("", ""), "three": ("", digest)}
        said_here = capsys.readouterr()
        assert "2 of 3 are pinned." in said_here.out
        assert "two: hf:timm/small could not be pinned" in said_here.err
        assert pin_starts(["one", *here[:3], server.url("/nowhere")]) == 1
        assert rows()["one"] == (COMMIT, DIGEST)  # what cannot be asked stays


def test_a_pinned_start_is_fetched_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = starts("vit-b16-in21k")[0]
    pinned = replace(plain, revision=COMMIT, sha256=DIGEST)
    server = replace(plain, addresses=("https://b/x.npz",), sha256=DIGEST)
    assert [start.is_pinned for start in (plain, pinned, server)] == [False, True, True]
    assert not replace(plain, sha256=DIGEST).is_pinned  # main may be another commit by now
    assert plain.pinned_address == plain.address == "hf:timm/vit_base_patch16_224.orig_in21k"
    assert pinned.pinned_address == f"{plain.address}@{COMMIT}#sha256={DIGEST}"
    assert server.pinned_address == f"https://b/x.npz#sha256={DIGEST}"
    fetch = Mock(return_value=Fetched(Path("somewhere")))
    monkeypatch.setattr(download, "from_hub", fetch)
    monkeypatch.setattr(download, "find_start_named", {"vit-b16-in21k": pinned}.get)
    download.fetch("vit-b16-in21k")
    fetch.assert_called_once_with(f"{plain.address}@{COMMIT}", DIGEST)


def test_how_many_starts_are_pinned_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(re.fullmatch("([0-9a-f]{40})?", start.revision) for start in STARTS)
    assert all(re.fullmatch("([0-9a-f]{64})?", start.sha256) for start in STARTS)
    print_starts([replace(STARTS[0], revision=COMMIT, sha256=DIGEST), STARTS[1]])
    printed = capsys.readouterr().out
    assert "1 of 2 are pinned" in printed and f"pinned: SHA-256 {DIGEST}, {COMMIT}" in printed


def test_a_card_leads_back_to_the_first_training() -> None:
    cases: list[tuple[dict[str, object], int | None]] = [
        ({}, None),
        ({"recipe": "digits"}, None),
        ({"training_images": 1437}, 1437),
        ({"start": {"from": "/somewhere", "training_images": 1437}}, 1437),
        ({"start": {"from": "/one", "start": {"from": "/two", "training_images": 50}}}, 50),
        ({"start": {"from": "vit-b16-in21k"}}, 14_000_000),
        ({"start": {"from": "hf:timm/vit_base_patch16_224.mae"}}, 1_281_167),
        ({"start": {"from": "vit-s16-dinov3"}}, None),  # of a set whose size is not published
        ({"start": {"from": "/somewhere"}}, None),
        ({"start": "damaged", "training_images": "many"}, None),
    ]
    for origin, images in cases:
        assert pretraining_images("run", ModelCard(origin=origin)) == images, origin


def test_a_card_leads_back_to_the_licence_of_what_it_began_from() -> None:
    mae = "CC-BY-NC-4.0 (no commercial use), of vit-b16-mae-in1k"
    address = "hf:timm/vit_base_patch16_224.mae"
    cases: list[tuple[str, dict[str, object], str]] = [
        ("run", {"recipe": "digits", "training_images": 10}, ""),
        ("vit-b16-mae-in1k", {}, mae),
        (address, {}, mae),
        ("run", {"start": {"from": "vit-b16-mae-in1k"}}, mae),
        ("run", {"start": {"from": "/one", "start": {"from": address}}}, mae),
        ("converted", {"source": f"{address}@{COMMIT}"}, mae),
        ("copied", {"source": "vit-b16-mae-in1k, put by hand into /cache"}, mae),
        ("run", {"start": {"from": "/converted", "source": address}}, mae),
        ("run", {"start": "damaged"}, ""),
    ]
    for start, origin, licence in cases:
        assert describe_origin_licence(start, ModelCard(origin=origin)) == licence, origin
