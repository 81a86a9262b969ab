"""The folder of an exported engine: its graph, and `engine.json` with all that is known of the model.

It is enough to predict and to evaluate anywhere where the engine is installed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from vitkit._version import __version__
from vitkit.config import from_json, to_json
from vitkit.durable import read_chunks, read_json, replace_json
from vitkit.engines import onnx_engine, openvino_engine
from vitkit.engines.agreement import Agreement
from vitkit.engines.engine_config import GraphEngine, Numbers
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights.card import ModelCard
from vitkit.weights.files.checksum import HashingWriter, read_record, verify
from vitkit.weights.formats.native import describe, read_description

FORMAT = "vitkit-engine"
FORMAT_VERSION = 1
DESCRIPTION = "engine.json"
FILES: dict[GraphEngine, tuple[str, ...]] = {
    "openvino": openvino_engine.FILES,
    "onnxruntime": onnx_engine.FILES,
}


@dataclass(frozen=True)
class EngineRecord:
    """The contents of `engine.json`."""

    engine: GraphEngine
    numbers: Numbers
    config: ModelConfig
    card: ModelCard
    agreement: Agreement | None
    """The comparison with float32 that was made when the graph was; None where no images were given."""

    @property
    def in_words(self) -> str:
        """A phrase that follows the folder's path."""
        measured = "" if self.agreement is None else f"; when exported: {self.agreement}"
        return f"{self.numbers} by {self.engine}{measured}"


def is_engine_folder(path: str | Path) -> bool:
    """Whether a path is a folder that `vitkit export` wrote."""
    try:
        return (Path(path) / DESCRIPTION).is_file()
    except (OSError, ValueError):  # a name that no file can have: an address, say
        return False


def refuse_engine_folder(path: str | Path) -> None:
    """Refuse the folder of an export where weights are needed.

    Raises:
        VitkitError: it is one.
    """
    if is_engine_folder(path):
        raise VitkitError(
            f"{path} is an exported engine: it predicts and evaluates, and holds no weights to do anything "
            "else with. Give the checkpoint that it was made of."
        )


def write_description(
    folder: Path,
    model: ImageModel,
    engine: GraphEngine,
    numbers: Numbers,
    agreement: Agreement | None,
    calibration: str | None,
) -> None:
    """Write `engine.json` beside a graph that is there already.

    Args:
        folder: with the files of the graph.
        model: that the graph was made of.
        engine, numbers: that it was made for.
        agreement: of the engine with the model.
        calibration: the images that it was calibrated on, in words.
    """
    files = {}
    for name in FILES[engine]:
        hashing = HashingWriter()
        for _ in hashing.passing(read_chunks(folder / name)):
            pass
        files[name] = hashing.record()
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vitkit_version": __version__,
        "engine": engine,
        "engine_version": version(engine),
        "numbers": numbers,
        "calibration": calibration,
        "agreement": None if agreement is None else to_json(agreement),
        "files": files,
        "model": describe(model),
    }
    replace_json(folder / DESCRIPTION, record)


def read_description_of(folder: Path) -> EngineRecord:
    """Read `engine.json` and hold the files of the graph against it.

    Raises:
        VitkitError: it is damaged, from a newer vitkit, or describes other files.
    """
    path = folder / DESCRIPTION
    data = read_json(path)
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise VitkitError(f"{path} is not what vitkit export writes (its 'format' is not '{FORMAT}').")
    if data.get("format_version") != FORMAT_VERSION:
        raise VitkitError(
            f"{path} was written by vitkit {data.get('vitkit_version')} in another format than this vitkit "
            f"({__version__}) reads: export the model again, or pip install -U vitkit."
        )
    engine: Any = data.get("engine")
    numbers: Any = data.get("numbers")
    for name, value, known in (("engine", engine, GraphEngine), ("numbers", numbers, Numbers)):
        if value not in get_args(known):
            raise VitkitError(
                f"{path}: {name}: expected one of {', '.join(get_args(known))}, found {value!r}."
            )
    where = f"{path}: model"
    model = data.get("model")
    if not isinstance(model, Mapping):
        raise VitkitError(f"{where}: expected the description of a model, found {type(model).__name__}.")
    config, card = read_description(model, path)
    agreement = data.get("agreement")
    compared = None if agreement is None else from_json(Agreement, agreement, f"{path}: agreement")
    _check_files(folder, FILES[engine], data.get("files"))
    return EngineRecord(engine, numbers, config, card, compared)


def _check_files(folder: Path, names: tuple[str, ...], records: Any) -> None:
    """Refuse files of a graph that are not those that `engine.json` describes."""
    known = records if isinstance(records, Mapping) else {}
    for name in names:
        try:
            verify(folder / name, read_record(known.get(name), f"{folder / DESCRIPTION}: files: {name}"))
        except (VitkitError, OSError) as error:
            raise VitkitError(
                f"{folder / name} is not the file that {DESCRIPTION} beside it describes: it is missing, was "
                "damaged or replaced. Copy the whole folder again, or export the model again."
            ) from error
