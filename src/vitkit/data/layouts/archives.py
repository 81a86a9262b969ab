"""Read class folders from a .zip or an uncompressed .tar as it stands: nothing is unpacked onto the disk.

An archive may come from a stranger. No name in it is ever used as a path, links in it are not followed, and a
member is unpacked in memory, alone, up to the size in its header and no further.
"""

import os
import posixpath
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitkit.data.config import DEFAULT_RULE
from vitkit.data.files import UnreadableFileError, damage_explained, regular_file
from vitkit.data.layouts import folders
from vitkit.data.listing import SPLIT_NAMES, Listing, Texts, is_ignored
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import join_names, pluralize, visible

ARCHIVE_ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".txz")
"""Endings of archives; compressed tar files are refused with advice."""
LARGEST_MEMBER = DEFAULT_RULE.max_bytes
"""Bytes of an image, packed and unpacked: what decoding takes, unless somebody allows more pixels."""
_LARGEST_ARCHIVE = 1 << 50
"""Bytes: more than any disk has. A zip file can promise up to 2^64, which int64 cannot hold."""
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
_LOCAL_HEADER = 30
"""Bytes of the header before a member of a zip file, without its name and its extra field (APPNOTE 4.3.7)."""
_LONGEST_ZIP_END = 65535 + 22 + 20 + 56
"""Bytes of the end of a zip file: a comment, the end, and the locator and the longer end of ZIP64."""
_LONGEST_NAME = 1 << 20
"""Bytes of the long name or attributes before a member of a tar file, which `tarfile` reads whole."""
_LONG_TYPES = (b"x", b"g", b"X", b"L", b"K")
"""Types of their headers: of PAX, PAX for all members, Solaris, and GNU's long names and link names."""
_LONGEST_END = 16 << 20
"""Bytes of zeros at the end of a tar file: `tar` fills up its last record, usually of 10 KiB."""


class _Member(NamedTuple):
    """A file in an archive."""

    name: str
    offset: int
    """Bytes before it: of a zip file up to the header before it, of a tar file up to its content."""
    packed: int
    size: int
    method: int
    crc: int
    """CRC-32 of the content; -1 where the archive has none."""
    name_crc: int
    """CRC-32 of the name in the directory of a zip file, which stands before the member too; else -1."""


class _ArchiveFiles:
    """The images in an archive, which any process may read."""

    def __init__(self, archive: Path, names: Sequence[str], members: Sequence[_Member]) -> None:
        self.archive = archive
        self.names = Texts(names)
        self.facts = np.array([member[1:] for member in members], dtype=np.int64).reshape(-1, 6)

    def key(self, number: int) -> str:
        return os.fsencode(self.names[number]).decode("utf-8", "backslashreplace")

    def file(self, number: int) -> bytes:
        offset, packed, size, method, crc, name_crc = self.facts[number].tolist()
        if max(size, packed) > LARGEST_MEMBER:
            length = f"{max(size, packed):,} bytes in {self.archive.name}"
            raise DecodeError(f"it has {length}, more than the {LARGEST_MEMBER:,} allowed in an archive")
        try:
            with regular_file(self.archive) as stream:
                if crc >= 0:  # of a zip file
                    stream.seek(offset)
                    header = stream.read(_LOCAL_HEADER)
                    # The lengths of the name and of the extra field stand at these bytes.
                    name, extra = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
                    # A damaged name in the directory could put the image into another class.
                    same_name = zlib.crc32(stream.read(name)) == name_crc
                    offset += _LOCAL_HEADER + name + extra
                stream.seek(offset)
                content = stream.read(packed)
            if method == _DEFLATED:
                # One byte more than the header says, to notice a longer file without unpacking a bomb.
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, size + 1)
        except (UnreadableFileError, OSError, zlib.error) as error:
            raise DecodeError(f"{self.archive.name} cannot be read: {error}") from error
        if len(content) != size or (crc >= 0 and (zlib.crc32(content) != crc or not same_name)):
            raise DecodeError(f"it is damaged in {self.archive.name}, or the archive was written anew")
        return content

    def on_disk(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers[:1]  # one file holds them all

    def path(self, number: int) -> Path:
        return self.archive


def list_archive(
    path: Path, partial: bool, group: str | None = None, labelled: bool = True, levels: bool = False
) -> Listing:
    """List the images in an archive of class folders, in the order in which the folder would be listed.

    Args:
        path: a .zip or .tar file. A single folder around all that is in it is passed over.
        partial, group: as for `list_folders`.
        labelled: whether the folders are classes; else every image is listed without a label.
        levels: as for `list_folders`.

    Raises:
        VitkitError: it is no such archive, is encrypted or damaged, holds a name twice or a name that leads
            out of it; or as `list_folders`.
    """
    with damage_explained(path, "an archive", "Download it or pack it again"):
        contents = list(_zip_members(path) if path.suffix.lower() == ".zip" else _tar_members(path))
    members = [file for file in contents if isinstance(file, _Member)]
    _check_names(path, members)
    others = [visible(name[:80]) for name in contents if isinstance(name, str)]
    count = pluralize(len(others), "link, device or sparse file", "links, devices or sparse files")
    notes = (f"{count} in {path.name} ignored: {join_names(others)}.",) if others else ()
    shown = {file.name: file for file in members if not any(map(is_ignored, file.name.split("/")))}
    # A folder, or nested folders, around all files are passed over: "photos/".
    common = posixpath.commonpath([posixpath.dirname(name) for name in shown] or [""])
    # The last folder above the images is a class, even where there is no other.
    most = max((name.count("/") for name in shown), default=0) - 1 if labelled else 0
    shared = common.split("/") if common else []
    splits = (depth for depth, folder in enumerate(shared) if folder.lower() in SPLIT_NAMES)
    around = "".join(f"{folder}/" for folder in shared[: min(most, next(splits, most))])
    by_name = {name.removeprefix(around): file for name, file in shown.items()}

    def files_of(names: list[str]) -> _ArchiveFiles:
        return _ArchiveFiles(path, names, [by_name[name] for name in names])

    ending = path.suffix.lower().removeprefix(".")
    if not labelled:
        images = sorted(filter(folders.is_image, by_name)) or sorted(filter(folders.is_array, by_name))
        return replace(folders.without_labels(path, f"{ending} of images", images, files_of), notes=notes)
    below = sorted({name.split("/")[0] for name in by_name if "/" in name})
    roots, not_splits = folders.split_roots(path, below)
    scans: dict[str, folders.ClassImages] = {}
    for split, root in roots.items():
        above = "" if root == path else f"{root.name}/"
        scan, files = folders.ClassImages(root), dict[str, list[str]]()
        for name in (name.removeprefix(above) for name in by_name if name.startswith(above)):
            folder, slash, file = name.rpartition("/") if levels else name.partition("/")
            if slash and (not levels or _is_data(file)):
                files.setdefault(folder, []).append(file)
            elif slash:  # beside folders it would make a class of the folder above them
                scan.other += 1
            else:
                scan.loose += folders.is_image(name)
                scan.tables += [name] if name.endswith(folders.TABLE_SUFFIXES) else []
        scan.take(files)
        scans[split] = scan
    next(iter(scans.values())).hidden = len(members) - len(shown)
    kind = f"{ending} of class folders"
    listing = folders.list_classes(path, kind, scans, not_splits, files_of, partial, group)
    return replace(listing, notes=(*listing.notes, *notes))


def _zip_members(path: Path) -> Iterator[_Member | str]:
    """Yield the files in a zip file, and the names of links in it."""
    with regular_file(path) as stream, zipfile.ZipFile(stream) as archive:
        # The directory has as many lines as the end says (APPNOTE 4.3). `zipfile` does not look: a damaged
        # length in one line can make the lines behind it part of its comment.
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LONGEST_ZIP_END))
        end, count = stream.read(), len(archive.infolist())
        place, longer = end.rfind(b"PK\5\6") + 10, end.rfind(b"PK\6\6")
        if end[place : place + 2] == b"\xff\xff" and longer >= 0:
            place = longer + 32
        promised = int.from_bytes(end[place : place + 2], "little")
        if promised != count % 65536:  # writers without the longer end leave out the upper digits
            said = f"its end promises {promised:,} files, and its directory names {count:,}"
            raise zipfile.BadZipFile(said)
        for info in archive.infolist():
            name = info.orig_filename  # `filename` ends at a zero byte, which is refused like other odd names
            kind = stat.S_IFMT(info.external_attr >> 16)
            if name.endswith("/") and not info.file_size:
                continue
            if kind not in (0, stat.S_IFREG):  # a link's content is a path, not an image
                yield name
                continue
            if info.flag_bits & 1:
                raise VitkitError(f"{path} is encrypted: unpack it, and give the folder.")
            if info.compress_type not in (_STORED, _DEFLATED) and _is_data(name):
                raise VitkitError(
                    f"{path}: {visible(name[:80])} is compressed in a way that is not read here. "
                    "Pack the folder again with deflate, or unpack it, and give the folder."
                )
            start, packed, size = info.header_offset, info.compress_size, info.file_size
            if max(start, packed, size) > _LARGEST_ARCHIVE:
                raise VitkitError(f"{path} promises files larger than any disk: pack or download it again.")
            name_crc = zlib.crc32(name.encode("utf-8" if info.flag_bits & 0x800 else "cp437"))
            yield _Member(name, start, packed, size, info.compress_type, info.CRC, name_crc)


class _Header(tarfile.TarInfo):
    """A header in a tar file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        """Read a header, and refuse one that asks for more memory than a long name or attributes take."""
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_TYPES and header.size > _LONGEST_NAME:
            raise tarfile.ReadError(f"a name or attributes of {header.size:,} bytes")
        return header


def _tar_members(path: Path) -> Iterator[_Member | str]:
    """Yield the files in an uncompressed tar file, and the names of links, devices and sparse files in it.

    Raises:
        VitkitError: it is compressed as a whole, or does not end behind its last file. `tarfile` takes a
            damaged header for the end, and every file behind it would be missing without a word.
    """
    if path.suffix.lower() != ".tar":
        raise VitkitError(
            f"{path} is compressed as a whole, so that no image can be read without unpacking all images "
            "before it. Unpack it (tar xf), and give the folder; a .zip or a plain .tar is read as it stands."
        )
    with regular_file(path) as stream, tarfile.open(fileobj=stream, mode="r:", tarinfo=_Header) as archive:
        for info in archive:
            if info.size < 0:  # the next member would be an earlier one, for ever
                raise tarfile.HeaderError("a member of negative size")
            name = info.name.removeprefix("./")  # as `tar cf photos.tar .` names them
            if info.isreg() and not info.issparse():
                yield _Member(name, info.offset_data, info.size, info.size, _STORED, -1, -1)
            elif not info.isdir():
                yield name
        stream.seek(archive.offset)  # of the block that is no header
        end = stream.read(_LONGEST_END + 1)
    if not 2 * tarfile.BLOCKSIZE <= len(end) <= _LONGEST_END or end.strip(b"\0"):
        raise VitkitError(
            f"{path} is damaged or cut at byte {archive.offset:,}: expected the header of another file, or "
            "the end of two blocks of zeros and nothing behind them. Download it or pack it again; `tar xf` "
            "may save some of what is behind the damage."
        )


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _is_data(name: str) -> bool:
    return folders.is_image(name) or folders.is_array(name)


def _check_names(path: Path, members: Sequence[_Member]) -> None:
    """Refuse an archive whose names could mean several files, or files elsewhere."""
    names: set[str] = set()
    for member in members:
        name = member.name
        is_odd = name.startswith("/") or "\\" in name or "\0" in name or {"", ".", ".."} & {*name.split("/")}
        # A line break in the name of an image could pass for a line of ours.
        if is_odd or (_is_data(name) and _CONTROL.search(name)):
            raise VitkitError(
                f"{path} holds a file named '{visible(name[:80])}', which leads out of it or is no plain "
                "name. Pack the folder of class folders again."
            )
        if name in names:
            raise VitkitError(f"{path} holds two files named '{visible(name[:80])}'. Pack the folder again.")
        names.add(name)
