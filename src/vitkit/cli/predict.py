"""`vitkit predict`: name what is in images."""

import base64
import os
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from vitkit.cli import console
from vitkit.cli.options import Verb, read_names
from vitkit.cli.verb_options import JSON, Option
from vitkit.errors import VitkitError
from vitkit.text import pluralize, say_continued, visible

if TYPE_CHECKING:
    from vitkit.jobs.predict import PredictedImage


FORMS = (
    replace(JSON, text="one line of JSON for each image; image_base64 holds a name that is not UTF-8."),
    Option(
        "--csv",
        "csv",
        "",
        "one line of CSV for each image: path, class, probability, then the next ones of --top, and the "
        "reason where an image cannot be read.",
        False,
    ),
)
FILES = Verb("predict", "vitkit.jobs.predict", "predict_to_files")
OF_FILES = FILES.only("out", "on", "processes")
VERB = Verb("predict", "vitkit.jobs.predict", "predict_images", *OF_FILES, *FORMS)


def main(arguments: list[str]) -> None:
    """Parse the command line, predict, and print the guesses."""
    given = VERB.parse(arguments)
    json_output, csv_output = bool(given.get("json")), bool(given.get("csv"))
    if json_output and csv_output:
        raise VitkitError("--json and --csv are two forms of the same: give one of them.")
    if "out" in given and (json_output or csv_output):
        raise VitkitError("--out writes .parquet files: leave --json and --csv out.")
    if "out" not in given and {"on", "processes"} & {*given}:
        raise VitkitError("On a cluster predictions are written to files: give --out FOLDER.")
    given["images"] = read_names(given["images"])
    if "out" in given:
        _print_files(given["out"], *FILES.call(given))
        return
    top = given.get("top", next(option.default for option in VERB.options if option.path == "top"))
    headings, rows = ["image"], []
    count = failures = 0
    # Closed at once, so that no bar stays on the terminal when the reader of the output has gone.
    with closing(VERB.call(given)) as images:
        for predicted in images:
            if not count:  # the headings depend on the task and the classes of the model
                top = min(top, predicted.classes)
                if csv_output:
                    console.print_csv(["path", *_csv_headings(top), "error"])
                headings += predicted.answering.guess_row([], top)
            count += 1
            failures += predicted.reason is not None
            if json_output:
                console.print_json(_record(predicted), indent=None)
            elif csv_output:
                console.print_csv(_csv_cells(predicted, top))
            else:
                rows.append(_row(predicted, top))
    if not (json_output or csv_output):
        console.print_table(headings, rows, text=range(len(headings)))
    if failures:
        others = "; the others are above" if failures < count else ""
        raise VitkitError(f"{failures} of {count} images could not be read{others}.")


def _print_files(out: str, images: int, unreadable: int, continued: int) -> None:
    """Say where the predictions are, and refuse images that could not be read."""
    again = say_continued(continued)
    console.print_lines(f"Predictions for {pluralize(images, 'image')} in {out}{again}.")
    console.print_next(f"pandas.read_parquet({out!r}) in Python")
    if unreadable:
        raise VitkitError(
            f"{unreadable} of {images} images could not be read: the column error says why. To predict them "
            "too, mend them and give another --out."
        )


def _csv_headings(top: int) -> list[str]:
    """Name the columns of the guesses: class, probability, class 2, probability 2 and so on."""
    numbers = ["", *(f" {number}" for number in range(2, top + 1))]
    return [f"{name}{number}" for number in numbers for name in ("class", "probability")]


def _csv_cells(predicted: "PredictedImage", top: int) -> list[str]:
    """Return the line of CSV of one image."""
    name = os.fsencode(predicted.path).decode("utf-8", "backslashreplace")
    cells = [cell for guess in predicted.guesses[:top] for cell in (guess.name, f"{guess.probability:.6f}")]
    return [name, *cells, *[""] * (2 * top - len(cells)), predicted.reason or ""]


def _record(predicted: "PredictedImage") -> dict[str, object]:
    """Return the line of JSON of one image."""
    name = os.fsencode(predicted.path)
    record: dict[str, object] = {"image": name.decode("utf-8", "backslashreplace")}
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        record["image_base64"] = base64.b64encode(name).decode("ascii")
    if predicted.reason is None:
        record |= predicted.answering.guess_json(predicted.guesses)
    else:
        record["error"] = predicted.reason
    return record


def _row(predicted: "PredictedImage", top: int) -> list[str | Text]:
    """Return the row of one image in the table."""
    row = predicted.answering.guess_row(predicted.guesses, top)
    if predicted.reason is not None:
        return [str(predicted.path), Text(visible(predicted.reason), "red"), *[""] * (len(row) - 1)]
    first, *others = row.values()
    if others or not first:
        return [str(predicted.path), *map("  ".join, row.values())]
    best, *next_ones = map(visible, first)
    return [str(predicted.path), Text.assemble((best, "bold"), *(f"  {guess}" for guess in next_ones))]
