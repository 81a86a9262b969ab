"""`vitkit predict`: name what is in images."""

import base64
import os
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from rich.text import Text

from vitkit.cli import console
from vitkit.cli.options import Verb, read_names
from vitkit.cli.verb_options import CSV, JSON
from vitkit.errors import VitkitError
from vitkit.text import csv_line, pluralize, say_continued, visible

if TYPE_CHECKING:
    from vitkit.jobs.predict import PredictedImage


AS_CSV = (
    "one line of CSV for each image: path, class, probability, then the next ones of --top, and the reason "
    "where an image cannot be read."
)
AS_JSON = "one line of JSON for each image; image_base64 holds a name that is not UTF-8."
FORMS = (replace(JSON, text=AS_JSON), replace(CSV, text=AS_CSV))
VERB = Verb("predict", "vitkit.jobs.predict", "predict_images", *FORMS)


def main(arguments: list[str]) -> None:
    """Parse the command line, predict, and print the guesses."""
    given = VERB.parse(arguments)
    as_json, as_csv = bool(given.get("json")), bool(given.get("csv"))
    if "out" in given and (as_json or as_csv):
        raise VitkitError("--out writes .parquet files: leave --json and --csv out.")
    given["images"] = read_names(given["images"])
    if "out" in given:
        out, (count, failures, continued) = given["out"], VERB.call(given)
        again = say_continued(continued)
        console.print_lines(f"Predictions for {pluralize(count, 'image')} in {out}{again}.")
        console.print_next(f"pandas.read_parquet({out!r}) in Python")
        if failures:
            raise VitkitError(
                f"{failures} of {count} images could not be read: the column error says why. To predict them "
                "too, mend them and give another --out."
            )
        return
    top = given.get("top", next(option.default for option in VERB.options if option.path == "top"))
    headings, rows = ["image"], []
    count = failures = 0
    # Closed at once, so that no bar stays on the terminal when the reader of the output has gone.
    with closing(VERB.call(given)) as images:
        for predicted in images:
            if not count:  # the headings depend on the task and the classes of the model
                top = min(top, predicted.classes)
                headings += predicted.answering.guess_row([], top)
                if as_csv:
                    numbers = ["", *(f" {number}" for number in range(2, top + 1))]
                    of_guesses = [name + number for number in numbers for name in ("class", "probability")]
                    print(csv_line(["path", *of_guesses, "error"]), flush=True)
            count += 1
            failures += predicted.reason is not None
            if as_json:
                console.print_json(_record(predicted), indent=None)
            elif as_csv:
                pairs = ((guess.name, f"{guess.probability:.6f}") for guess in predicted.guesses[:top])
                cells = [*chain(*pairs), *[""] * (2 * top)][: 2 * top]
                print(csv_line([predicted.name, *cells, predicted.reason or ""]), flush=True)
            else:
                rows.append(_row(predicted, top))
    if not (as_json or as_csv):
        console.print_table(headings, rows, text=range(len(headings)))
    if failures:
        others = "; the others are above" if failures < count else ""
        raise VitkitError(f"{failures} of {count} images could not be read{others}.")


def _record(predicted: "PredictedImage") -> dict[str, object]:
    """Return the line of JSON of one image."""
    record: dict[str, object] = {"image": predicted.name}
    if predicted.name != str(predicted.path):  # it is not UTF-8
        record["image_base64"] = base64.b64encode(os.fsencode(predicted.path)).decode("ascii")
    if predicted.reason is not None:
        return {**record, "error": predicted.reason}
    return record | predicted.answering.guess_json(predicted.guesses)


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
