"""CSV files and lists with every fault that must be refused by its line, and what is read all the same."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.image_folders import WHOLE, image_bytes, keys, plant
from tests.helpers.refusals import refused, undecodable
from vitkit.data.check import check_data
from vitkit.data.layouts.tables import LONGEST_LABEL
from vitkit.data.sources import ImageData, open_data
from vitkit.text import csv_line, read_csv_cell

DIGITS = "9" * 5000  # Python reads no whole number of more than 4,300 digits


def lines(count: int = 40) -> list[str]:
    return [f"{number}.png,{('cat', 'dog')[number % 2]}\n" for number in range(count)]


def changed(number: int, line: str, count: int = 40) -> str:
    """The lines of a table with another line, counted from the one behind the header."""
    every = lines(count)
    every[number] = line
    return "path,label\n" + "".join(every)


REFUSED = [
    ("x.csv", changed(20, '20.png,"cat\n'), r"line 22: the cells cannot be told apart"),
    ("x.csv", 'path,label,note\n1.png,a,x\n2.png,b,"x\n3.png,a,x\n', r"line 3: .* apart .*quotation mark"),
    ("x.csv", 'path,"label\n1.png,a\n', r"line 1: the cells cannot be told"),
    (
        "x.csv",
        changed(20, '20.png,"cat\n').replace("25.png,dog", '25.png,dog"'),
        r"line 22: a line break within the label 'cat\\x0a21\.png.*quotation mark",
    ),
    ("x.csv", changed(3, '"3\n.png",dog\n'), r"line 5: the path '3\\x0a\.png' holds"),
    ("x.csv", changed(3, "3\0.png,dog\n"), r"line 5: the path '3\\x00\.png' holds a zero"),
    ("x.csv", changed(3, "3.png,d\x85og\n"), r"line 5: .*control character \(\\x85\)"),
    ("x.csv", changed(3, f"3.png,{DIGITS}\n"), r"line 5: a label of 5,000 char.* 1,000"),
    ("x.csv", changed(3, "../../3.png,dog\n"), r"line 5: \.\./\.\./3\.png is not below .*Put the"),
    ("x.csv", changed(3, "/etc/passwd,dog\n"), r"line 5: /etc/passwd is not below"),
    ("x.csv", changed(3, "..\\3.png,dog\n"), r"line 5: \.\./3\.png is not below"),
    ("x.csv", "path,label,Label \n1.png,a,b\n2.png,b,a\n", "several columns of the name label"),
    ("x.csv", "file name,File-Name,label\n", "of the name file_name"),
    ("x.csv", "path,label\n" + "x" * 2_000_000, "line 2 has more than 1,048,576 characters"),
    ("x.csv", f'path,label\n1.png,"{"x" * 200_000}"\n', "line 2: .*field larger than"),
    ("x.csv", "picture,label\na,b\n", "no path column. Expected one of path, image"),
    ("x.csv", "path,kind\na,b\n", "no label column"),
    ("x.csv", "", "found nothing"),
    ("x.csv", "path,label\n", "no images"),
    ("x.csv", "path,label\na,b\nc,\n", "line 3: path or label is empty"),
    ("x.csv", "path,label\na,b\nc\n", "line 3: path or label is empty"),
    ("x.csv", "path,label,split\na,x,train\nb,y,holdout\n", "unknown split holdout"),
    ("x.csv", "path,label,split\na,x,train\nb,y,train\nc,z,test\n", "test has labels that train lacks: z"),
    ("x.csv", "path,label\na,x\nb,x\n", "one class, 'x'"),
    ("x.csv", "path,label\n\udce4,b\n", "UTF-8"),
    ("several.csv", f"path,labels\n1.png,{DIGITS};2\n2.png,\n", "line 2: a label of 5,000"),
    ("several.csv", f"path,labels\n1.png,1;2\n2.png,{'1' * 4400}\n", "line 3: a label of 4,400"),
    ("several.csv", 'path,labels\n1.png,a;b\n2.png,"a\n3.png,b\n', "line 3: the cells cannot be told apart"),
    ("several.csv", 'path,labels\n1.png,a;b\n2.png,"a\n3.png,b"\n', "line 3: a line break within"),
    ("several.csv", "path,labels\na.png,cat\nb.png,dog", "leave out task multi-label"),
    ("several.csv", 'path,labels\na.png,"cat,dog"\nb.png,dog', "splits_label_separator ','"),
    ("several.csv", "path,labels\na.png,cat;dog\nb.png,cat|bird", r"hold both ';' and '\|'"),
    ("several.csv", "path,labels\na.png,cat;dog\n./a.png,cat", "listed twice, in lines 2 and 3"),
    ("several.csv", "path,labels\na.png,cat,dog\nb.png,cat", "line 2: expected 2 cells .*, found 3"),
    ("several.csv", "path,labels\na.png,\nb.png,", "no image has a label"),
    ("several.csv", "path,labels\na.png,cat;dog\n,cat", "line 3: path or label is empty"),
    ("several.csv", "path,labels,split\na.png,x;y,train\nb.png,z,val", "val has labels that train lacks: z"),
    ("several.csv", "path,kinds\na.png,cat;dog", "no label column. Expected one of labels, classes, tags"),
    ("a.txt", DIGITS, r"a\.txt line 1: a label of 5,000 characters"),
    ("a.txt", "cat\nd\0og\n", r"a\.txt line 2: the label 'd\\x00og' holds a control character"),
    ("a.txt", "cat\r\n\x1b]0;x\n", r"a\.txt line 2: .*control character \(\\x1b\)"),
    ("a.txt", "cat\rd\x0bog\n", r"a\.txt line 2: .*control character \(\\x0b\)"),
    ("train800.txt", "../000.jpg 1\n", r"train800\.txt line 1: .* is not below"),
    ("train800.txt", "images/../../x.jpg 0\n", r"train800\.txt line 1: .* is not below"),
]


@pytest.mark.parametrize(("name", "text", "message"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_fault_of_a_table_or_list_is_refused_by_its_line(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    """Tables of one and of several labels, files of labels and lists of images are tried."""
    (tmp_path / "a.png").write_bytes(image_bytes())
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    path = tmp_path / name if name.endswith("csv") else tmp_path
    said = refused(message, open_data, str(path), WHOLE, multi_label=name in ("several.csv", "a.txt"))
    assert "\n" not in said and len(said) < 900


def test_a_line_of_a_label_file_ends_at_a_line_break_alone(tmp_path: Path) -> None:
    """Unicode's separators of lines and paragraphs stand within names."""
    (tmp_path / "a.png").write_bytes(image_bytes())
    (tmp_path / "a.txt").write_bytes("cat\u2028small\rdog\u2029\r\nbird\n".encode())
    data = open_data(str(tmp_path), WHOLE, multi_label=True)
    assert data.class_names == ("bird", "cat\u2028small", "dog")  # strip takes the one at the end


def table(folder: Path, text: str, name: str = "x.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def read(path: Path) -> ImageData:
    return open_data(str(path), WHOLE)


def test_paths_of_windows_are_read(tmp_path: Path) -> None:
    (tmp_path / "train" / "cats").mkdir(parents=True)
    (tmp_path / "train/cats/1.png").write_bytes(image_bytes(1))
    (tmp_path / "train\\2.png").write_bytes(image_bytes(2))  # here a name like any other
    data = read(table(tmp_path, "path,label\ntrain\\cats\\1.png,a\ntrain\\2.png,b\ntrain\\gone.png,b\n"))
    assert [int(data.splits["train"].decode(index)[0, 0, 0]) for index in range(2)] == [1, 2]
    assert keys(data, "train") == [
        "x.csv line 2: train/cats/1.png",
        "x.csv line 3: train\\2.png",
        "x.csv line 4: train\\gone.png",
    ]
    assert data.notes == ("1 path with \\ read with /, as the files are named here.",)
    sets = table(tmp_path, "path,labels\ntrain\\cats\\1.png,a;b\ntrain\\2.png,b\n")
    assert open_data(str(sets), WHOLE, multi_label=True).notes[0].startswith("1 path with \\ read with /")


def test_absolute_paths_below_the_folder_and_links_in_it_are_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/1.png").write_bytes(image_bytes(1))
    own = tmp_path / "own"
    own.mkdir()
    (own / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(own)
    text = f"path,label\nlinked/1.png,a\n{own}/linked/1.png,b\n./..x/../linked/1.png,b\n"
    for folder in (own, tmp_path / "link"):
        train = read(table(folder, text)).splits["train"]
        assert [int(train.decode(index)[0, 0, 0]) for index in range(2)] == [1, 1]
    outside = table(own, f"path,label\n{tmp_path}/elsewhere/1.png,a\n")
    refused(r"line 2: .*/elsewhere/1\.png is not below", read, outside)


HEADERS = (
    "file_name,class_name", "File Name,Category", "filepath,label_name", "img-path,CLASS LABEL",
    "image_name,category_name", "image,target",
)  # fmt: skip


def test_columns_as_other_tools_name_them(tmp_path: Path) -> None:
    for header in HEADERS:
        assert read(table(tmp_path, f"{header}\n1.png,a\n2.png,b\n")).class_names == ("a", "b")
    assert read(table(tmp_path, ",path,label,\n0,1.png,a,x\n0,2.png,b,x\n")).class_names == ("a", "b")


def test_columns_and_rows_that_are_not_read_are_told(tmp_path: Path) -> None:
    data = read(table(tmp_path, "label,image_path,class_name,filename\na,1.png,x,9.png\nb,2.png,y,9.png\n"))
    assert data.class_names == ("a", "b") and data.notes == (
        "The paths are read from the column filename; not read: image_path.",
        "The labels are read from the column label; not read: class_name.",
    )
    boxes = read(table(tmp_path, "filename,xmin,ymin,XMax,ymax,class\n1.png,0,0,5,5,a\n2.png,0,0,5,5,b\n"))
    assert boxes.notes[0].startswith("Columns of boxes are not read (xmin, ymin, XMax, ymax): one label")
    # Two quotation marks in a column that nobody reads take the lines between them away.
    data = read(table(tmp_path, 'path,label,note\n1.png,a,x\n2.png,b,"x\n3.png,a,y"\n4.png,b,\n'))
    assert len(data.splits["train"]) == 3
    assert data.notes == (
        '1 image of several lines, the first in line 3: is a quotation mark (") left open there?',
    )


def test_labels_take_no_more_memory_than_they_have_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array of text is as wide as its longest cell: 40 lines and one long label were 160 kB."""
    made: list[Any] = []
    array = np.array

    def noted(*given: Any, **options: Any) -> Any:
        made.append(array(*given, **options))
        return made[-1]

    monkeypatch.setattr(np, "array", noted)
    long = "x" * LONGEST_LABEL
    data = read(table(tmp_path, changed(3, f"3.png,{long}\n")))
    assert long in data.class_names and made
    assert max(array.itemsize for array in made) < 100


FORMULAS = ("=cmd|'/c calc'!A0", "+x", "-x", "@SUM(A1)", "'=a", "''@b", "-", "=", "-1+1", "1e5x", "-e")


def test_no_cell_of_ours_is_a_formula_and_numbers_and_plain_text_are_as_they_are() -> None:
    for name in FORMULAS:
        (cell, _) = next(csv.reader([csv_line([name, "x"])]))
        assert cell[0] not in "=+-@" and read_csv_cell(cell) == name
    for number in ("-1", "+2", "-0.5", "1e-5", "-1.5E+3", "12", "-3."):
        assert csv_line([number, "it's", "'tis", "a=b", ""]) == f"{number},it's,'tis,a=b,"


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf", "Zl", "Zp")), min_size=1))
def test_a_cell_that_was_written_is_read_back(text: str) -> None:
    assert read_csv_cell(next(csv.reader(io.StringIO(csv_line([text, ""]))))[0]) == text


def test_what_we_write_is_read_back_as_the_same_classes(tmp_path: Path) -> None:
    names = [name for name in FORMULAS if "/" not in name]
    rows = [csv_line(["path", "class"]), *(csv_line([f"={i}.png", name]) for i, name in enumerate(names))]
    for i in range(len(names)):
        (tmp_path / f"={i}.png").write_bytes(image_bytes(i))
    data = read(table(tmp_path, "\n".join(rows)))
    assert set(data.class_names) == set(names)
    assert check_data(data).bad == ()


def test_csv(tmp_path: Path) -> None:
    plant(tmp_path, {"images": 3})
    text = "\ufeffFileName, Label ,set\nimages/000.png,wren,train\n\nimages/001.png,owl,train\n"
    text += 'images/gone.png,owl,Valid\n"images/002.png",wren,TEST\n'
    data = open_data(str(table(tmp_path, text, "birds.csv")))
    assert (data.name, data.kind, data.class_names) == ("birds", "CSV", ("owl", "wren"))
    assert keys(data, "train") == ["birds.csv line 2: images/000.png", "birds.csv line 4: images/001.png"]
    assert data.splits["train"].labels.tolist() == [1, 0]
    assert data.splits["train"].decode(1)[0, 0, 0] == 1
    assert data.splits["val"].key(0) == "birds.csv line 5: images/gone.png"
    undecodable("no such file", data.splits["val"].decode, 0)
    assert len(data.splits["test"]) == 1
    # Labels that are numbers are in the order of numbers, as they were written.
    for delimiter in ",;\t":
        lines = "path,class\na,10\nb,9\nc,-1\nd,10\ne,+2\nf,007\ng,7".replace(",", delimiter)
        numbers = read(table(tmp_path, lines))
        assert numbers.class_names == ("-1", "+2", "007", "7", "9", "10")
        assert numbers.splits["train"].labels.tolist() == [5, 4, 0, 5, 1, 2, 3]
