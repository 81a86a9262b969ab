"""Load a model to be computed by PyTorch or by an inference engine.

An exported folder is read without PyTorch; a checkpoint needs it.
"""

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from vitkit.data.config import Preprocessing
from vitkit.engines.folder import EngineModel, describe_gelu, serve_folder
from vitkit.engines.libraries import (
    DESCRIPTION,
    Engine,
    EnginePrecision,
    GraphEngine,
    refuse_precision,
)
from vitkit.errors import VitkitError
from vitkit.jobs.options import LoadingOptions
from vitkit.models.config import Phase, Precision, height_and_width
from vitkit.runs.folder import Place, kind_of
from vitkit.tasks import answering_of, task_of
from vitkit.text import join_names
from vitkit.weights import format_names, model_card

if TYPE_CHECKING:
    import torch

    from vitkit.models.image_model import ImageModel
    from vitkit.weights.loading import Loaded


@dataclass(frozen=True)
class Ready:
    """A model that is ready to compute logits of uint8 images."""

    model: "ImageModel | EngineModel"
    notes: tuple[str, ...]
    """Remarks on the weights: phrases, each of which follows the path."""
    device: "torch.device | str"
    """The device that images are moved to."""
    precision: Precision
    """The precision of autocast."""
    engine: Engine = "torch"
    """The program that computes it."""
    max_pixels: int | None = None
    """Largest number of pixels of an image; None for the limit that the model was saved with."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of its images."""
        rule = model_card.preprocessing_of(self.model)
        if self.max_pixels is None:
            return rule
        return replace(rule, decode=replace(rule.decode, max_pixels=self.max_pixels))


def load_ready(
    path: str | Path | Place,
    phase: Phase,
    *,
    answers: bool = True,
    few: bool = False,
    device: str = "auto",
    precision: Precision = "auto",
    engine: Engine | None = None,
    exact: bool = False,
    max_pixels: int | None = None,
    **load: Unpack[LoadingOptions],
) -> Ready:
    """Load a checkpoint, or the folder of an exported engine, to be computed by an engine; log the remarks.

    Args:
        path: anything `load_model` reads, or a folder that `vitkit export` wrote.
        phase: evaluation or prediction.
        answers: whether the model has to answer, and not only to have features.
        few: whether it computes so few images that compiling its kernels would not pay.
        device, precision, engine, exact, max_pixels, load: as `vitkit.jobs.options.ModelOptions` describes
            them.

    Raises:
        VitkitError: as `load_model`; or the engine does not have the device, the precision or `exact`; or the
            model has no answers.
    """
    path, options, loaded = kind_of(path), format_names.LoadOptions(**load), None
    if path.kind == "exported model":
        # The export fixes the engine, the precision and the image size.
        model, record = serve_folder(path.path, thread_count())
        size = model.config.image_size
        for name, option, exported in (
            ("engine", engine or record.engine, record.engine),
            ("precision", record.precision if precision == "auto" else precision, record.precision),
            ("image size", height_and_width(options.image_size) or size, size),
            ("number of heads", options.num_heads, None),
            ("grid of positions", options.position_interpolation, None),
        ):
            if option != exported:
                shown = "is fixed in the export" if exported is None else f"is {exported}, not {option}"
                raise VitkitError(
                    f"{path.path} is an exported engine, whose {name} {shown}: leave that option out, or "
                    "export the model again."
                )
        refuse_options(record.engine, device, exact)
        ready = Ready(model, record.notes, "cpu", "float32", record.engine, max_pixels)
    elif engine is None or engine == "torch":
        from vitkit.runs.machine import find_device, hash_weights, prepare
        from vitkit.runs.start import load_any

        place = find_device(device)
        loaded = load_any(path, options)
        weights = hash_weights(loaded.model)
        loaded.model.to(place)
        chosen = prepare(loaded.model, precision, exact, phase, weights, compile_it=not few)
        ready = Ready(loaded.model, loaded.notes, place, chosen, "torch", max_pixels)
    else:
        graph_precision: EnginePrecision = "float32" if precision == "auto" else precision
        refuse_options(engine, device, exact)
        refuse_precision(engine, graph_precision)  # before the weights are read
        from vitkit.runs.start import load_any

        loaded = load_any(path, options)
        model = _serve(loaded, engine, graph_precision)
        notes = (*loaded.notes, *describe_gelu(model.config, graph_precision))
        ready = Ready(model, notes, "cpu", "float32", engine, max_pixels)
    if phase != "prediction":  # a prediction says its notes itself, or is quiet
        model_card.log_notes(path.name, ready.notes, {} if loaded is None else loaded.identity.left_out)
    if answers:
        require_answers(path.name, ready.model)
    return ready


GRAPH_BYTES = 4 << 30
"""Bytes of graphs that are kept for later commands; those that were used last stay."""


def _serve(loaded: "Loaded", engine: GraphEngine, precision: EnginePrecision) -> EngineModel:
    """Have an engine compute a model by the graph of an earlier command, or by a new one that is kept.

    A graph takes seconds to make, to compare and to compile. It is kept by all that it depends on, in the
    format of `vitkit export`.
    """
    from vitkit.durable import cache_folder
    from vitkit.engines import graph
    from vitkit.runs import machine
    from vitkit.runs.folder import beside
    from vitkit.training.checkpoint import processor_name

    model = loaded.model
    if precision == "int8":
        return graph.serve(model, engine, precision, thread_count())
    facts = [engine, version(engine), precision, machine.hash_weights(model), processor_name()]
    folder = cache_folder() / "graphs" / machine.hash_computation(model, facts)

    def read() -> EngineModel:
        served, _ = serve_folder(folder, thread_count(), folder / "compiled")
        os.utime(folder)
        return replace(served, config=model.config, card=model.card)

    if (folder / DESCRIPTION).exists():
        with suppress(VitkitError, OSError):
            return read()
        shutil.rmtree(folder, ignore_errors=True)  # it was damaged
    try:
        with beside(folder) as place:
            made = place / folder.name
            made.mkdir()
            graph.serve(model, engine, precision, thread_count(), made)
            made.rename(folder)
        with suppress(OSError):  # of another process that removes them too
            _forget_graphs(folder.parent)
        return read()
    except OSError:  # the cache cannot be written, or another process made it meanwhile
        return graph.serve(model, engine, precision, thread_count())


def _forget_graphs(place: Path) -> None:
    """Remove the graphs that were used longest ago, beyond `GRAPH_BYTES`; the last one stays."""
    total, graphs = 0, [folder for folder in place.iterdir() if not folder.name.startswith(".")]
    for number, folder in enumerate(sorted(graphs, key=lambda folder: -folder.stat().st_mtime)):
        total += sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if number and total > GRAPH_BYTES:
            shutil.rmtree(folder, ignore_errors=True)


def require_answers(name: str, model: model_card.Described) -> None:
    """Refuse a model that has learned nothing to answer, or has no classes, by its name in the error."""
    answering_of(model.card)  # raises the error of a task without answers
    if reason := task_of(model.card).learning.explain_unfit(model.config, None):
        raise VitkitError(f"{name} {reason}.")


def take_built(
    model: object,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    max_pixels: int | None = None,
    **others: object,
) -> Ready:
    """Take a model that is built already, on its own device unless another is given.

    Its way to compute is not changed, because its owner may go on to train it.

    Args:
        model: the model.
        device, precision, max_pixels: as for `load_ready`.
        others: its other options, which are for reading a model.

    Raises:
        VitkitError: it is no model of this library, or an option is given that is for reading a model.
    """
    from vitkit.models.image_model import ImageModel

    if not isinstance(model, ImageModel):
        raise VitkitError(
            f"Expected a path or a model of vitkit, found {type(model).__name__}. For a model of another "
            "library give the path of its checkpoint."
        )
    if given := [name for name, value in others.items() if value]:
        raise VitkitError(
            f"{join_names(given)} is for a model that is read from a path, and this model is built: leave it "
            "out, or give it to create_model or load_model."
        )
    place = next(model.parameters()).device
    if device != "auto":
        from vitkit.runs.machine import find_device

        place = find_device(device)
        model.to(place)
    require_answers("The model", model)
    return Ready(model, (), place, "float32" if precision == "auto" else precision, max_pixels=max_pixels)


def refuse_options(engine: GraphEngine, device: str, exact: bool) -> None:
    """Refuse options that engines other than PyTorch do not have.

    Raises:
        VitkitError: another device than the processor is given, or the plain way of PyTorch.
    """
    if exact:
        raise VitkitError(
            f"exact (--exact) computes in PyTorch's plain way, and {engine} has its own: leave one of the "
            "two out."
        )
    if device not in ("auto", "cpu"):
        raise VitkitError(
            f"The engine {engine} computes on the processor: expected the device auto or cpu, found {device}."
        )


def thread_count() -> int:
    """Return the number of threads for an engine: PyTorch's where it is imported, else OpenMP's.

    0 leaves the number to the engine.
    """
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    given = os.environ.get("OMP_NUM_THREADS", "")  # the variable that PyTorch goes by
    return int(given) if given.isdecimal() else 0
