"""Refuse files, folders and models that are not there, before torch is imported, which takes seconds.

The jobs refuse them too, with the same messages: they are also called from Python.
"""

from collections.abc import Iterable
from pathlib import Path

from vitkit.data.paths import existing_path
from vitkit.models.zoo import model_config
from vitkit.runs.folder import is_checkpoint, kind_of
from vitkit.weights.published import missing_checkpoint


def require_checkpoints(*paths: str | Path) -> None:
    """Refuse weights that are not there; an address is looked at when it is fetched.

    Raises:
        VitkitError: there is no such file or folder.
    """
    for path in paths:
        if str(path) and kind_of(path).kind == "nothing":
            raise missing_checkpoint(Path(path))


def require_models(names: Iterable[str]) -> None:
    """Refuse names of no model, and checkpoints that are not there.

    Raises:
        VitkitError: there is no such model or checkpoint.
    """
    for name in names:
        if is_checkpoint(name):
            require_checkpoints(name)
        else:
            model_config(name)


def require_images(*paths: str | Path | None) -> None:
    """Refuse images that are not there; an option that is left out refuses nothing.

    Raises:
        VitkitError: there is no such file or folder.
    """
    for path in paths:
        if path and str(path) != "digits":
            existing_path(str(path))
