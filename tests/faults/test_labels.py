"""Tables and texts of labels with odd cells and damaged bytes: right labels, or one refusal."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.mutate import mutant
from tests.helpers.image_folders import WHOLE, image_bytes
from vitkit.data.sources import open_data
from vitkit.errors import DecodeError, VitkitError

CELLS = st.sampled_from(
    ("", '"', 'x"', "\0", "a\x0bb", "a\u2028b", "\ufeff", "a\rb", "9" * 5000, "x" * 2000, "=1+1", "../../x",
     "/etc/passwd", "..\\x", "é\u202e", "²", "\t", "NaN", "a;;b", "test", "~x", "x" * 300 + ".png", "a/../b")
) | st.text(max_size=9)  # fmt: skip
HEADERS = st.sampled_from(
    ("path,label", "path,path,label", "PATH;Label", "path\tlabel", "path", "", "path,label,split",
     "path,labels")
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("labels")
    for number in range(12):
        (root / f"{number}.png").write_bytes(image_bytes(number))
    return root


@pytest.mark.parametrize("file", ["x.csv", "3.txt"])
@given(cell=CELLS, header=HEADERS, several=st.booleans(), damaged=st.booleans(), draw=st.randoms())
@settings(max_examples=30, deadline=None)
def test_labels_of_any_content_are_right_or_refused(
    file: str, folder: Path, cell: str, header: str, several: bool, damaged: bool, draw: Random
) -> None:
    rows = [f"{number}.png,{('cat', 'dog;cat', '')[number % 3]}" for number in range(12)]
    lines = [header, *rows[:5], f"5.png,{cell}", *rows[6:], f"{cell},cat"]
    data = ("\n".join(lines) if file == "x.csv" else f"cat\n{cell}\n").encode(errors="replace")
    (folder / file).write_bytes(mutant(data, draw) if damaged else data)
    try:
        data_set = open_data(str(folder / file if file == "x.csv" else folder), WHOLE, multi_label=several)
    except VitkitError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return
    names, samples = data_set.class_names, data_set.splits["train"]
    assert len({*names}) == len(names) and all(len(name) <= 1000 for name in names)
    assert not [name for name in names if any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in name)]
    labels = np.asarray(samples.labels)
    assert labels.shape[1] == len(names) if several else set(labels.tolist()) <= set(range(len(names)))
    for index in range(len(samples)):
        path = samples.file(index)
        assert not isinstance(path, Path) or path.resolve().is_relative_to(folder.resolve())
        try:
            samples.decode(index)
        except DecodeError as error:
            assert "\n" not in str(error)
