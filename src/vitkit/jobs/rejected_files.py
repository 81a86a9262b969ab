"""The files of a run that could not be read: collected by split, kept in the run folder, told at the end."""

from dataclasses import replace
from pathlib import Path

from vitkit.config import to_json
from vitkit.data.listing import pluralize
from vitkit.durable import replace_json
from vitkit.jobs.data_record import RECORD, DataRecord
from vitkit.jobs.listener import Listener


class RejectedFiles:
    """Files that could not be read, with the reason, by split.

    What was found before a run was stopped counts on, so that a resumed run knows all, and the quota of
    unreadable files is the whole run's.
    """

    def __init__(self, folder: Path, record: DataRecord) -> None:
        """Begin with what the record of the run folder `folder` says."""
        self._folder, self._record = folder, record
        self._files = {split: dict(files) for split, files in record.rejects.items()}

    def of_split(self, split: str) -> dict[str, str]:
        """Return the files of a split, from key to reason; whoever finds another one adds it."""
        return self._files.setdefault(split, {})

    def write(self) -> None:
        """Write the record again if there is something new, so that a kill loses nothing."""
        found = {split: dict(files) for split, files in self._files.items() if files}
        if self._record.rejects != found:
            self._record = replace(self._record, rejects=found)
            replace_json(self._folder / RECORD, to_json(self._record))

    def tell(self, listener: Listener) -> None:
        """Tell how many there are; the report names them."""
        for split, files in self._files.items():
            if files:
                listener.warn(
                    f"{pluralize(len(files), 'image')} of {split} could not be read: see the report."
                )
