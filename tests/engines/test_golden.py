"""A golden set from somebody else is data: nothing is unpickled, and no header is believed."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.refusals import refused
from vitkit.engines import golden


def pack(folder: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "golden.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in members.items():
            packed.writestr(f"{name}.npy", data)


def stored(array: object, pickled: bool = False) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.asarray(array, object if pickled else None), allow_pickle=pickled)
    return stream.getvalue()


def test_arrays_that_lie_or_hold_objects_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "golden").mkdir()
    refused(r"golden\.npz is missing", golden.read_golden, tmp_path)
    whole = stored(np.zeros(4, np.uint8))
    for members in (
        {"pixels": stored([print], pickled=True)},
        {"pixels": whole.replace(b"(4,)", b"(9,)")},
        {"pixels": whole[:40]},
        {"pixels": whole},
    ):
        pack(tmp_path, members)
        refused("is no golden set of a bundle", golden.read_golden, tmp_path)
    monkeypatch.setattr(golden, "MOST_BYTES", 100)
    refused("more than the 100 allowed", golden.read_golden, tmp_path)
    (tmp_path / "golden.npz").write_bytes(b"no zip")
    refused("is no golden set of a bundle", golden.read_golden, tmp_path)
