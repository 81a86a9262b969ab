"""The verbs that do more than call their job and print its result; those that train a run are in `train.py`,
so that training starts sooner."""

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text as RichText

from vitkit.cli import console, options, train
from vitkit.cli.help import ASKING, VERBS
from vitkit.cli.options import Verb, home_of
from vitkit.cli.verb_options import CSV, JSON, PROCESSES, Option, describe
from vitkit.errors import VitkitError, WrongCommandLine
from vitkit.listener import hushed
from vitkit.result import Block, Listing, Table, Text
from vitkit.runs.config import Run, read_config, with_options
from vitkit.runs.folder import kind_of, require_folder
from vitkit.runs.run_options import SeriesOptions
from vitkit.text import csv_line, format_bytes, format_size, pluralize, say_continued, visible
from vitkit.weights import published
from vitkit.weights.published import SOURCES, PublishedStart, default_starts
from vitkit.world import world_of_environment

if TYPE_CHECKING:
    from vitkit.data.check import DataCheck
    from vitkit.jobs.predict import PredictedImage


# Evaluate

PROTOCOL = Verb("evaluate", "jobs.evaluate:evaluate_protocol")
KEEP_EVALUATION = Verb("evaluate", "jobs.evaluate:keep_with_page")
OWN = (*PROTOCOL.only("protocol", "labels", "wnids"), *KEEP_EVALUATION.only("out"), CSV, JSON, PROCESSES)


def _evaluate(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers."""
    given = EVALUATE.parse(arguments)
    protocol = given.get("protocol")
    if protocol is None and {"labels", "wnids"} & {*given}:
        raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
    if protocol is not None:
        if "data" not in given:
            raise VitkitError(f"--protocol {protocol} needs --data, the folder of its images.")
        if "split" in given:
            raise VitkitError(f"--protocol {protocol} scores all images of --data: leave --split out.")
        if world_of_environment().size > 1:
            raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
        if "out" in given:
            raise VitkitError("--protocol makes no page: leave --out out, or give --json.")
        if {"others", "refuse"} & {*given}:
            raise VitkitError("--protocol measures no refusal: leave --others and --refuse out.")
        console.print_result(PROTOCOL.call(given), given)
        return
    if "out" in given and (not given["out"].lower().endswith(".html") or Path(given["out"]).is_dir()):
        raise VitkitError(f"--out is a file for the page that ends in .html, found {given['out']}.")
    console.print_result(KEEP_EVALUATION.call(given, EVALUATE.call(given)), given)


EVALUATE = Verb("evaluate", "jobs.evaluate:evaluate", *OWN, main=_evaluate)


# Few-shot

KEEP_FEWSHOT = Verb("fewshot", "jobs.fewshot:keep_fewshot")


def _fewshot(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    given = FEWSHOT.parse(arguments)
    require_folder(given.get("out"))  # before minutes of measurements
    measured = FEWSHOT.call(given)
    paths = KEEP_FEWSHOT.call(given, measured)
    console.print_result(measured, given)
    if given.get("json"):
        return
    console.print_lines(*map(str, paths))
    size = given.get("image_size")
    of_size = [] if size is None else ["--image-size", *map(str, size)]
    following = shlex.join(["vitkit", "fewshot", *given["starts"], "ANOTHER", given["data"], *of_size])
    console.print_next(f"{following}   (to compare them)")


FEWSHOT = Verb("fewshot", "jobs.fewshot:fewshot", JSON, *KEEP_FEWSHOT.only("out"), PROCESSES, main=_fewshot)


# Report


def _report(arguments: list[str]) -> None:
    """Parse the command line and write the report."""
    given = REPORT.parse(arguments)
    if kind_of(given["run"]).kind != "series":
        read_config(Path(given["run"]))  # raises where it is no run
    path = REPORT.call(given)
    console.print_lines(f"{path} ({format_bytes(path.stat().st_size)})")
    console.print_next(f"open {path} in a browser")


REPORT = Verb("report", "jobs.report:write_report", main=_report)


# Reproduce


def _reproduce(arguments: list[str]) -> None:
    """Parse the command line, do the study, and print whether the paper's conclusion holds here; without an
    item, list them: what each is, what it needs, how long it takes here and at the paper's size."""
    if arguments in ([], ["--json"]):
        with options.importing():
            from vitkit.jobs.reproduce.items import ITEMS
        keys = ("title", "conclusion", "needs", "here", "at_paper_size")
        listed = [{"item": name} | {key: getattr(item, key) for key in keys} for name, item in ITEMS.items()]
        shown = ("item", "title", "needs", "here", "at_paper_size")
        rows = tuple(tuple(item[key] for key in shown) for item in listed)
        table = Table(("", "what it is", "needs", "here", "at the paper's size"), rows, left=range(5))
        uses = ("vitkit reproduce table8 --plan",)
        console.print_result(Listing("", (table,), uses, {"items": listed}), {"json": "--json" in arguments})
        return
    REPRODUCE.run(arguments)


REPRODUCE = Verb("reproduce", "jobs.reproduce.reproduce:reproduce", JSON, main=_reproduce)


# Predict

AS_CSV = (
    "one line of CSV for each image: path, class, probability, then the next ones of --top, and the reason "
    "where an image cannot be read."
)
AS_JSON = "one line of JSON for each image; image_base64 holds a name that is not UTF-8."
FORMS = (replace(JSON, text=AS_JSON), replace(CSV, text=AS_CSV))


def _predict(arguments: list[str]) -> None:
    """Parse the command line, predict, and print the guesses."""
    given = PREDICT.parse(arguments)
    as_json, as_csv = bool(given.get("json")), bool(given.get("csv"))
    if "out" in given and (as_json or as_csv):
        raise VitkitError("--out writes .parquet files: leave --json and --csv out.")
    if "out" in given:
        out, (count, failures, continued) = given["out"], PREDICT.call(given)
        again = say_continued(continued)
        console.print_lines(f"Predictions for {pluralize(count, 'image')} in {out}{again}.")
        console.print_next(f"pandas.read_parquet({out!r}) in Python")
        if failures:
            raise VitkitError(
                f"{failures} of {count} images could not be read: the column error says why. To predict them "
                "too, mend them and give another --out."
            )
        return
    top = given.get("top", next(option.default for option in PREDICT.options if option.path == "top"))
    headings, rows = ["image"], []
    count = failures = 0
    # Closed at once, so that no bar stays on the terminal when the reader of the output has gone.
    with closing(PREDICT.call(given)) as images:
        for predicted in images:
            if not count:  # the headings depend on the task and the classes of the model
                top = min(top, predicted.classes)
                headings += predicted.answering.guess_row([], top)
                if as_csv:
                    numbers = ["", *(f" {number}" for number in range(2, top + 1))]
                    of_guesses = [name + number for number in numbers for name in ("class", "probability")]
                    of_level = ["answer", "level"] if predicted.guesses.level is not None else []
                    print(csv_line(["path", *of_guesses, *of_level, "none_of_these", "error"]), flush=True)
            count += 1
            failures += predicted.reason is not None
            if as_json:
                console.print_json(_record(predicted), indent=None)
            elif as_csv:
                pairs = ((guess.name, f"{guess.probability:.6f}") for guess in predicted.guesses[:top])
                cells = [*chain(*pairs), *[""] * (2 * top)][: 2 * top]
                if (level := predicted.guesses.level) is not None:
                    cells += [getattr(predicted.guesses.sure, "name", ""), str(level)]
                strange = predicted.guesses.typicality is not None
                refused = str(predicted.guesses.refused).lower() if strange else ""
                print(csv_line([predicted.name, *cells, refused, predicted.reason or ""]), flush=True)
            else:
                rows.append(_row(predicted, top))
    if not (as_json or as_csv):
        console.print_table(headings, rows, left=range(len(headings)))
    if failures:
        others = "; the others are above" if failures < count else ""
        raise VitkitError(f"{failures} of {count} images could not be read{others}.")


PREDICT = Verb("predict", "jobs.predict:predict_images", *FORMS, main=_predict)


def _record(predicted: "PredictedImage") -> dict[str, object]:
    """Return the line of JSON of one image."""
    record: dict[str, object] = {"image": predicted.name}
    if predicted.name != str(predicted.path):  # it is not UTF-8
        record["image_base64"] = base64.b64encode(os.fsencode(predicted.path)).decode("ascii")
    if predicted.reason is not None:
        return {**record, "error": predicted.reason}
    engine = {} if predicted.engine == "torch" else {"engine": predicted.engine}
    return record | predicted.answering.guess_json(predicted.guesses) | engine


def _row(predicted: "PredictedImage", top: int) -> list[str | RichText]:
    """Return the row of one image in the table."""
    row = predicted.answering.guess_row(predicted.guesses, top)
    if predicted.reason is not None:
        return [str(predicted.path), RichText(visible(predicted.reason), "red"), *[""] * (len(row) - 1)]
    first, *others = row.values()
    if others or not first:
        return [str(predicted.path), *map("  ".join, row.values())]
    best, *next_ones = map(visible, first)
    return [str(predicted.path), RichText.assemble((best, "bold"), *(f"  {guess}" for guess in next_ones))]


# Export

CHECK_BUNDLE = Verb("export --check", "jobs.check_bundle:check_bundle", JSON)
CHECK_TEXT = (
    "check a bundle on this machine, with what is installed here: vitkit export --check BUNDLE "
    "[--engine openvino|onnxruntime]."
)


def _export(arguments: list[str]) -> None:
    """Parse the command line and export a model; or check one that was exported."""
    if "--check" not in arguments:
        EXPORT.run(arguments)
        return
    given = CHECK_BUNDLE.parse([argument for argument in arguments if argument != "--check"])
    checked = CHECK_BUNDLE.call(given)
    console.print_result(checked, given)
    if given.get("json"):
        raise SystemExit(int(checked.departs_at is not None))
    if checked.departs_at is not None:
        raise VitkitError(
            f"This machine does not compute {checked.path} as when it was exported: it departs at the level "
            f"{checked.departs_at}. docs/howto/bundle.md says what each level means, and what to do."
        )


OF_BUNDLE = Option("--check", "check", text=CHECK_TEXT, default=False)
EXPORT = Verb("export", "jobs.export:export", OF_BUNDLE, CSV, JSON, main=_export)


# Data

SHOWN = 20
"""Lines of a long list that are printed; --json prints all."""


def _describe(own: Mapping[str, Any], line: Sequence[str]) -> tuple[Option, ...]:
    return describe(Run, train.recipe_of(own, line), without=("data", "recipe"))


SHOW = Verb("data show", "jobs.data_show:show", of_training=_describe)


def _data(arguments: list[str]) -> None:
    """Parse the command line, check a data set and print the findings; or draw some of its images."""
    if not arguments or arguments[0] not in ("check", "show", *ASKING):
        first = f"'{arguments[0]}'" if arguments else "nothing"
        raise WrongCommandLine(f"After 'vitkit data' comes 'check PATH' or 'show PATH', found {first}.")
    if arguments[0] == "show":
        _show(arguments[1:])
        return
    given = CHECK.parse(arguments[arguments[0] == "check" :])
    checked = CHECK.call(given)
    if given.get("json"):
        console.print_json(checked.to_json())
        raise SystemExit(int(bool(checked.problems)))  # they are in the one object that is printed
    print_check(checked, given["path"], given.get("task", "classification"))
    if checked.problems:
        raise VitkitError("Training refuses these images as they are:\n" + "\n".join(checked.problems))


CHECK = Verb("data check", "jobs.data_show:check", JSON, main=_data)


def _show(arguments: list[str]) -> None:
    """Draw images as a training with the options of the command line sees them."""
    given, options = SHOW.parse_with_training(arguments)
    out, run = SHOW.call(given, **options)
    from vitkit.jobs.data_show import describe_augmentation

    changed = "; ".join(describe_augmentation(run.augmentation)) or "nothing"
    console.print_lines(f"Changed at random: {changed}.", str(out))
    path = given["path"]
    # A start for photos does not suit the built-in digits.
    following = "vitkit train --recipe digits" if path == "digits" else f"vitkit finetune {shlex.quote(path)}"
    console.print_next(f"open {out} in a browser", following)


def print_check(data: "DataCheck", path: str, task: str) -> None:
    """Print what is in a data set, and the command that trains on it.

    Args:
        data: the findings of the check.
        path: the images.
        task: what will be learned.
    """
    splits = data.counts.values()
    names = list(next(iter(splits)))
    rows = [(name, *(f"{counts[name]:,}" for counts in splits)) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        rows.append((f"... {len(names) - SHOWN} more", *[""] * len(splits)))
    total = [console.bold(f"{count:,}") for count in data.images.values()]
    console.print_blocks([Text(f"{data.name}: {data.kind}", "answer"), *data.notes])
    console.print_table(("class", *data.counts), [*rows, (console.bold("all"), *total)])
    blocks: list[Block] = []
    if (sizes := data.sizes) is not None:
        smallest, largest, median = map(format_size, (sizes.smallest, sizes.largest, sizes.median))
        common = ", ".join(f"{format_size(size)} ({count:,})" for size, count in sizes.common)
        spread = f"{smallest} to {largest}, median {median}; most common {common}"
        blocks.append(f"sizes (height x width): {f'all {smallest}' if smallest == largest else spread}")
    for title, counted in (("formats", data.formats), ("colour modes", data.modes)):
        blocks.append(f"{title}: " + ", ".join(f"{name} ({count:,})" for name, count in counted.items()))
    groups = [", ".join(f"{copy.split}: {copy.key}" for copy in group) for group in data.duplicates]
    blocks += _listed("Unreadable files", [f"{bad.split}: {bad.key}: {bad.reason}" for bad in data.bad])
    blocks += _listed("Files with the same pixels", groups)
    if data.warnings:
        blocks += ["", Text("To look at", "answer"), *(f"  ! {warning}" for warning in data.warnings)]
    elif not data.problems:
        blocks.append("\nNothing stands out.")
    if data.problems:  # the error that follows says them
        console.print_blocks(blocks)
        return
    recipe = "digits" if path == "digits" else data.recipe
    quoted, remark = shlex.quote(path), "vitkit recipes lists others"
    command = f"vitkit train --recipe {recipe} --data {quoted}"
    if data.advice:  # to begin from a checkpoint, and not from scratch
        blocks.append(f"\nadvice  {' '.join(data.advice)}")
        starts = ", ".join(f"{start.name} ({start.megabytes:,.0f} MB)" for start in default_starts())
        command = f"vitkit finetune {quoted}"
        remark = (
            f"from {starts}: it takes the largest that this machine fine-tunes within an hour, and asks "
            "before it fetches that"
        )
    if task != "classification":
        command += f" --task {task}"
    if not any(data.counts.values()):  # there are no classes
        command = f"vitkit pretrain {quoted} --objective {task}"
        remark = "it needs no labels"
    console.print_blocks(blocks)
    console.print_next(f"{command}   ({remark})")


def _listed(title: str, lines: list[str]) -> list[Block]:
    """List lines below a title with their number, a long list in part."""
    shown: list[Block] = [f"  {line}" for line in lines[:SHOWN]]
    more = [f"  ... {len(lines) - SHOWN:,} more (--json lists all)"] if len(lines) > SHOWN else []
    return ["", Text(f"{title} ({len(lines):,})", "answer"), *shown, *more] if lines else []


# Starts

DESCRIBED = 5
"""A list of at most this many starts is followed by their addresses, licences and sources."""

UNPINNED = "not pinned: what is fetched first is remembered, and another file is refused from then on"


LONG = replace(JSON, text="print everything as JSON, with licences and sources.")
TRY = Verb("starts", "jobs.try_starts:try_starts")
TRY_TEXT = (
    "try starts on these images and compare them, before any is fine-tuned. The words behind it are run "
    "folders, files, addresses, names or patterns; left out, the published starts on this disk and a small "
    "one of each family."
)
FETCH = replace(train.YES, text="fetch the starts to --try that are not on this disk.")
# Photos, starts and download have an option of their own here, or a place.
TRYING = (option for option in TRY.options if option.path not in {"photos", "starts", "download"})
OF_TRY = (Option("--try", "photos", "DATA", TRY_TEXT, names_images=True), FETCH, *TRYING)


def _starts(arguments: list[str]) -> None:
    """Parse the command line, and print the checkpoints, or try them on images and print how they compare."""
    given = STARTS.parse(arguments)
    if "photos" in given:
        names = given.pop("patterns", ())
        if filters := {name: given.pop(name) for name in ("model", "data") if name in given}:
            names = (*names, *(start.name for start in published.starts(**filters)))
        console.print_result(TRY.call(given, starts=names), given)
        return
    if of_try := [option.name for option in OF_TRY if option.path in given]:
        raise VitkitError(f"{of_try[0]} belongs to --try DATA: give that too, or leave {of_try[0]} out.")
    listed = STARTS.call(given)
    if not given.get("json"):
        print_starts(listed)
        return
    console.print_json(
        [asdict(start) | {"source": [SOURCES[key] for key in start.source]} for start in listed]
    )


STARTS = Verb("starts", "weights.published:starts", *OF_TRY, LONG, main=_starts)


def print_starts(listed: Sequence[PublishedStart]) -> None:
    """Print checkpoints as a table; where they are few, with their addresses."""
    columns = {
        "start": [start.name for start in listed],
        "model": [start.model for start in listed],
        "licence": [start.licence for start in listed],
        "ImageNet-1k": [_published_accuracy(start, "–") for start in listed],
        "MB": [f"{start.megabytes:,.0f}" for start in listed],
        "GFLOPs": [f"{start.gflops:,.1f}" for start in listed],
        "pixels": [str(start.image_size) for start in listed],
        "trained on": [start.data for start in listed],
        "classes": [f"{start.classes:,}" if start.classes else "no head" for start in listed],
    }
    # A narrow terminal would break names: drop columns that repeat a part of a start's name or its size.
    for spare in ("classes", "trained on", "pixels", "model"):
        if sum(max(map(len, (name, *cells))) + 2 for name, cells in columns.items()) - 2 > console.out.width:
            del columns[spare]
    numbers = ("MB", "GFLOPs", "pixels", "classes")
    texts = [number for number, name in enumerate(columns) if name not in numbers]
    console.print_table(columns, zip(*columns.values(), strict=True), left=texts)
    for terms in dict.fromkeys(start.terms for start in listed):
        console.print_lines(f"\n{terms}" if terms == listed[0].terms else terms)
    for start in listed:
        asks = f"{start.gate}, the copy at {start.address} asks nothing; " if start.gate else ""
        if start.free:
            console.print_lines(f"! {start.name}: {asks}free and of about this size is {start.free}")
    pinned = sum(start.is_pinned for start in listed)
    console.print_lines(f"\n{pinned} of {len(listed)} are pinned to a SHA-256.")
    for start in listed if len(listed) <= DESCRIBED else ():
        size = f"; original file {start.original_mib:,} MiB" if start.original_mib else ""
        lines = [f"{start.name}: {start.terms}{size}", f"fetched from {start.address}"]
        pinned_to = f"pinned: SHA-256 {start.sha256}, {start.revision}".rstrip(", ")
        lines.append(pinned_to if start.is_pinned else UNPINNED)
        lines += (f"published also as {address}" for address in start.other_addresses)
        if accuracy := _published_accuracy(start):
            lines.append(f"ImageNet-1k: {accuracy}, according to {start.accuracy_source}")
        lines += (f"according to {SOURCES[key]}" for key in start.source)
        console.print_lines("\n" + "\n  ".join(lines))
    name = listed[0].name if len(listed) == 1 else "START"
    addresses = [f"vitkit starts {name}   (its addresses)"] if len(listed) > DESCRIBED else []
    console.print_next(*addresses, f"vitkit finetune {name} PATH")


def _published_accuracy(start: PublishedStart, missing: str = "") -> str:
    """Write the published accuracy with how it was measured: "81.1% linear"."""
    return missing if start.accuracy is None else f"{start.accuracy:.1f}% {start.accuracy_by}"


# Studies whose arms are runs


def describe_study(own: Mapping[str, Any], arguments: Sequence[str]) -> tuple[Option, ...]:
    """Describe the options of training that a study takes, by its recipe, which is among its own."""
    return train.describe_training(default=train.recipe_of(own, arguments))


def study_base(given: Mapping[str, Any], of_study: Mapping[str, Any], study: str, instead: str) -> Run:
    """Make the run that a study changes: a recipe with options of training over it, suited to its start.

    Args:
        given: the options of training that are given.
        of_study: the study's own; its recipe is "" where there is none.
        study: the name of the study in a sentence: "an ablation".
        instead: its own options for several runs: "--seeds".

    Raises:
        VitkitError: an option belongs to a series of runs or to several processes.
    """
    of_series = {field.name for field in fields(SeriesOptions)}
    if {"processes", "from_scratch", "log", "dry_run", *of_series} & {*given}:
        raise VitkitError(
            f"The runs of {study} follow from its own options, one after another in one process: give "
            f"{instead}, without --runs, --sweep, --cross-validate, --processes, --from-scratch, --log or "
            "--dry-run."
        )
    changes = {path: given[path] for path in given if path.partition(".")[0] in train.OF_A_RUN}
    default = train.recipe_of(of_study)
    with options.in_options(train.describe_training("train", default), given):
        run = with_options(default, changes)
        train.require_inputs(run, given)
        if not run.start.start:
            return run
        with options.importing():
            from vitkit.jobs.finetune import finetune_run

        # As in vitkit finetune.
        console.download(run.start.start)
        start, data = changes.pop("start.start"), changes.pop("data", default.data)
        listener = hushed(console.TerminalListener(), bool(of_study.get("quiet")))
        return finetune_run(start, data, recipe=of_study.get("recipe", ""), listener=listener, **changes)


def _ablate(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    # The recipe decides which options there are.
    if not {*ASKING} & {*arguments} and (not arguments or arguments[0][:1] in ("", "-")):
        raise VitkitError("Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none.")

    given, of_run = ABLATE.parse_with_training(arguments)
    given["recipe"] = study_base(of_run, given, "an ablation", "--seeds and --rates")
    ABLATE.run(arguments, given)


def _options_of_recipe(_: object, line: Sequence[str]) -> tuple[Option, ...]:
    return describe_study({"recipe": "".join(line[:1])}, line)


ABLATE = Verb("ablate", "jobs.study.ablate:ablate", JSON, of_training=_options_of_recipe, main=_ablate)


def _scale(arguments: list[str]) -> None:
    """Parse the command line, measure the law, and print it."""
    given, of_run = SCALE.parse_with_training(arguments)
    length = [name for name in ("epochs", "steps") if f"training.{name}" in of_run]
    if "budget" in given and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without --{length[0]}.")
    with options.importing():
        from vitkit.jobs.study.scale import propose_recipe, refuse_start

    of_run["data"], start = given["data"], given.pop("start", "")
    refuse_start(given.get("along", "data"), start)
    if start:
        of_run["start.start"] = start
    elif not {"recipe", "task"} & {*given, *of_run}:  # no recipe is proposed for another task
        listener = hushed(console.TerminalListener(), bool(given.get("quiet")))
        given["recipe"] = propose_recipe(given["data"], listener, "model" in of_run)
    given["recipe"] = study_base(of_run, given, "the scale lab", "--seeds")
    SCALE.run(arguments, given)


SCALE = Verb("scale", "jobs.study.scale:scale", JSON, of_training=describe_study, main=_scale)


# Completion

OF_BASH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit"""
"""The lines by which zsh understands the script of bash."""


def write_script(shell: Literal["bash", "zsh"]) -> str:
    """Print a script by which a shell completes verbs, options and their choices.

    It knows the options of this version: write it anew after an update.

    Args:
        shell: the shell: bash or zsh.
    """
    by_verb = {verb: list_options(verb) for verb in VERBS}
    cases = "\n".join(
        f'        {verb}) words="{" ".join(chain(*(option.names for option in options), ASKING[1:]))}" ;;'
        for verb, options in by_verb.items()
    )
    choosing = ((verb, option) for verb, own in by_verb.items() for option in own if option.choices)
    choices = "\n".join(
        f'    "{verb} {option.name}") words="{" ".join(option.choices)}" ;;' for verb, option in choosing
    )
    before = f"{OF_BASH}\n" if shell == "zsh" else ""
    # A function of the verb, the word at the cursor and the word before it.
    return f"""\
{before}\
_vitkit() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local verb="${{COMP_WORDS[1]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join([*by_verb, *ASKING[1:2]])}" -- "$word"))
    return
  fi
  case "$verb $before" in
{choices}
  esac
  if [ -z "$words" ]; then
    case "$word" in
      -*) case "$verb" in
{cases}
      esac ;;
    esac
  fi
  if [ "$verb" = data ] && [ "$COMP_CWORD" -eq 2 ]; then words="check show"; fi
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}}
complete -o default -F _vitkit vitkit
"""


def _complete(arguments: list[str]) -> None:
    """Parse the command line, and print the script."""
    print(write_script(**COMPLETION.parse(arguments)), end="")


def list_options(verb: str) -> tuple[Option, ...]:
    """List the options of a verb, with its options that are read before the parser."""
    if verb in train.FIRST:
        options = train.describe_training(verb)
    else:
        parts = (CHECK, SHOW) if verb == "data" else (home_of(verb),)
        options = tuple(chain(*((*part.options, *part.of_training({}, [])) for part in parts)))
    return tuple({option.name: option for option in options if not option.is_positional}.values())


COMPLETION = Verb("completion", "cli.verbs:write_script", main=_complete)
