"""A disk that fails, and a process that is killed, at the n-th filesystem call on a folder.

Python tells an audit hook of every file that is opened, renamed or removed; writing, flushing and closing are
wrapped. There is no end to it but that of the process.
"""

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

OPENING = ("open", "os.scandir", "os.listdir")
"""The calls that need a free file descriptor."""
AUDITED = (*OPENING, "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link")
WRAPPED = ("write", "fsync", "close", "ftruncate")


class FailingCalls:
    """Writes the filesystem calls on a folder into FOLDER.calls, and lets the one of a number fail.

    Args:
        folder: the folder; calls elsewhere are not counted.
        number: of the call, from 0; -1: none fails.
        fault: "kill", or the name of an error number.
    """

    def __init__(self, folder: str, number: int, fault: str) -> None:
        self.folder, self.number, self.fault = f"{folder}{os.sep}", number, fault
        self.record, self.made, self.process, self.busy = Path(f"{folder}.calls"), 0, os.getpid(), False
        sys.addaudithook(self._audited)
        for name in WRAPPED:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _audited(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in AUDITED and not self.busy and os.getpid() == self.process:
            self._counted(event, self._path(arguments[0], arguments[-1]))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(descriptor: int, *arguments: Any) -> Any:
            try:
                self._counted(name, self._path(descriptor, None))
            except OSError:
                if name == "close":
                    original(descriptor)  # a failed close leaves nothing open
                raise
            return original(descriptor, *arguments)

        return call

    def _path(self, target: Any, directory: Any) -> str:
        self.busy = True
        try:
            if isinstance(target, int):
                return os.readlink(f"/proc/self/fd/{target}")
            path = os.fsdecode(target)
            if isinstance(directory, int) and directory >= 0 and not os.path.isabs(path):
                return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), path)
            return os.path.abspath(path)
        except (OSError, TypeError, ValueError):
            return ""
        finally:
            self.busy = False

    def _counted(self, name: str, path: str) -> None:
        if self.busy or not f"{path}{os.sep}".startswith(self.folder):
            return
        self.busy = True
        with self.record.open("a") as file:
            file.write(json.dumps((name, path.removeprefix(self.folder))) + "\n")
        self.busy = False
        self.made += 1
        if self.made - 1 == self.number:
            if self.fault == "kill":
                os._exit(137)
            code = getattr(errno, self.fault)
            raise OSError(code, os.strerror(code), path)
