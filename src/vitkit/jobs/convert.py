"""Converting a checkpoint: it is written in another library's format, read back and compared.

Reading back shows that nothing was lost on the way; vitkit's mistakes in reading the source would be in both.
The evidence that vitkit and another library agree is `against`, which runs that library's own model.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.config import difference, to_json
from vitkit.errors import VitkitError
from vitkit.jobs.convert_options import ConvertOptions
from vitkit.jobs.options import from_options
from vitkit.jobs.parity import Parity, compare, compare_with_library
from vitkit.models.image_model import ImageModel
from vitkit.runs.destination import beside, refuse_taken
from vitkit.weights import Format, Loaded, LoadOptions, load, lost_numerics, save
from vitkit.weights.files.source import ENDINGS
from vitkit.weights.formats.known import find_format
from vitkit.weights.preprocessing import changed_pixels, preprocessing_of

TOLERANCE = 5e-5
"""Largest difference allowed, absolute for values up to 1 and relative above: the rounding of float32."""
LIBRARY_TOLERANCE = 1e-4
"""The same between vitkit and another library, which adds numbers in another order."""


@dataclass(frozen=True)
class Converted:
    """The result of a conversion."""

    path: Path
    """The file or folder written."""
    parity: Parity
    """Between vitkit's model of what was read and vitkit's model of what was written."""
    beside_library: Parity | None = None
    """Between ours and the other library's own model, where that was asked for."""
    lost: tuple[str, ...] = ()
    """The properties that the format cannot store, in words."""
    notes: tuple[str, ...] = ()
    """Sentences that a user should know about the source, as `load_model` logs them."""


def run_convert(options: ConvertOptions) -> Converted:
    """Write a checkpoint in another format, read it back and compare the two.

    Returns:
        What was written, and the parity figures.

    Raises:
        VitkitError: the format has no place for such a model, or the result is another one; nothing is left.
    """
    return convert_loaded(read_source(options), options)


convert = from_options(ConvertOptions)(run_convert)


def read_source(options: ConvertOptions) -> Loaded:
    """Read the checkpoint that is to be converted, with the head and the image size it is to have.

    Raises:
        VitkitError: as `load_model`; or the result could not be written, which is found out before reading.
    """
    _check_destination(Path(options.out), options.format)
    given = replace(
        options.load_options,
        num_classes=options.num_classes,
        head=options.head,
        interpolation=options.interpolation,
        image_mean=options.image_mean or None,
        image_std=options.image_std or None,
    )
    return load(options.source, given)


def _check_destination(out: Path, to: Format) -> None:
    """Refuse a destination that cannot be written, before the source is read."""
    refuse_taken(out)
    if find_format(to).is_folder and out.name.endswith(ENDINGS):
        raise VitkitError(f"The {to} format is a folder: give a name that does not end in {out.suffix}.")


def convert_loaded(loaded: Loaded, options: ConvertOptions) -> Converted:
    """Write a model that was read, read it back, compare, and put the result where it is to be.

    Args:
        loaded: from `read_source`.
        options: the same as there.

    Raises:
        VitkitError: as `convert`.
    """
    out, to, against = Path(options.out), options.format, options.against
    model, found = loaded.model, loaded.identity
    if against is not None and against not in (to, found.format):
        raise VitkitError(
            f"--against {against} runs {against}'s own model on a {against} checkpoint, and neither what is "
            f"read ({found.format}) nor what is written ({to}) is one."
        )
    lost = lost_numerics(model.config, to)
    with beside(out) as folder:
        # What the format cannot say is measured here and returned, so the notes of both are not needed.
        written = save(model, folder / out.name, to).path
        again = load(
            written, LoadOptions(image_size=model.config.image_size, num_heads=model.config.num_heads)
        ).model
        parity = compare(model, again, options.listener)
        if not parity.is_finite:
            raise VitkitError(
                f"{found.file} gives logits that are not finite, so nothing can be compared: its weights "
                "overflow or are damaged. Nothing was written."
            )
        if not parity.within(TOLERANCE):
            _refuse(parity, out, to, lost, options.accept_change)
        library_parity = None
        if against is not None:
            library_parity = compare_with_library(model, written if against == to else found.file, against)
            if not library_parity.within(LIBRARY_TOLERANCE):
                raise VitkitError(
                    f"{against} computes something else than vitkit: {library_parity}. Nothing is left "
                    f"at {out}."
                )
        out = out.with_name(written.name)
        if out.exists():
            raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
        written.rename(out)
    return Converted(out, parity, library_parity, (*lost, *_lost_of_the_card(model, again)), loaded.notes)


def _lost_of_the_card(model: ImageModel, again: ImageModel) -> list[str]:
    """List in words what the model knew about itself and does not know any more."""
    words = []
    if model.card.class_names and not again.card.class_names:
        words.append("class names")
    if model.card.loss != again.card.loss:
        words.append(f"the {model.card.loss} loss it was trained with (predict will use softmax)")
    before, after = preprocessing_of(model), preprocessing_of(again)
    words += changed_pixels(before, after)
    changes = difference(to_json(before.decode), to_json(after.decode), "decode.")
    return words + [f"preprocessing's {change}" for change in changes]


def _refuse(parity: Parity, out: Path, to: Format, lost: list[str], accept_change: bool) -> None:
    """Refuse a result that differs, unless the format is the reason and the caller accepts it.

    Raises:
        VitkitError: it is refused.
    """
    if not lost:
        raise VitkitError(
            f"What was written is not the same model: {parity}. Nothing is left at {out}; this is a "
            "fault of vitkit, please report it with the model's card (vitkit card)."
        )
    if not accept_change:
        raise VitkitError(
            f"The {to} format cannot say: {'; '.join(lost)}. Read back, the model computes something else: "
            f"{parity}. Nothing is left at {out}. Choose another format, or add --accept-change to keep it."
        )
