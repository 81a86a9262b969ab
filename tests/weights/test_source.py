"""Checkpoints on disk: files, folders, shards, what training scripts write, and the numbers in them."""

import json
import tracemalloc
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.fixture_files import write_npz
from tests.helpers import refusals
from tests.helpers.random_models import same_bits
from tests.helpers.weight_files import STATE, assert_is_state, contents, notes_of, refused, write_tensors
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.weights.create import create_model
from vitkit.weights.files.source import open_source
from vitkit.weights.loading import save_model


def test_npz_of_every_number(tmp_path: Path) -> None:
    arrays = {
        "half": np.ones(2, np.float16),
        "big_endian": np.array([1.0, 2.0], ">f4"),
        "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "flag": np.array(True),
        "step": np.array(7, np.int64),
        "bfloat16": torch.tensor([1.5, -2.0]).bfloat16().view(torch.int16).numpy().view("V2"),
    }
    np.savez_compressed(tmp_path / "x.npz", **arrays)  # type: ignore[arg-type]
    loaded = contents(tmp_path / "x.npz")
    assert loaded.keys() == arrays.keys()
    assert loaded["bfloat16"].dtype == torch.bfloat16 and loaded["bfloat16"].tolist() == [1.5, -2.0]
    for key in arrays.keys() - {"bfloat16"}:
        np.testing.assert_array_equal(loaded[key].numpy(), arrays[key])


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
def test_tensors_can_be_written_to_and_the_file_stays(ending: str, tmp_path: Path) -> None:
    path = write_tensors(tmp_path / f"x{ending}", STATE)
    before = path.read_bytes()
    for tensor in contents(path).values():
        tensor += 1
    assert path.read_bytes() == before
    assert_is_state(path)
    loaded = contents(path)
    if ending == ".pth":  # the file may be overwritten after reading
        path.write_bytes(bytes(len(before)))
        assert torch.equal(loaded["a.weight"], STATE["a.weight"])


def with_prefix(prefix: str) -> dict[str, torch.Tensor]:
    return {f"{prefix}{key}": value for key, value in STATE.items()}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("contents", "note"),
    [
        (STATE, ""),
        ({key: torch.nn.Parameter(value) for key, value in STATE.items()}, ""),
        ({"model": {"state_dict": STATE}, "args": Namespace(lr=0.1)}, ""),
        ({"state_dict": {"other": torch.ones(1)}, "state_dict_ema": STATE}, ""),
        ({"state_dict": with_prefix("module.")}, "the weights are its 'state_dict'; left aside: nothing"),
        (with_prefix("module._orig_mod."), ""),
        ({"epoch": 3, "state_dict": STATE, "optimizer": {"state": {0: torch.ones(1)}}}, "epoch, optimizer"),
        (
            {"model": {"c": torch.ones(1)}, "model_ema": STATE, "optimizer": {}, "epoch": 1},
            "the weights are its 'model_ema', a moving average, which training scripts evaluate; "
            "left aside: model, optimizer, epoch",
        ),
        ({"model": STATE, "model_ema": {}}, "the weights are its 'model'; left aside: model_ema"),
        ({"net": STATE, "acc": 93.1}, "its 'net', the only dictionary of tensors in it; left aside: acc"),
        (
            {"state_dict": with_prefix("model."), "epoch": 1},
            "every name begins with 'model.', as Lightning writes them: it is taken off",
        ),
        ({**STATE, "epoch": 1}, "left aside, as they are no tensors: epoch"),
    ],
)
def test_what_training_scripts_keep_is_read_and_the_choice_noted(
    zipped: bool, contents: Any, note: str, tmp_path: Path
) -> None:
    torch.save(contents, tmp_path / "x.pth.tar", _use_new_zipfile_serialization=zipped)
    assert_is_state(tmp_path / "x.pth.tar")
    assert note in notes_of(tmp_path / "x.pth.tar")


def test_a_choice_that_nothing_decides_is_left_to_the_user(tmp_path: Path) -> None:
    torch.save({"student": STATE, "teacher": STATE, "epoch": 1}, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", "tensors under 'student', 'teacher'", "Save the weights alone")
    write_tensors(tmp_path / "y.pth", {"module.a": torch.ones(1), "b": torch.ones(1)})
    assert contents(tmp_path / "y.pth").keys() == {"module.a", "b"}  # only a prefix of all names goes


@pytest.mark.parametrize("name", ["ViT-B_16.npz", "open_clip.safetensors", "best.pth"])
def test_a_folder_with_one_file_of_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("weights")
    write_tensors(tmp_path / name, STATE)
    if name.endswith(".safetensors"):
        torch.save({"x": torch.ones(1)}, tmp_path / "training_args.bin")  # of a lesser kind: not a rival
    assert_is_state(tmp_path)
    write_tensors(tmp_path / f"a{name}", STATE)
    refused(tmp_path, "give the path of a file, one of ", f"a{name}, {name}" if name[0] > "a" else name)


def test_settings_beside_the_weights(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_classes": 2}')
    with open_source(tmp_path) as source:
        assert source.config == {"num_classes": 2} and source.preprocessor == {}
    (tmp_path / "config.json").write_text("[" * 100_000)
    with open_source(tmp_path) as source:
        said = r"config\.json is damaged: it is no JSON .*nested too deep"
        refusals.refused(said, getattr, source, "config")


def shards(folder: Path, kind: str = "safetensors") -> Path:
    """Write the two tensors of `STATE` to a file each, and their index."""
    for number, (key, tensor) in enumerate(STATE.items(), 1):
        write_tensors(folder / f"m-{number}.{kind}", {key: tensor})
    index = folder / f"{'model' if kind == 'safetensors' else 'pytorch_model'}.{kind}.index.json"
    where = {key: f"m-{number}.{kind}" for number, key in enumerate(STATE, 1)}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_one_checkpoint_if_all_of_them_are_there(kind: str, tmp_path: Path) -> None:
    index, second = shards(tmp_path, kind), tmp_path / f"m-2.{kind}"
    assert_is_state(tmp_path)
    write_tensors(second, {"c": torch.ones(1)})  # of another index
    refused(index, f"1 tensors are not in the files it names, first a.bias (m-2.{kind})")
    write_tensors(second, {"a.weight": torch.ones(1), "a.bias": torch.ones(1)})
    refused(index, "two of its files hold a tensor named a.weight")
    second.unlink()
    refused(tmp_path, f"needs the file m-2.{kind}")


def test_an_index_without_a_map_or_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(STATE, tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    for name in ("../outside.safetensors", "/etc/passwd", "..\\x.safetensors", "model.json"):
        index.write_text(json.dumps({"weight_map": {"a.weight": name}}))
        refused(folder, f"points to {name!r}", "in the same folder")
    for text in ('{"weight_map": {}}', '{"weight_map": {"a": 3}}', "{}", "[]"):
        index.write_text(text)
        refused(folder, "model.safetensors.index.json")


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        ("\n<!DOCTYPE html><html><body>404</body></html>" + " " * 5000, "web page"),
        ("<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "web page or a server's message"),
        ("Entry not found", "it is a text ('Entry not found')"),
        ("", "it is empty"),
    ],
)
def test_what_is_no_checkpoint_is_said(ending: str, text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    path.write_text(text)
    refused(path, message, "etch")


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", "No checkpoint at")
    refused(tmp_path, "No weights in", "found nothing", "Images are given with data")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    refused(tmp_path / "run", "No model.safetensors in", "vitkit train --resume")
    refused(Path("google/vit-base-patch16-224"), "On the hub it may be hf:google/vit-base-patch16-224")
    (tmp_path / "x.h5").write_bytes(bytes(8))
    refused(tmp_path / "x.h5", "is no checkpoint", ".safetensors, .npz")


def test_contents_decide_what_a_file_is_and_not_its_name(tmp_path: Path) -> None:
    for own in (".pth", ".npz", ".safetensors"):
        written = write_tensors(tmp_path / f"x{own}", STATE).read_bytes()
        for other in (".pth", ".npz", ".safetensors"):
            (tmp_path / f"y{other}").write_bytes(written)
            assert_is_state(tmp_path / f"y{other}")


def test_damaged_settings_that_a_format_does_not_need_are_not_read(tmp_path: Path) -> None:
    model = create_model("ViT-16x2x2/8", 3, 16)
    npz = save_model(model, tmp_path / "weights.npz", "official")
    for name in ("config.json", "preprocessor_config.json", "model.json"):
        (tmp_path / name).write_text("{broken")
    assert load_model(npz, num_heads=2).config.depth == 2
    timm = save_model(model, tmp_path / "timm", "timm")
    (timm / "config.json").write_text("{broken")
    refusals.refused(r"config\.json is damaged", load_model, timm, num_heads=2)


# The numbers of a file: checksums of archives, memory that is mapped, tensors that are read one by one


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(10_000.0))
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    with open_source(path) as source:
        refusals.refused(r"read as an \.npz with x: ", source.read, "x")


def test_a_flip_anywhere_in_a_pytorch_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """Every byte of the numbers and of the pickle that names them, and every ninth of the rest."""
    path = tmp_path / "x.pth"
    torch.save(STATE, path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        infos = [info for info in archive.infolist() if "/data" in info.filename]
        within = {info.filename: whole.index(archive.read(info)) for info in infos}
        checked = {
            i for info in infos for i in range(within[info.filename], within[info.filename] + info.file_size)
        }
    noticed = 0
    for place in sorted(checked | set(range(0, len(whole), 9))):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert_is_state(path)
        except VitkitError:
            noticed += 1
        else:
            assert place not in checked
    assert noticed >= len(checked)


def test_tensors_that_share_memory_are_read(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    tensors = {"first": whole[:4], "all": whole, "again": whole.view(3, 4).T, "none": torch.ones(0, 3)}
    torch.save(tensors, tmp_path / "x.pth")
    loaded = contents(tmp_path / "x.pth")
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())


def test_an_archive_without_checksums_is_read_and_said_to_have_none(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "x.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert_is_state(tmp_path / "x.pth")
    assert "left out the archive's checksums" in notes_of(tmp_path / "x.pth")
    torch.save(STATE, tmp_path / "y.pth")
    assert notes_of(tmp_path / "y.pth") == ""


def test_numbers_of_the_other_byte_order_are_checked_as_a_whole(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "little.pth")
    path = tmp_path / "big.pth"
    with zipfile.ZipFile(tmp_path / "little.pth") as little, zipfile.ZipFile(path, "w") as big:
        for info in little.infolist():
            data = little.read(info)
            if "/data/" in info.filename:
                data = np.frombuffer(data, ">f4").astype("<f4").tobytes()
            big.writestr(info.filename, b"big" if info.filename.endswith("byteorder") else data)
    assert_is_state(path)
    data = path.read_bytes()
    path.write_bytes(
        data.replace(np.arange(6, dtype=">f4").tobytes(), np.arange(1, 7, dtype=">f4").tobytes())
    )
    assert path.read_bytes() != data
    refused(path, "is damaged")


def test_weights_begin_at_multiples_of_their_size(tmp_path: Path) -> None:
    """An archive's comment or another name before them moves its arrays by any number of bytes."""
    model, path = create_model("ViT-16x2x2/8", 3, 16), tmp_path / "x.npz"
    save_model(model, tmp_path / "y.npz", "official")
    for padding in range(4):
        with zipfile.ZipFile(tmp_path / "y.npz") as saved, zipfile.ZipFile(path, "w") as archive:
            for name in saved.namelist():
                info = zipfile.ZipInfo(name)
                info.extra = b"\xff\xff" + bytes([padding, 0]) + bytes(padding)  # a field that nobody knows
                archive.writestr(info, saved.read(name))
        loaded = load_model(path, num_heads=2)
        assert all(tensor.data_ptr() % 4 == 0 for tensor in loaded.state_dict().values())
        assert same_bits(loaded, model)


def test_shapes_come_without_the_data_and_tensors_one_at_a_time(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "x.npz", {f"a{i}": np.ones(1 << 20, np.float32) for i in range(8)})
    tracemalloc.start()
    try:
        with open_source(path) as source:
            assert source.shapes == {f"a{i}": (1 << 20,) for i in range(8)}
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
            for key in source.shapes:
                source.read(key)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # one array of 4 MiB and a buffer
    finally:
        tracemalloc.stop()
