"""Checkpoints from strangers: nothing is executed, nothing is believed, and every refusal says what to do."""

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.build import create_model
from vitkit.weights import save_model
from vitkit.weights.files.source import open_source

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.tensor([1.0, -1.0])}


def contents(path: Path) -> dict[str, Tensor]:
    with open_source(path) as source:
        return {key: source.read(key) for key in source.shapes}


def assert_is_state(path: Path) -> None:
    found = contents(path)
    assert found.keys() == STATE.keys()
    for key, tensor in STATE.items():
        assert torch.equal(found[key], tensor)


def refused(path: Path, *words: str) -> None:
    with pytest.raises(VitkitError) as caught:
        contents(path)
    for word in words:
        assert word in str(caught.value), str(caught.value)


class Payload:
    """An object whose unpickling creates a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.canary,))


def npz_member(path: Path, name: str, header: bytes, data: bytes, compression: int = 0) -> None:
    with zipfile.ZipFile(path, "a", compression) as archive:
        archive.writestr(name, header + data)


def array_header(shape: str, descr: str = "'<f4'", length: int | None = None) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) if length is None else length) + text


# What is read


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
    found = contents(tmp_path / "x.npz")
    assert found.keys() == arrays.keys()
    assert found["bfloat16"].dtype == torch.bfloat16 and found["bfloat16"].tolist() == [1.5, -2.0]
    for key in arrays.keys() - {"bfloat16"}:
        np.testing.assert_array_equal(found[key].numpy(), arrays[key])


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
def test_tensors_can_be_written_to_and_the_file_stays(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    if ending == ".npz":
        np.savez(path, **{key: tensor.numpy() for key, tensor in STATE.items()})  # type: ignore[arg-type]
    elif ending == ".safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=ending == ".pth")
    before = path.read_bytes()
    for tensor in contents(path).values():
        tensor += 1
    assert path.read_bytes() == before
    assert_is_state(path)


def test_a_pytorch_file_may_be_overwritten_after_reading(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "x.pth")
    found = contents(tmp_path / "x.pth")
    (tmp_path / "x.pth").write_bytes(bytes((tmp_path / "x.pth").stat().st_size))
    assert torch.equal(found["a.weight"], STATE["a.weight"])


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"epoch": 3, "state_dict": state, "optimizer": {"state": {0: torch.ones(1)}}},
        lambda state: {"model": {"state_dict": state}, "args": Namespace(lr=0.1)},
        lambda state: {"state_dict": {"other": torch.ones(1)}, "state_dict_ema": state},
        lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {f"module._orig_mod.{key}": value for key, value in state.items()},
        lambda state: {**state, "epoch": 3},
        lambda state: {key: torch.nn.Parameter(value) for key, value in state.items()},
    ],
)
def test_what_training_scripts_keep(zipped: bool, wrap: Callable[[Any], Any], tmp_path: Path) -> None:
    torch.save(wrap(STATE), tmp_path / "x.pth.tar", _use_new_zipfile_serialization=zipped)
    assert_is_state(tmp_path / "x.pth.tar")


def notes_of(path: Path) -> str:
    with open_source(path) as source:
        return "; ".join(source.notes)


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (
            {"model": {"c": torch.ones(1)}, "model_ema": STATE, "optimizer": {}, "epoch": 1},
            "the weights are its 'model_ema', a moving average, which training scripts evaluate; "
            "left aside: model, optimizer, epoch",
        ),
        ({"model": STATE, "model_ema": {}}, "the weights are its 'model'; left aside: model_ema"),
        ({"state_dict": STATE}, "the weights are its 'state_dict'; left aside: nothing"),
        (
            {"net": STATE, "acc": 93.1, "epoch": 200},
            "the weights are its 'net', the only dictionary of tensors in it; left aside: acc, epoch",
        ),
        (
            {"state_dict": {f"model.{key}": value for key, value in STATE.items()}, "epoch": 1},
            "every name begins with 'model.', as Lightning writes them: it is taken off",
        ),
        ({**STATE, "epoch": 1}, "left aside, as they are no tensors: epoch"),
    ],
)
def test_the_choice_among_several_weights_is_noted(
    contents: dict[str, Any], words: str, tmp_path: Path
) -> None:
    torch.save(contents, tmp_path / "x.pth")
    assert_is_state(tmp_path / "x.pth")
    assert words in notes_of(tmp_path / "x.pth")


def test_a_choice_that_nothing_decides_is_left_to_the_user(tmp_path: Path) -> None:
    torch.save({"student": STATE, "teacher": STATE, "epoch": 1}, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", "tensors under 'student', 'teacher'", "Save the weights alone")


def test_only_a_prefix_of_all_names_goes(tmp_path: Path) -> None:
    torch.save({"module.a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "x.pth")
    assert contents(tmp_path / "x.pth").keys() == {"module.a", "b"}


@pytest.mark.parametrize("name", ["ViT-B_16.npz", "open_clip.safetensors", "best.pth"])
def test_a_folder_with_one_file_of_weights(name: str, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("weights")
    if name.endswith(".npz"):
        np.savez(tmp_path / name, **{key: tensor.numpy() for key, tensor in STATE.items()})  # type: ignore[arg-type]
    elif name.endswith(".safetensors"):
        save_file(STATE, tmp_path / name)
        torch.save({"x": torch.ones(1)}, tmp_path / "training_args.bin")  # of a lesser kind: not a rival
    else:
        torch.save(STATE, tmp_path / name)
    assert_is_state(tmp_path)


def test_a_folder_with_two_names_them(tmp_path: Path) -> None:
    for name in ("first.npz", "second.npz"):
        np.savez(tmp_path / name, x=np.ones(1))
    refused(tmp_path, "give the path of a file, one of first.npz, second.npz")


def test_settings_beside_the_weights(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"num_classes": 2}')
    with open_source(tmp_path) as source:
        assert source.config == {"num_classes": 2} and source.preprocessor == {}
    (tmp_path / "config.json").write_text("[" * 100_000)
    with open_source(tmp_path) as source:
        assert "config.json" in source.settings
        with pytest.raises(VitkitError, match=r"config\.json is damaged: its JSON is nested too deep"):
            _ = source.config


# Shards


def shards(folder: Path, where: dict[str, str], kind: str = "safetensors") -> Path:
    for name in {name for name in where.values() if "/" not in name}:
        part = {key: STATE[key] for key in where if where[key] == name}
        if kind == "safetensors":
            save_file(part, folder / name)
        else:
            torch.save(part, folder / name)
    index = folder / (
        "model.safetensors.index.json" if kind == "safetensors" else "pytorch_model.bin.index.json"
    )
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_shards_are_one_checkpoint(kind: str, tmp_path: Path) -> None:
    shards(tmp_path, {"a.weight": f"m-1.{kind}", "a.bias": f"m-2.{kind}"}, kind)
    assert_is_state(tmp_path)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "../../etc/passwd", "..\\x.safetensors", "model.json"]
)
def test_an_index_never_points_elsewhere(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(STATE, tmp_path / "outside.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a.weight": name}}))
    refused(folder, f"points to {name!r}", "in the same folder")


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path, {"a.weight": "m-1.safetensors", "a.bias": "m-2.safetensors"})
    (tmp_path / "m-2.safetensors").unlink()
    refused(tmp_path, "needs the file m-2.safetensors")


def test_shards_of_another_index_are_noticed(tmp_path: Path) -> None:
    index = shards(tmp_path, {"a.weight": "m-1.safetensors", "a.bias": "m-2.safetensors"})
    save_file({"c": torch.ones(1)}, tmp_path / "m-2.safetensors")
    refused(index, "1 tensors are not in the files it names, first a.bias (m-2.safetensors)")
    save_file({"a.weight": torch.ones(1), "a.bias": torch.ones(1)}, tmp_path / "m-2.safetensors")
    refused(index, "two of its files hold a tensor named a.weight")


@pytest.mark.parametrize("text", ['{"weight_map": {}}', '{"weight_map": {"a": 3}}', "{}", "[]"])
def test_an_index_without_a_map(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "model.safetensors.index.json")


# What is never executed


@pytest.mark.parametrize("name", ["x.npz", "x.pth", "x.bin", "legacy.pth", "bare.pt"])
def test_a_payload_is_not_run(name: str, tmp_path: Path) -> None:
    canary, path = tmp_path / "canary", tmp_path / name
    state = {"a": torch.ones(1), "evil": Payload(canary)}
    if name == "x.npz":
        np.savez(path, a=np.ones(1), evil=np.array([Payload(canary)], dtype=object))
    elif name == "bare.pt":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path, _use_new_zipfile_serialization=name != "legacy.pth")
    refused(path, "cannot be read" if name == "bare.pt" else "Python objects")
    assert not canary.exists()


def test_the_payload_would_run_if_it_were_loaded(tmp_path: Path) -> None:
    """The canary sings: the test above can fail."""
    pickle.loads(pickle.dumps(Payload(tmp_path / "canary")))
    assert (tmp_path / "canary").exists()


# What is not believed


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (array_header("(1000000, 1000000, 1000000)"), "claims the shape (1000000, 1000000, 1000000)"),
        (array_header("(3,)"), "in "),
        (array_header("(-1, -2)"), "claims the shape"),
        (array_header("(2,)", "'|O'"), "Python objects"),
        (array_header("(2,)", "'<U1'"), "expected numbers"),
        (array_header("(2,)", "'<c8'"), "expected numbers"),
        (array_header("(2,)", "[('x', '<f4')]"), "expected numbers"),
        (array_header("(2,)", "('<f4', (1,))"), "expected numbers"),
        (array_header("(2,)", length=60_000), "claims a header of 60,000 bytes"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "claims a header of 4,294,967,295 bytes"),
        (b"\x93NUMPY\x01\x00", "cannot be read"),
        (b"words that are no array", "x.npy is no array"),
        (array_header("__import__('os')"), "cannot be read"),
    ],
)
def test_headers_that_lie(header: bytes, words: str, tmp_path: Path) -> None:
    npz_member(tmp_path / "x.npz", "x.npy", header, bytes(8))
    refused(tmp_path / "x.npz", words)


def test_an_archive_that_unpacks_to_far_more_than_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitkit.weights.files.archives.EXPANSION_ALLOWANCE", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros(8 << 20, np.float32))
    tracemalloc.start()
    try:
        refused(tmp_path / "bomb.npz", "claim 33,554,560 bytes", "more than 100 times")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_zeros_in_a_small_archive_are_no_bomb(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", head=np.zeros((1000, 768), np.float32))
    assert contents(tmp_path / "x.npz")["head"].shape == (1000, 768)


def sparse_npz(path: Path, size: int) -> None:
    """An archive with one stored array of `size` float32 zeros, without writing them: a hole in the file."""
    header = array_header(f"({size},)")
    count = len(header) + 4 * size
    local = struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 0x21, 0, 2**32 - 1, 2**32 - 1, 5, 20)
    local += b"x.npy" + struct.pack("<HHQQ", 1, 16, count, count)
    entry = struct.pack(
        "<IHHHHHHIIIHHHHHII",
        *(0x02014B50, 45, 45, 0, 0, 0, 0x21, 0, 2**32 - 1, 2**32 - 1, 5, 20, 0, 0, 0, 0, 0),
    )
    entry += b"x.npy" + struct.pack("<HHQQ", 1, 16, count, count)
    at = len(local) + count
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    end64 += struct.pack("<IIQI", 0x07064B50, 0, at + len(entry), 1)
    end = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 1, 1, len(entry), 2**32 - 1, 0)
    with path.open("wb") as file:
        file.write(local + header)
        file.seek(at)
        file.write(entry + end64 + end)


def test_shapes_come_without_the_data(tmp_path: Path) -> None:
    sparse_npz(tmp_path / "x.npz", 8 << 30)  # 32 GiB
    tracemalloc.start()
    try:
        with open_source(tmp_path / "x.npz") as source:
            assert source.shapes == {"x": (8 << 30,)}
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_tensors_are_read_one_at_a_time(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{f"a{i}": np.ones(1 << 20, np.float32) for i in range(8)})  # type: ignore[arg-type]
    tracemalloc.start()
    with open_source(tmp_path / "x.npz") as source:
        for key in source.shapes:
            source.read(key)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20  # one array of 4 MiB and a buffer


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("names", [("x.npy", "x.npy"), ("x.npy", "x")])
def test_two_arrays_of_one_name(names: tuple[str, str], tmp_path: Path) -> None:
    for name in names:
        npz_member(tmp_path / "x.npz", name, array_header("(2,)"), bytes(8))
    refused(tmp_path / "x.npz", "two arrays are named x")


def test_names_are_never_paths(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    npz_member(folder / "x.npz", "../../escaped.npy", array_header("(2,)"), bytes(8))
    npz_member(folder / "x.npz", "/absolute.npy", array_header("(2,)"), bytes(8))
    assert contents(folder / "x.npz").keys() == {"../../escaped", "/absolute"}
    assert {path.name for path in tmp_path.rglob("*")} == {"in", "x.npz"}


def test_unusual_compression_is_refused(tmp_path: Path) -> None:
    npz_member(tmp_path / "x.npz", "x.npy", array_header("(2,)"), bytes(8), compression=zipfile.ZIP_LZMA)
    refused(tmp_path / "x.npz", "compressed in a way")


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.arange(10_000.0))
    data = bytearray(path.read_bytes())
    data[40_000] ^= 1
    path.write_bytes(data)
    with open_source(path) as source, pytest.raises(VitkitError, match="is damaged: x cannot be read"):
        source.read("x")


@pytest.mark.parametrize("keep", [1, 7, 20, 200])
@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
def test_a_file_cut_short(ending: str, keep: int, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    if ending == ".npz":
        np.savez(path, x=np.ones(1000))
    elif ending == ".safetensors":
        save_file({"x": torch.ones(1000)}, path)
    else:
        torch.save({"x": torch.ones(1000)}, path, _use_new_zipfile_serialization=ending == ".pth")
    path.write_bytes(path.read_bytes()[:keep])
    refused(path, str(path), "etch")


def lying_safetensors(path: Path, header: dict[str, Any], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(
    "header",
    [
        {
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        },
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
        {"a": {"dtype": "F32", "shape": [2000000000, 2000000000], "data_offsets": [0, 12]}},
        {"a": {"dtype": "F32", "shape": [3], "data_offsets": [12, 0]}},
        {"a": {"dtype": "F99", "shape": [3], "data_offsets": [0, 12]}},
    ],
)
def test_safetensors_that_lie(header: dict[str, Any], tmp_path: Path) -> None:
    lying_safetensors(tmp_path / "x.safetensors", header, bytes(12))
    refused(tmp_path / "x.safetensors", "no whole safetensors file")


def test_a_safetensors_header_of_absurd_length(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes((2**62).to_bytes(8, "little") + bytes(100))
    refused(path, "fewer than its header needs")
    with path.open("wb") as file:
        file.write((200 << 20).to_bytes(8, "little"))
        file.truncate(300 << 20)
    refused(path, "claims 209,715,200 bytes")


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.ones(1).expand(1 << 40), "one value repeated"),
        (torch.eye(3).to_sparse(), "sparse"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*parse")
def test_tensors_that_are_no_plain_ones(tensor: Tensor, words: str, tmp_path: Path) -> None:
    torch.save({"x": tensor}, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", words)


@pytest.mark.parametrize("state", [{}, [torch.ones(1)], {"teacher": {"a": 1}}, 3])
def test_a_pytorch_file_without_a_dictionary(state: Any, tmp_path: Path) -> None:
    torch.save(state, tmp_path / "x.pth")
    refused(tmp_path / "x.pth", "expected a dictionary of tensors", "found")


def test_a_compressed_pytorch_file_is_refused(tmp_path: Path) -> None:
    """Its members are mapped as they lie in the file; PyTorch never compresses them."""
    buffer = io.BytesIO()
    torch.save(STATE, buffer)
    with (
        zipfile.ZipFile(buffer) as old,
        zipfile.ZipFile(tmp_path / "x.pth", "w", zipfile.ZIP_BZIP2) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    refused(tmp_path / "x.pth", "compressed in a way")


# What only bears the name


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pth", ".bin"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        ("\n<!DOCTYPE html><html><body>404</body></html>" + " " * 5000, "web page"),
        ("<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "web page or a server's message"),
        ("Entry not found", "it is a text ('Entry not found')"),
        ("", "it is empty"),
    ],
)
def test_what_is_no_checkpoint_is_said(ending: str, text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / f"x{ending}"
    path.write_text(text)
    refused(path, words, "etch")


def test_nothing_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.npz", "No checkpoint at")
    refused(tmp_path, "No weights in", "found nothing")
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    refused(tmp_path / "run", "No model.safetensors in", "vitkit train --resume")
    refused(Path("google/vit-base-patch16-224"), "On the hub it may be hf:google/vit-base-patch16-224")
    (tmp_path / "x.h5").write_bytes(bytes(8))
    refused(tmp_path / "x.h5", "is no checkpoint", ".safetensors, .npz")


def test_the_archive_made_by_hand_is_one(tmp_path: Path) -> None:
    """The sparse one above could be read, were its checksum right."""
    sparse_npz(tmp_path / "x.npz", 4)
    refused(tmp_path / "x.npz", "CRC")
    data = (tmp_path / "x.npz").read_bytes()
    crc = struct.pack("<I", zlib.crc32(array_header("(4,)") + bytes(16)))
    for at in (14, data.index(b"PK\x01\x02") + 16):
        data = data[:at] + crc + data[at + 4 :]
    (tmp_path / "x.npz").write_bytes(data)
    assert contents(tmp_path / "x.npz")["x"].tolist() == [0, 0, 0, 0]


def test_contents_decide_what_a_file_is_and_not_its_name(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3)}
    torch.save(tensors, tmp_path / "x.pth")
    np.savez(tmp_path / "x.npz", a=tensors["a"].numpy())
    save_file(tensors, tmp_path / "x.safetensors")
    for own in (".pth", ".npz", ".safetensors"):
        for other in (".pth", ".npz", ".safetensors"):
            path = tmp_path / f"from{own[1:]}{other}"
            path.write_bytes((tmp_path / f"x{own}").read_bytes())
            assert torch.equal(contents(path)["a"], tensors["a"]), path


# Checksums of PyTorch's archives


def test_a_flip_anywhere_in_a_pytorch_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """Every byte of the numbers and of the pickle that names them, and every third of the rest."""
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
    for place in sorted(checked | set(range(0, len(whole), 3))):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            assert_is_state(path)
        except VitkitError:
            noticed += 1
        else:
            assert place not in checked
    assert noticed >= len(checked)


def test_the_damaged_tensor_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    tensors = {"a": torch.arange(1000.0), "b": torch.arange(1000.0) + 0.5}
    torch.save(tensors, path)
    data = bytearray(path.read_bytes())
    data[data.index(tensors["b"].numpy().tobytes()) + 777] ^= 1
    path.write_bytes(data)
    with open_source(path) as source:
        assert torch.equal(source.read("a"), tensors["a"])
        with pytest.raises(VitkitError, match="is damaged: b has another checksum than the archive holds"):
            source.read("b")


def test_tensors_that_share_memory_are_read(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    tensors = {"first": whole[:4], "all": whole, "again": whole.view(3, 4).T, "none": torch.ones(0, 3)}
    torch.save(tensors, tmp_path / "x.pth")
    found = contents(tmp_path / "x.pth")
    assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())


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


@pytest.mark.parametrize("ending", [".npz", ".pth"])
@pytest.mark.parametrize(("offset", "value"), [(6, 255), (46, 0xFF), (8, 0xFF), (10, 97)])
def test_a_directory_that_zipfile_stumbles_over(offset: int, value: int, ending: str, tmp_path: Path) -> None:
    """Version 25.5, a name that is no UTF-8, flags and a compression that nobody knows."""
    path = tmp_path / f"x{ending}"
    if ending == ".pth":
        torch.save(STATE, path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            info = zipfile.ZipInfo("é.npy")  # a name that is marked as UTF-8
            archive.writestr(info, array_header("(2,)") + bytes(8))
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + offset] = value
    path.write_bytes(data)
    refused(path, "cannot be read as")


# What a pickle costs


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_larger_than_any_real_one_is_refused_unread(zipped: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    log = [float(i) for i in range(700_000)]  # nine bytes each
    torch.save({**STATE, "log": log}, path, _use_new_zipfile_serialization=zipped)
    refused(path, "at most 4,194,304 are read", "Save the weights alone")


def test_large_tensors_in_an_old_file_are_no_pickle(tmp_path: Path) -> None:
    tensors = {f"a{i}": torch.full((1 << 20,), float(i)) for i in range(3)}
    torch.save(tensors, tmp_path / "x.pth", _use_new_zipfile_serialization=False)
    found = contents(tmp_path / "x.pth")
    assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())


def test_damaged_settings_that_a_format_does_not_need_are_not_read(tmp_path: Path) -> None:
    model = create_model("ViT-16x2x2/8", 3, 16)
    npz = save_model(model, tmp_path / "weights.npz", "official")
    for name in ("config.json", "preprocessor_config.json", "model.json"):
        (tmp_path / name).write_text("{broken")
    assert load_model(npz, num_heads=2).config.depth == 2
    timm = save_model(model, tmp_path / "timm", "timm")
    (timm / "config.json").write_text("{broken")
    with pytest.raises(VitkitError, match=r"config\.json is damaged"):
        load_model(timm, num_heads=2)


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_mapped_arrays_are_private_whatever_their_alignment(padding: int, tmp_path: Path) -> None:
    """Stored members begin anywhere in the file; what is written to a tensor never reaches it."""
    path = tmp_path / "x.npz"
    arrays: dict[str, Any] = {"n" * (1 + padding): np.arange(1000, dtype=np.float32)}
    np.savez(path, **arrays)
    before = path.read_bytes()
    with open_source(path) as source:
        tensor = source.read("n" * (1 + padding))
    assert torch.equal(tensor, torch.arange(1000.0))  # after the file was closed
    tensor.zero_()
    assert path.read_bytes() == before


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
@pytest.mark.parametrize("order", ["C", "F"])
def test_reading_a_stored_array_copies_nothing(order: Any, padding: int, tmp_path: Path) -> None:
    path, name = tmp_path / "x.npz", "n" * (1 + padding)
    numbers = np.arange(1 << 20, dtype=np.float32).reshape(1 << 8, 1 << 12)
    arrays: dict[str, Any] = {name: np.asarray(numbers, order=order)}
    np.savez(path, **arrays)
    with open_source(path) as source:
        tracemalloc.start()
        try:
            tensor = source.read(name)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most < numbers.nbytes / 4
    assert np.array_equal(tensor.numpy(), numbers)


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_weights_begin_at_multiples_of_their_size(padding: int, tmp_path: Path) -> None:
    """An archive's comment or another name before them moves its arrays by any number of bytes."""
    model, path = create_model("ViT-16x2x2/8", 3, 16), tmp_path / "x.npz"
    with np.load(save_model(model, tmp_path / "y.npz", "official")) as saved:
        arrays: dict[str, Any] = dict(saved)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            info = zipfile.ZipInfo(f"{name}.npy")
            info.extra = b"\xff\xff" + bytes([padding, 0]) + bytes(padding)  # a field that nobody knows
            archive.writestr(info, content.getvalue())
    found = load_model(path, num_heads=2).state_dict()
    assert all(tensor.data_ptr() % 4 == 0 for tensor in found.values())
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())


def test_a_member_that_the_file_does_not_hold_whole_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, a=np.arange(100_000, dtype=np.float32))
    content = path.read_bytes()
    with open_source(path) as source:
        path.write_bytes(content[: len(content) // 2])  # cut while it is open
        with pytest.raises(VitkitError, match="the file ends before it does"):
            source.read("a")
