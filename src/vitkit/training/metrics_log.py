"""The metrics log of a run: JSON lines that follow from the run's own numbers alone.

It holds no time and no speed, so it is the same bytes however often the run was stopped.

A checkpoint records length and hash of the log at its step. Lines beyond were written by steps that will be
made again and are cut off; a log that begins with other bytes was damaged, and is set aside whole: none of
its lines can be trusted.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitkit.durable import moved_error, read_chunks, replace_file
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import Progress, set_aside


class MetricsLog:
    """The log, open for writing after its first `length` bytes; the rest is cut off.

    Raises:
        VitkitError: it cannot be opened or read, or is no regular file.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.fresh: list[Mapping[str, Any]] = []
        try:
            # Without O_NONBLOCK, opening a pipe waits for a reader.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            self.descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            raise self._refused(error) from error
        self.folder = -1
        try:
            # Open until the end, so that no other folder gets the same number.
            self.folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            self.length, self.digest = _hash_beginning(path, length)
            os.ftruncate(self.descriptor, self.length)
        except OSError as error:
            self.close()
            raise self._refused(error) from error
        except VitkitError:
            self.close()
            raise

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            VitkitError: the disk refused, or the folder was moved.
        """
        self._require_same_folder()
        data = memory = json.dumps(line).encode() + b"\n"
        try:
            while data:  # a write may be short
                data = data[os.write(self.descriptor, data) :]
        except OSError as error:
            raise self._refused(error) from error
        self.digest.update(memory)
        self.length += len(memory)
        self.fresh.append(line)

    def take(self) -> tuple[Mapping[str, Any], ...]:
        """Return the lines that were written since the last call."""
        taken, self.fresh = tuple(self.fresh), []
        return taken

    def sync(self) -> tuple[int, str]:
        """Flush to the disk; returns length and SHA-256.

        Raises:
            VitkitError: the disk refused, or the folder was moved.
        """
        self._require_same_folder()  # a checkpoint follows, into the folder of this path
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise self._refused(error) from error
        return self.length, self.digest.hexdigest()

    def close(self) -> None:
        os.close(self.descriptor)
        if self.folder >= 0:
            os.close(self.folder)

    def _require_same_folder(self) -> None:
        """Refuse to go on where the path of the run folder leads to no folder, or to another one."""
        folder = self.path.parent
        if not (folder.is_dir() and os.path.samestat(os.stat(folder), os.fstat(self.folder))):
            raise moved_error(folder)

    def _refused(self, error: OSError) -> VitkitError:
        return VitkitError(
            f"{self.path} could not be written: {error.strerror or error}. Checkpoints committed before are "
            "untouched: mend this (is there room?), then run the same command again to continue."
        )


class NoLog:
    """The log of a process that writes none, because another one of the same run does."""

    def write(self, line: Mapping[str, Any]) -> None:
        pass

    def take(self) -> tuple[Mapping[str, Any], ...]:
        return ()

    def sync(self) -> tuple[int, str | None]:
        return 0, None

    def close(self) -> None:
        pass


Log = MetricsLog | NoLog


def repair_log(path: Path, progress: Progress) -> tuple[Progress, list[str]]:
    """Make sure that the log begins with the bytes that a checkpoint recorded.

    A log of other bytes is renamed, never cut, and a new one begins with a line that says at which step.

    Returns:
        The progress to continue from, and a sentence for the user if the log was damaged.

    Raises:
        VitkitError: the log cannot be read, or the disk refused.
    """
    expected = progress.log_bytes, progress.log_sha256
    restart = json.dumps({"kind": "restart", "step": progress.step}).encode() + b"\n"
    try:
        prefix = _prefix(path, progress.log_bytes)
        if prefix == expected:
            return progress, []
        restart_hash = hashlib.sha256(restart).hexdigest()
        renewed = replace(progress, log_bytes=len(restart), log_sha256=restart_hash)
        if _prefix(path, len(restart)) == (len(restart), restart_hash):
            return renewed, []  # repaired before, by a run that was killed before its next checkpoint
        reason = "is gone"
        if prefix is not None:
            reason = f"is not as it was written, and is now {set_aside(path)}"
        replace_file(path, [restart])
    except OSError as error:
        raise VitkitError(
            f"{path} could not be read or renewed: {error.strerror or error}. Nothing was removed. Mend "
            "this, then run the same command again to continue."
        ) from error
    return renewed, [f"{path} {reason}. A new one begins after step {progress.step}."]


def _prefix(path: Path, length: int) -> tuple[int, str] | None:
    """Measure and hash the first `length` bytes, or all if there are fewer; None without a file."""
    try:
        size, digest = _hash_beginning(path, length)
    except FileNotFoundError:
        return None
    return size, digest.hexdigest()


def _hash_beginning(path: Path, length: int) -> tuple[int, "hashlib._Hash"]:
    """Measure and hash the first `length` bytes of a regular file, or all if there are fewer."""
    digest, size = hashlib.sha256(), 0
    for chunk in read_chunks(path):
        digest.update(chunk[: length - size])
        size = min(size + len(chunk), length)
        if size == length:
            break
    return size, digest
