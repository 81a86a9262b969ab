"""Damaged and hostile .tar and .zip files: every image with its own pixels or unreadable, or one refusal."""

import io
import re
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.entry import Refusal, read_archive
from tests.faults.harness import Kind, Outcome, forget_peak
from tests.faults.labels import png
from tests.faults.mutate import ODD_NUMBERS, mutant

IMAGES = {f"{('cat', 'eel', 'ox')[i % 3]}/{i}.png": png(i) for i in range(24)}
ODD_NAMES = (
    "../x.png", "/x.png", "cat/../../x.png", "cat\\x.png", "cat/x\n.png", "cat/\x1b[2J.png", "cat/\0.png", "",
    ".", "cat/", "cat/./x.png", "cat//x.png", "x" * 300 + ".png", "cat/0.png", "\u202ecat/x.png", "c:/x.png",
    "__MACOSX/cat/._0.png",
)  # fmt: skip
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z")
IGNORED = re.compile(r"^(?:\w+: )?([0-9,]+) .* ignored")


class Archives(Kind):
    """Archives of 24 images with a damaged header, member, name or end, by turns a .tar and a .zip."""

    name, count = "archives", 4_000
    sample = tuple(range(80))
    limit = 30.0
    most_memory = 128 << 20  # the images have 2 kB together

    def prepare(self, folder: Path) -> None:
        """Nothing is shared: the archives are small."""

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        ways = TAR_WAYS if number % 2 else ZIP_WAYS
        way = list(ways)[number // 2 % len(ways)]
        path = folder / ("x.tar" if number % 2 else "x.zip")
        ways[way](path, draw)
        forget_peak()  # making a bomb does not count as reading it
        outcome = tried(path, pixels_are_checked=path.suffix == ".zip" or way not in UNCHECKED)
        return Outcome(outcome.verdict, f"{path.suffix}, {way}: {outcome.detail}")


def tried(path: Path, pixels_are_checked: bool) -> Outcome:
    """No image of the 24 is missing without a word, and none has the pixels or the name of another one."""
    try:
        images, notes = read_archive(path)
    except Refusal as refusal:
        said = str(refusal)
        if "\n" in said or "\x1b" in said or len(said) > 2000:
            return Outcome("wrong", f"no sentence: {said[:300]!r}")
        return Outcome("words", said)
    ignored = sum(int(said[1].replace(",", "")) for said in map(IGNORED.search, notes) if said)
    if len(images) + ignored < len(IMAGES):
        return Outcome(
            "wrong", f"{len(images)} of {len(IMAGES)} images, and {ignored} were said to be ignored"
        )
    for name, image in images.items():
        content = IMAGES.get("/".join(name.split("/")[-2:]))  # without the long name before it
        if any(ord(letter) < 32 for letter in name):
            return Outcome("wrong", f"an image is named {name!r}")
        if pixels_are_checked and image is not None and (content is None or image != level(content)):
            return Outcome("wrong", f"{name} has other pixels than it had")
    return Outcome("right")


def level(encoded: bytes) -> int:
    """The level of grey of an image of this attack."""
    return list(IMAGES.values()).index(encoded) * 20 % 256


def _tar(draw: Random, images: dict[str, bytes] = IMAGES, extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """A .tar in one of the formats, with a long name now and then and a folder before its files."""
    stream = io.BytesIO()
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    kind = draw.choice(formats[1:] if extra else formats)  # USTAR has no long names
    long = "long" * 30 + "/" if draw.random() < 0.3 else ""
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for name, content in images.items():
            folder, _, file = name.partition("/")
            info = tarfile.TarInfo(f"{long}{folder}/{file}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return stream.getvalue()


def _headers(tar: bytes) -> list[int]:
    """The offsets of all members, at their own headers or the long names before them."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [info.offset for info in archive]


def _damaged_header(path: Path, draw: Random) -> None:
    tar = bytearray(_tar(draw))
    at = draw.choice(_headers(bytes(tar)))
    match draw.randrange(4):
        case 0:
            tar[at + draw.randrange(512)] ^= 1 << draw.randrange(8)
        case 1:
            tar[at : at + 512] = bytes(512)
        case 2:
            tar[at : at + 512] = draw.randbytes(512)
        case _:
            tar[at + 124 : at + 128] = draw.choice(ODD_NUMBERS).to_bytes(4)
    path.write_bytes(tar)


def _cut(path: Path, draw: Random) -> None:
    tar = _tar(draw)
    end = len(tar.rstrip(b"\0"))
    path.write_bytes(tar[: draw.choice((draw.choice(_headers(tar)), draw.randrange(end + 512)))])


def _lost_blocks(path: Path, draw: Random) -> None:
    tar = bytearray(_tar(draw))
    blocks = [at * 512 for at in range(len(tar.rstrip(b"\0")) // 512)]
    # Not the last four: a last image of zeros alone is no other than the zeros at the end.
    for at in draw.sample(blocks[:-4], draw.choice((1, 1, 3))):
        tar[at : at + 512] = bytes(512)
    if draw.random() < 0.5:  # a single one: all blocks of an image that are gone leave nothing to notice
        at = draw.choice(blocks)
        del tar[at : at + 512]
    path.write_bytes(tar)


def _more_behind(path: Path, draw: Random) -> None:
    half = dict(list(IMAGES.items())[:12])
    rest = {name: content for name, content in IMAGES.items() if name not in half}
    between = draw.choice((b"", bytes(512), bytes(10240)))
    path.write_bytes(_tar(draw, half) + between + draw.choice((_tar(draw, rest), draw.randbytes(700))))


def _tar_members(path: Path, draw: Random) -> None:
    """Names, links, devices and sizes that lie, with right check sums."""
    info = tarfile.TarInfo(draw.choice(ODD_NAMES))
    if draw.random() < 0.5:
        info.type, info.linkname = draw.choice(LINKS), draw.choice(("/etc/passwd", "../x", "cat/0.png"))
    elif draw.random() < 0.5:
        info.pax_headers = {"size": draw.choice(("-512", "1e9", str(2**87), "x", ""))}
    path.write_bytes(_tar(draw, extra=(info,)))


def _long_names(path: Path, draw: Random) -> None:
    """A long name or attributes of 4 GiB, the bytes of which are there as holes."""
    tar = _tar(draw)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = draw.choice((b"L", b"K", b"x", b"g", b"X")), draw.choice((4 << 30, 2 << 20, 600))
    at = draw.choice(_headers(tar))
    path.write_bytes(tar[:at] + info.tobuf(tarfile.GNU_FORMAT))
    with path.open("r+b") as stream:
        stream.truncate(at + 512 + (info.size + 511) // 512 * 512)
        stream.seek(0, io.SEEK_END)
        stream.write(tar[at:])


def _any_bytes_of_tar(path: Path, draw: Random) -> None:
    path.write_bytes(mutant(_tar(draw), draw))


TAR_WAYS: dict[str, Callable[[Path, Random], None]] = {
    "a damaged header": _damaged_header,
    "cut": _cut,
    "lost blocks": _lost_blocks,
    "more behind the end": _more_behind,
    "odd members": _tar_members,
    "a long name": _long_names,
    "damaged bytes": _any_bytes_of_tar,
}
UNCHECKED = ("lost blocks", "damaged bytes", "a long name")
"""Ways that may change the content or the long name of a member, of which a .tar has no check sum."""


def _zip(draw: Random, extra: dict[zipfile.ZipInfo, bytes] | None = None) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in IMAGES.items():
            archive.writestr(name, content)
        for info, content in (extra or {}).items():
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _places(data: bytes, mark: bytes) -> list[int]:
    return [place.start() for place in re.finditer(re.escape(mark), data)]


def _damaged_record(mark: bytes, length: int) -> Callable[[Path, Random], None]:
    """Damage one of the records that begin with a mark, within so many bytes."""

    def damage(path: Path, draw: Random) -> None:
        data = bytearray(_zip(draw))
        at = draw.choice(_places(bytes(data), mark)) + draw.randrange(length)
        if draw.random() < 0.5:
            data[at] ^= 1 << draw.randrange(8)
        else:
            number = draw.choice(ODD_NUMBERS).to_bytes(4, "little")[: draw.choice((1, 2, 4))]
            data[at : at + len(number)] = number
        path.write_bytes(data)

    return damage


def _zip_members(path: Path, draw: Random) -> None:
    info = zipfile.ZipInfo("cat/x.png")
    info.filename = draw.choice(ODD_NAMES)
    if draw.random() < 0.4:
        kinds = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR)
        info.external_attr = (draw.choice(kinds) | 0o777) << 16
    path.write_bytes(_zip(draw, {info: b"/etc/passwd"}))


def _bomb(path: Path, draw: Random) -> None:
    """An image of 40 or 600 MB of zeros, whose size is said as it is, or as a small one."""
    stream = io.BytesIO(_zip(draw))
    with (
        zipfile.ZipFile(stream, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("cat/bomb.png", "w") as bomb,
    ):
        for _ in range(draw.choice((40, 40, 40, 600))):
            bomb.write(bytes(1 << 20))
    data = bytearray(stream.getvalue())
    if draw.random() < 0.5:
        at = data.rindex(b"cat/bomb.png") - 46
        data[at + 24 : at + 28] = draw.choice((100, 1000, 1 << 20)).to_bytes(4, "little")
    path.write_bytes(data)


def _any_bytes_of_zip(path: Path, draw: Random) -> None:
    path.write_bytes(mutant(_zip(draw), draw))


ZIP_WAYS: dict[str, Callable[[Path, Random], None]] = {
    "a damaged member": _damaged_record(b"PK\3\4", 100),
    "a damaged line of the directory": _damaged_record(b"PK\1\2", 55),
    "a damaged end of the directory": _damaged_record(b"PK\5\6", 22),
    "odd members": _zip_members,
    "damaged bytes": _any_bytes_of_zip,
    "a bomb": _bomb,
}
