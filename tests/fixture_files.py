"""The authors' numbers, read back: see tests/fixtures/README.md."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "fixtures"


def load_fixture(name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Description, parameters by official name, and all other arrays of a fixture."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files if key != "config"}
        description: dict[str, Any] = json.loads(str(file["config"]))
    parameters = {
        key.removeprefix("params/"): arrays.pop(key) for key in list(arrays) if key.startswith("params/")
    }
    return description, parameters, arrays


def write_npz(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]  # the stub takes names for options
    return path


def without(parameters: dict[str, Any], key: str) -> dict[str, Any]:
    """Leave out one array."""
    return {name: value for name, value in parameters.items() if name != key}
