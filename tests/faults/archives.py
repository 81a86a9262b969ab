"""Damaged and hostile .tar and .zip files: every image with its own pixels or unreadable, or one refusal."""

import io
import re
import stat
import tarfile
import zipfile
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.faults.entry import Refusal
from tests.faults.harness import Kind, Outcome, forget_peak
from tests.faults.mutate import ODD_NUMBERS, mutant
from tests.helpers.image_folders import image_bytes
from vitkit.data.sources import open_data
from vitkit.errors import DecodeError

LEVELS = {f"{('cat', 'eel', 'ox')[i % 3]}/{i}.png": 10 * i for i in range(24)}
"""The grey level of each image, by its name."""
IMAGES = {name: image_bytes(level, (8, 8)) for name, level in LEVELS.items()}
ODD_NAMES = (
    "../x.png", "/x.png", "cat/../../x.png", "cat\\x.png", "cat/x\n.png", "cat/\x1b[2J.png", "cat/\0.png", "",
    ".", "cat/", "cat/./x.png", "cat//x.png", "x" * 300 + ".png", "cat/0.png", "\u202ecat/x.png", "c:/x.png",
    "__MACOSX/cat/._0.png",
)  # fmt: skip
LINKS = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"Z")
IGNORED = re.compile(r"^(?:\w+: )?([0-9,]+) .* ignored")

TAR_WAYS = ("a header", "cut", "lost blocks", "more behind the end", "odd members", "a long name", "bytes")
UNCHECKED = ("lost blocks", "a long name", "bytes")
"""Ways that may change the content or the long name of a member, of which a .tar has no check sum."""
ZIP_WAYS = (b"PK\3\4", b"PK\1\2", b"PK\5\6", "odd members", "a bomb", "bytes")
"""Damage within a record that begins with a mark, or other ways."""


class Archives(Kind):
    """Archives of 24 images with a damaged header, member, name or end, by turns a .tar and a .zip."""

    name, count, limit = "archives", 4_000, 30.0
    sample = tuple(range(42))
    most_memory = 128 << 20  # the images have 2 kB together

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        is_tar, turn = number % 2, number // 2
        way = TAR_WAYS[turn % len(TAR_WAYS)] if is_tar else ZIP_WAYS[turn % len(ZIP_WAYS)]
        path = folder / ("x.tar" if is_tar else "x.zip")
        (_damaged_tar if is_tar else _damaged_zip)(path, way, draw)
        forget_peak()  # making a bomb does not count as reading it
        outcome = tried(path, pixels_are_checked=not is_tar or way not in UNCHECKED)
        return Outcome(outcome.verdict, f"{path.suffix}, {way!r}: {outcome.detail}")


def tried(path: Path, pixels_are_checked: bool) -> Outcome:
    """No image of the 24 is missing without a word, and none has the pixels or the name of another one."""
    try:
        data = open_data(str(path))  # which looks for repeats
    except Refusal as refusal:
        said = str(refusal)
        is_sentence = not {"\n", "\x1b"} & {*said} and len(said) <= 2000
        return Outcome("words" if is_sentence else "wrong", said[:300])
    ignored = sum(int(said[1].replace(",", "")) for said in map(IGNORED.search, data.notes) if said)
    count = 0
    for samples in data.splits.values():
        for index in range(len(samples)):
            count += 1
            name = samples.key(index)
            level = LEVELS.get("/".join(name.split("/")[-2:]))  # without the long name before it
            if any(ord(letter) < 32 for letter in name):
                return Outcome("wrong", f"an image is named {name!r}")
            with suppress(DecodeError):
                if samples.decode(index)[0, 0, 0] != level and pixels_are_checked:
                    return Outcome("wrong", f"{name} has other pixels than it had")
    if count + ignored < len(IMAGES):
        return Outcome("wrong", f"{count} of {len(IMAGES)} images, and {ignored} were said to be ignored")
    return Outcome("right")


def _tar(draw: Random, images: dict[str, bytes] = IMAGES, extra: tuple[tarfile.TarInfo, ...] = ()) -> bytes:
    """A .tar in one of the formats, with a long name now and then."""
    stream = io.BytesIO()
    formats = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    kind = draw.choice(formats[1:] if extra else formats)  # USTAR has no long names
    long = "long" * 30 + "/" if draw.random() < 0.3 else ""
    with tarfile.open(fileobj=stream, mode="w", format=kind) as tar:
        for name, content in images.items():
            info = tarfile.TarInfo(long + name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    return stream.getvalue()


def _damaged_tar(path: Path, way: object, draw: Random) -> None:
    tar = bytearray(_tar(draw))
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        header = draw.choice([info.offset for info in archive])  # or that of the long name before it
    end = len(tar.rstrip(b"\0"))
    match way:
        case "a header":
            contents = (bytes(512), draw.randbytes(512), draw.choice(ODD_NUMBERS).to_bytes(4))
            kind = draw.randrange(4)
            if kind == 3:
                tar[header + draw.randrange(512)] ^= 1 << draw.randrange(8)
            else:
                start = header + 124 * (kind == 2)  # where the size stands
                tar[start : start + len(contents[kind])] = contents[kind]
        case "cut":
            del tar[draw.choice((header, draw.randrange(end + 512))) :]
        case "lost blocks":
            blocks = range(0, end - end % 512, 512)
            # Not the last four: a last image of zeros alone is no other than the zeros at the end.
            for at in draw.sample(blocks[:-4], draw.choice((1, 1, 3))):
                tar[at : at + 512] = bytes(512)
            if draw.random() < 0.5:  # one: all blocks of an image that are gone leave nothing to notice
                at = draw.choice(blocks)
                del tar[at : at + 512]
        case "more behind the end":
            items = list(IMAGES.items())
            behind = draw.choice((_tar(draw, dict(items[12:])), draw.randbytes(700)))
            tar = bytearray(_tar(draw, dict(items[:12])) + bytes(draw.choice((0, 512, 10240))) + behind)
        case "odd members":  # names, links, devices and sizes that lie, with right check sums
            info = tarfile.TarInfo(draw.choice(ODD_NAMES))
            if draw.random() < 0.5:
                info.type, info.linkname = (
                    draw.choice(LINKS),
                    draw.choice(("/etc/passwd", "../x", "cat/0.png")),
                )
            elif draw.random() < 0.5:
                info.pax_headers = {"size": draw.choice(("-512", "1e9", str(2**87), "x", ""))}
            tar = bytearray(_tar(draw, extra=(info,)))
        case "a long name":  # or attributes, of 4 GiB, the bytes of which are there as holes
            info = tarfile.TarInfo("././@LongLink")
            info.type = draw.choice((b"L", b"K", b"x", b"g", b"X"))
            info.size = draw.choice((4 << 30, 2 << 20, 600))
            with path.open("wb") as stream:
                stream.write(tar[:header] + info.tobuf(tarfile.GNU_FORMAT))
                stream.seek(header + 512 + (info.size + 511) // 512 * 512)
                stream.write(tar[header:])
            return
        case _:
            tar = bytearray(mutant(tar, draw))
    path.write_bytes(tar)


def _damaged_zip(path: Path, way: object, draw: Random) -> None:
    with zipfile.ZipFile(path, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in IMAGES.items():
            archive.writestr(name, content)
        if way == "odd members":
            info = zipfile.ZipInfo("cat/x.png")
            info.filename = draw.choice(ODD_NAMES)
            if draw.random() < 0.4:
                kinds = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR)
                info.external_attr = (draw.choice(kinds) | 0o777) << 16
            archive.writestr(info, b"/etc/passwd", zipfile.ZIP_DEFLATED)
        if way == "a bomb":  # an image of 40 or 600 MB of zeros
            info = zipfile.ZipInfo("cat/bomb.png")
            info.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(info, "w") as bomb:
                for _ in range(draw.choice((40,) * 9 + (600,))):
                    bomb.write(bytes(1 << 20))
    data = bytearray(path.read_bytes())
    if way == "a bomb" and draw.random() < 0.5:  # whose size is said as a small one
        at = data.rindex(b"cat/bomb.png") - 46
        data[at + 24 : at + 28] = draw.choice((100, 1000, 1 << 20)).to_bytes(4, "little")
    elif way == "bytes":
        data = bytearray(mutant(data, draw))
    elif isinstance(way, bytes):
        places = [place.start() for place in re.finditer(re.escape(way), data)]
        at = draw.choice(places) + draw.randrange({b"PK\3\4": 100, b"PK\1\2": 55}.get(way, 22))
        number = draw.choice(ODD_NUMBERS).to_bytes(4, "little")[: draw.choice((1, 2, 4))]
        if draw.random() < 0.5:
            data[at] ^= 1 << draw.randrange(8)
        else:
            data[at : at + len(number)] = number
    path.write_bytes(data)
