"""`vitkit.ViTClassifier`: the library's training behind the interface of scikit-learn.

It imports no torch before it is fitted. Shapes: N images of height H, width W and C channels; K classes.
"""

import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, multiclass, validation

from vitkit.data import channels, check, sources
from vitkit.data.config import DEFAULT_RULE, Splits
from vitkit.durable import read_regular_file, replace_file
from vitkit.errors import VitkitError
from vitkit.jobs.recipes import recipe
from vitkit.runs.config import Run, with_options

if TYPE_CHECKING:
    from vitkit.jobs.predict import Predictor

Images: TypeAlias = NDArray[Any] | Sequence[str | Path]
"""`(N, H, W)` or `(N, H, W, C)` with 1 or 3 channels, of uint8 from 0 to 255, or the paths of N files."""

IMAGES, RUN = "images.parquet", "run"
"""The names of the training images and of the run in the folder of a fit."""
MODEL = ("model.safetensors", "model.json")
"""The files of a run that a prediction needs."""
NAMED = ("model", "epochs", "learning_rate", "batch_size", "image_size", "freeze")
"""The options of training that are parameters of their own."""
AT_A_TIME = 128
"""Images of a batch of predictions."""


# Its fields are the parameters, unchanged and by their names, as scikit-learn reads, sets and copies them. As
# in its own classes, comparison and hash go by identity, and the text and the drawing are scikit-learn's.
@dataclass(eq=False, repr=False)
class ViTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of images for scikit-learn, which `fit` trains or fine-tunes as vitkit itself does.

    >>> classifier = vitkit.ViTClassifier("runs/start", epochs=20).fit(images, labels)
    >>> classifier.predict(others)
    array(['cat', 'dog'], dtype='<U3')

    It trains on all given images, without a validation or test split: scikit-learn makes these
    (`cross_val_score`, `GridSearchCV`). Nothing is printed. Images are uint8 arrays
    `(N, H, W)` or `(N, H, W, C)` with 1 or 3 channels, or a list of paths.

    Args:
        start: weights to fine-tune: a run folder, a file or folder of weights, a name of `vitkit.starts` or
            an address, which is fetched; left out, new weights.
        model: the model of new weights, by its name; left out, the recipe's.
        recipe: a recipe of vitkit; left out, options that are fitted to the start and the number of images,
            or for new weights to the size of the images.
        epochs, learning_rate, batch_size, image_size, freeze: options of training; left out, the recipe's.
            They are parameters, so that they can be searched.
        options: any other options of training, by their names in `vitkit train --help`:
            {"weight_decay": 0.1}.
        random_state: seed of new weights, order, augmentation and dropout: a number or a numpy RandomState;
            left out, 0, so that two fits give the same weights.
        unit_range: whether arrays hold floats from 0 to 1, in place of uint8 from 0 to 255. They are rounded
            to levels of 1/255.
        folder: where the images and the run are kept, with its checkpoints and its report; the same fit in
            the same folder goes on where it was stopped. Left out, a temporary folder, which is removed.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".

    Attributes:
        classes_: `(K,)`, the labels in order.
    """

    start: str | Path | None = None
    _: KW_ONLY
    model: str | None = None
    recipe: str | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    batch_size: int | None = None
    image_size: int | tuple[int, int] | None = None
    freeze: Literal["nothing", "backbone"] | None = None
    options: Mapping[str, Any] | None = None
    random_state: int | np.random.RandomState | None = None
    unit_range: bool = False
    folder: str | Path | None = None
    device: str = "auto"

    def fit(self, X: Images, y: ArrayLike) -> "ViTClassifier":  # noqa: N803 (scikit-learn's names)
        """Train on images `(N, H, W)`, `(N, H, W, C)` or N paths, and their N labels.

        Raises:
            VitkitError: the images or the labels cannot be trained on.
            InterruptedTraining: a signal arrived; with `folder` the same fit continues.
        """
        from vitkit.jobs.train import train

        labels = np.asarray(y)
        encoded = _encoded(X, self.unit_range)
        if labels.shape != (len(encoded),):
            raise VitkitError(
                f"Expected one label for each of {len(encoded)} images, found labels of the shape "
                f"{labels.shape}."
            )
        try:
            multiclass.check_classification_targets(y)
        except (TypeError, ValueError) as error:  # measured values, or labels that have no order
            raise VitkitError(f"Expected names or numbers of classes as labels: {error}") from error
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise VitkitError(
                f"Expected labels of two classes or more, found {len(classes)}: give images of other "
                "classes too."
            )
        temporary = tempfile.TemporaryDirectory(prefix="vitkit-") if self.folder is None else None
        with temporary or nullcontext(self.folder or "") as place:
            Path(place).mkdir(parents=True, exist_ok=True)
            table = Path(place) / IMAGES
            _write_images(table, encoded, numbers, [str(label) for label in classes.tolist()])
            folder = train(self._run(table), Path(place) / RUN, device=self.device, quiet=True)
            self._files = {name: (folder / name).read_bytes() for name in MODEL}
        self._predictor: Predictor | None = None
        self.classes_ = classes
        return self

    def predict(self, X: Images) -> NDArray[Any]:  # noqa: N803
        """Return the most probable label of each image, `(N,)`."""
        probabilities = self.predict_proba(X)  # first: it refuses a classifier that is not fitted
        labels: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return labels

    def predict_proba(self, X: Images) -> NDArray[np.float64]:  # noqa: N803
        """Return the probability of each class for each image, `(N, K)` in the order of `classes_`."""
        validation.check_is_fitted(self, "classes_")
        predictor = self._load()
        number_of = {name: number for number, name in enumerate(predictor.class_names)}
        # Paths stay paths, so that files are read a few at a time, and an error names its file.
        images: Sequence[Path | bytes] = _paths(X) or _encoded(X, self.unit_range)
        probabilities = np.zeros((len(images), len(number_of)))
        for row, answer in enumerate(predictor.stream(images, top=len(number_of), batch_size=AT_A_TIME)):
            for guess in answer:
                probabilities[row, number_of[guess.name]] = guess.probability
        return probabilities

    def _run(self, table: Path) -> Run:
        """Make the run of a fit, which trains on all images."""
        state: Any = 0 if self.random_state is None else self.random_state
        is_number = isinstance(state, int | np.integer)
        seed = int(state if is_number else check_random_state(state).randint(2**31 - 1))
        options: dict[str, Any] = {"splits_val_fraction": 0.0, "splits_test_fraction": 0.0}
        options |= {"select": "last", "seed": seed}
        named = {name: getattr(self, name) for name in NAMED if getattr(self, name) is not None}
        for name, value in (named | dict(self.options or {})).items():
            # A search over numpy.arange gives numbers of numpy.
            options[name] = value.item() if isinstance(value, np.generic) else value
        if self.start is not None:
            from vitkit.jobs.finetune import finetune_run

            return finetune_run(self.start, str(table), recipe=self.recipe or "", **options)
        images = sources.open_data(str(table), Splits(val_fraction=0.0, test_fraction=0.0)).splits["train"]
        chosen = self.recipe or check.suggest_recipe(check.sample_sizes(images), has_model=bool(self.model))
        return with_options(recipe(chosen), {"data": str(table), **options})

    def _load(self) -> "Predictor":
        """Load the fitted model, once in each process."""
        from vitkit.jobs.predict import Predictor

        if self._predictor is None:
            with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
                for name, content in self._files.items():
                    (Path(folder) / name).write_bytes(content)
                self._predictor = Predictor(folder, device=self.device)
        return self._predictor

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for other processes: the bytes of the weights, without the loaded model."""
        state: dict[str, Any] = dict(super().__getstate__())
        return state | ({"_predictor": None} if "_predictor" in state else {})

    def __sklearn_tags__(self) -> Any:
        """Switch scikit-learn's checks of tables off: images are no tables."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def _paths(images: Any) -> list[Path] | None:
    """Return the paths of image files; None where the images are an array of pixels."""
    if isinstance(images, str | Path | bytes):
        raise VitkitError(
            f"Expected an array of images or a list of paths, found {images!r}. For a folder use "
            "vitkit.train or vitkit.finetune."
        )
    listed = np.asarray(images) if hasattr(images, "ndim") else images
    if isinstance(listed, np.ndarray) and listed.dtype.kind not in "OUT":  # objects and both kinds of text
        return None
    if others := [type(path).__name__ for path in listed if not isinstance(path, str | Path)]:
        raise VitkitError(
            f"Expected the paths of image files in a list, found {others[0]}. Put images of one size into "
            "one array (numpy.stack), and others into files."
        )
    return list(map(Path, listed))


def _encoded(images: Any, unit_range: bool) -> list[bytes]:
    """Return the bytes of image files: paths are read as they are, arrays are written as PNG."""
    if (paths := _paths(images)) is not None:
        files = []
        for path in paths:
            try:
                files.append(read_regular_file(path, DEFAULT_RULE.max_bytes))
            except OSError as error:  # of a disk that fails while it is read, which names no file
                raise VitkitError(f"{path} cannot be read: {error.strerror or error}.") from error
        return files
    array = np.asarray(images)
    if array.ndim == 4 and array.shape[-1] == 1:
        array = array[..., 0]
    if not array.size or array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[-1] != 3):
        raise VitkitError(
            f"Expected images (N, height, width) or (N, height, width, 3), found an array {array.shape}. "
            "Images with their channels first are turned with images.transpose(0, 2, 3, 1)."
        )
    if unit_range:
        array = channels.from_units(array)
    if array.dtype != np.uint8:
        raise VitkitError(
            f"Expected pixels of uint8 from 0 to 255, found {array.dtype}. For floats from 0 to 1 give "
            "unit_range=True."
        )
    streams = [io.BytesIO() for _ in array]
    for image, stream in zip(array, streams, strict=True):
        # The least compression: the file is read a few times and thrown away.
        Image.fromarray(image).save(stream, "PNG", compress_level=1)
    return [stream.getvalue() for stream in streams]


def _write_images(
    table: Path, encoded: Sequence[bytes], numbers: NDArray[np.int64], names: Sequence[str]
) -> None:
    """Write training images as a Parquet file in the layout of Hugging Face data sets.

    Raises:
        VitkitError: other images stand there already.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {"info": {"features": {"label": {"names": list(names), "_type": "ClassLabel"}}}}
    metadata = {"huggingface": json.dumps(features)}
    schema = pa.schema({"image": pa.binary(), "label": pa.int64()}, metadata=metadata)
    stream = io.BytesIO()
    pq.write_table(pa.table({"image": list(encoded), "label": numbers.astype(np.int64)}, schema), stream)
    if not table.exists():
        replace_file(table, [stream.getvalue()])
    elif table.read_bytes() != stream.getvalue():
        raise VitkitError(f"{table} holds the images of another fit: give another folder.")
