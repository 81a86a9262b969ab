"""Images are named as files, as folders, and by the archive, table or Parquet files that hold them."""

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vitkit
from tests.helpers.image_folders import image_bytes
from tests.helpers.refusals import refused
from vitkit.cli.main import run
from vitkit.data.layouts.image_paths import find_images

from .test_archives import tarred, unpacked, zipped

FILES = {name: image_bytes(n) for n, name in enumerate(("cats/1.png", "cats/2.png", "dogs/1.png"))}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return unpacked(tmp_path / "photos", FILES)


def packed(photos: Path, kind: str) -> Path:
    """The photos in another form."""
    path = photos.parent / f"photos.{kind}"
    if kind == "zip":
        return zipped(path, FILES)
    if kind == "tar":
        return tarred(path, {f"photos/{name}": content for name, content in FILES.items()})
    if kind == "csv":
        path.write_text("filename\n" + "".join(f"photos/{name}\n".replace("/", "\\") for name in FILES))
    elif kind == "parquet":
        pq.write_table(pa.table({"jpg": [*FILES.values()]}), path)
    else:
        (path / "data").mkdir(parents=True)
        packed(photos, "parquet").rename(path / "data" / "test-0.parquet")
    return path


HOLDERS = {
    "zip": "photos.zip/dogs/1.png",
    "tar": "photos.tar/photos/dogs/1.png",
    "csv": "photos/dogs/1.png",
    "parquet": "photos.parquet row 2",
    "folder": "photos.folder/data/test-0.parquet row 2",
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_images_are_named_by_what_holds_them(kind: str, photos: Path, tmp_path: Path) -> None:
    images = list(find_images([str(packed(photos, kind)), str(photos / "cats/1.png")]))
    contents = [image.content() for image in images]
    encoded = [content.read_bytes() if isinstance(content, Path) else content for content in contents]
    assert encoded == [*FILES.values(), image_bytes(0)]
    assert images[2].path == tmp_path / HOLDERS[kind]
    assert all(image.holder.is_file() for image in images)
    (tmp_path / "photos.tar.gz").write_bytes(b"")
    refused("Unpack it", list, find_images([str(tmp_path / "photos.tar.gz")]))


def test_an_archive_is_predicted_as_its_folder(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitkit.save_model(vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=8), tmp_path / "model")
    with zipfile.ZipFile(packed(photos, "zip"), "a") as archive:
        archive.writestr("dogs/2.png", b"no image")
    lines: dict[str, list[str]] = {}
    for name in ("photos", "photos.zip"):
        run(["predict", str(tmp_path / "model"), str(tmp_path / name), "--csv"])
        lines[name] = capsys.readouterr().out.replace(f"{tmp_path / name}/", "").splitlines()
    assert len(lines["photos"]) == 1 + len(FILES) and lines["photos.zip"][:-1] == lines["photos"]
    assert lines["photos.zip"][-1].startswith('dogs/2.png,,,,,,"not an image')
    model, packed_as, out = (str(tmp_path / name) for name in ("model", "photos.zip", "out"))
    assert run(["predict", model, packed_as, "--csv", "--json"]) == 1
    assert "two forms of the same" in capsys.readouterr().err
    command = ["predict", model, packed_as, "--out", out]
    assert run(command) == 1  # the file that is none
    assert "parts were there" not in capsys.readouterr().out
    packed(photos, "zip")
    run(command)
    assert "holds" in capsys.readouterr().err  # other images: the archive was written anew
