"""The path of a data set, as a person gives it. It needs no numpy, so that a wrong one is refused at once."""

from pathlib import Path

from vitkit.errors import VitkitError

LAYOUTS = (
    'Data is "digits", a folder of class folders (cats/1.jpg, dogs/2.jpg; or with train/, val/, test/ above '
    "them), a .zip or .tar of one, a .csv with columns path and label, a folder of .parquet files, or one "
    "with train800.txt and the other lists of VTAB-1k."
)


def expand_home(path: str) -> Path:
    """Replace a leading ~ by the home folder; a path whose ~ names nobody stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def absolute_spec(spec: str) -> str:
    """Return a data argument with an absolute path, so that it holds from any folder."""
    if spec == "digits" or not spec:
        return spec
    path = expand_home(spec)
    try:
        return str(path.resolve())
    except (OSError, RuntimeError, ValueError):  # a link to itself, say: whoever opens it says why
        return str(path)


def existing_path(spec: str) -> Path:
    """Return the path of a data set.

    Raises:
        VitkitError: there is none, or it cannot be read.
    """
    if "://" in spec:
        raise VitkitError(f"{spec!r} is an address: download the images, and give the folder. {LAYOUTS}")
    path = expand_home(spec)
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise VitkitError(f"No data at {spec!r}: there is no such file or folder. {LAYOUTS}") from None
    except (OSError, ValueError) as error:  # a link to itself, a name too long, no permission, a null byte
        reason = getattr(error, "strerror", None) or error
        raise VitkitError(f"The data at {spec!r} cannot be opened: {reason}. {LAYOUTS}") from error
    return path
