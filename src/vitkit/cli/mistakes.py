"""Say what is wrong with a command line, and which command was probably meant."""

import difflib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from vitkit.cli.verb_options import ANY_NUMBER, NUMBER, Option
from vitkit.errors import VitkitError


class WrongCommandLine(VitkitError):  # noqa: N818 (it is the command line that is wrong)
    """A command line that cannot be read: an unknown option, a missing argument, a value of another type."""

    exit_code = 2


OTHER_NAMES = {
    "--learning-rate": ("lr", "base-lr", "lr0", "lrate", "learning-rate-init", "eta", "peak-learning-rate"),
    "--weight-decay": ("wd", "decay"),
    "--batch-size": (
        "b", "bs", "batch", "train-batch-size", "per-device-train-batch-size", "per-gpu-train-batch-size",
        "per-device-eval-batch-size",
    ),
    "--epochs": ("epoch", "e", "n-epochs", "num-epochs", "num-train-epochs", "max-epochs", "max-iter"),
    "--steps": ("iters", "iterations", "max-steps", "num-steps", "total-steps", "n-steps"),
    "--image-size": (
        "imgsz", "img", "img-size", "input-size", "imsize", "resolution", "crop-size", "size", "height",
    ),
    "--optimizer": ("opt", "optim", "solver", "optimiser"),
    "--schedule": ("sched", "lr-scheduler", "lr-scheduler-type", "scheduler"),
    "--warmup-steps": ("warmup", "num-warmup-steps"),
    "--workers": ("j", "num-workers", "dataloader-num-workers", "data-workers", "nw"),
    "--label-smoothing": ("smoothing", "label-smoothing-factor"),
    "--dropout": ("drop", "drop-rate"),
    "--drop-path": ("drop-path-rate", "stochastic-depth"),
    "--attention-dropout": ("attn-drop", "attn-drop-rate"),
    "--random-erasing": ("reprob", "erasing"),
    "--rand-augment": ("aa", "auto-augment", "randaugment"),
    "--flip": ("hflip", "fliplr", "horizontal-flip"),
    "--clip-norm": ("clip-grad", "grad-clip", "max-grad-norm", "gradient-clip-val"),
    "--polyak": ("ema", "model-ema", "model-ema-decay", "ema-decay"),
    "--layer-decay": ("layerwise-decay", "llrd"),
    "--freeze-layers": ("freeze-blocks", "num-frozen-layers"),
    "--out": ("o", "output", "output-dir", "save-dir", "project", "outdir", "out-dir", "logdir", "workdir"),
    "--data": (
        "data-dir", "dataset", "dataset-name", "data-path", "train-dir", "train-data", "root", "d",
    ),
    "--start": (
        "initial-checkpoint", "checkpoint", "weights", "init", "model-name-or-path", "ckpt",
    ),
    "--resume": ("resume-from-checkpoint", "continue", "resume-from"),
    "--seed": ("random-state", "random-seed"),
    "--precision": ("dtype", "amp", "fp16", "bf16", "half", "amp-dtype", "mixed-precision"),
    "--device": ("gpu", "gpus", "cuda", "accelerator", "no-cuda"),
    "--processes": ("nproc-per-node", "num-gpus", "devices", "nproc", "n-jobs"),
    "--patience": ("early-stopping", "early-stopping-patience"),
    "--splits.val-fraction": ("val-split", "validation-split", "val-fraction", "val-size"),
    "--splits.test-fraction": ("test-split", "test-size", "test-fraction"),
    "--cross-validate": ("cv", "folds", "kfold", "k-fold"),
    "--sweep": ("lr-find", "auto-lr-find", "find-lr"),
    "--top": ("k", "topk", "top-k", "num-predictions"),
    "--image-mean": ("mean", "pixel-mean"),
    "--image-std": ("std", "pixel-std"),
    "--neighbours": ("n-neighbors", "neighbors", "num-neighbors", "knn-k"),
    "--channels": ("in-chans", "in-channels", "num-channels"),
    "--pool": ("global-pool", "pooling"),
    "--model": ("arch", "a", "m", "model-name", "architecture"),
    "--check-images": ("verify-images",),
    "--json": ("as-json", "format-json"),
    "--to": ("format", "target", "dialect"),
    "--engine": ("backend", "runtime"),
    "--calibration": ("calibration-data", "calib"),
    "--num-classes": ("nc", "classes", "num-labels", "nb-classes"),
    "--images": ("image", "source", "inputs"),
    "--evaluate-every": ("eval-steps", "eval-every", "val-interval", "eval-interval"),
    "--checkpoint-every": ("save-steps", "save-every", "save-interval", "save-period"),
    "--log-every": ("logging-steps", "log-interval"),
}  # fmt: skip
"""Our options, and their names in timm, ultralytics, Hugging Face, scikit-learn and the original code."""

MEANT = {
    "pretrained": "Trained weights stand first: vitkit finetune START --data PATH; vitkit starts lists them.",
    "num-classes": "The number of classes follows from the images.",
    "format": "vitkit export chooses by --engine, vitkit convert by --to.",
    "image-size": "vitkit bench has --sizes for it.",
    "patch-size": "The patch size is a part of the model's name: --model ViT-S/8.",
    "momentum-decay": "The decay of Adam's means is --beta1 and --beta2.",
    "warmup-epochs": "The learning rate is warmed up for a number of steps: --warmup-steps.",
    "accum-steps": "A batch is computed in parts of --micro-batch-size images.",
    "lr-decay": "The learning rate falls as --schedule says; from layer to layer by --layer-decay.",
    "do-train": "Each verb does one thing: vitkit train, vitkit evaluate, vitkit predict.",
    "do-eval": "Each verb does one thing: vitkit train, vitkit evaluate, vitkit predict.",
    "exist-ok": "The same command again goes on with its run; another run needs another --out.",
    "verbose": "A command always tells its progress.",
    "download": "A start of vitkit starts is fetched by its name.",
    "depth": "A shape is a model's name: --model ViT-WIDTHxDEPTHxHEADS/PATCH.",
    "hidden-size": "A shape is a model's name: --model ViT-WIDTHxDEPTHxHEADS/PATCH.",
    "embed-dim": "A shape is a model's name: --model ViT-WIDTHxDEPTHxHEADS/PATCH.",
}
"""Options of other tools that we have no option for, and what takes their place."""
MEANT |= {
    "nb-classes": MEANT["num-classes"],
    "num-labels": MEANT["num-classes"],
    "nc": MEANT["num-classes"],
    "v": MEANT["verbose"],
    "use-pretrained": MEANT["pretrained"],
    "warmup-ratio": MEANT["warmup-epochs"],
    "accum-iter": MEANT["accum-steps"],
    "grad-accum-steps": MEANT["accum-steps"],
    "gradient-accumulation-steps": MEANT["accum-steps"],
    "accumulate-grad-batches": MEANT["accum-steps"],
}


def find_mistake(verb: str, arguments: Sequence[str], options: Sequence[Option], usage: str) -> str | None:
    """Say what is wrong with the arguments of a verb; None where no mistake can be seen without the parser.

    Args:
        verb: as it follows vitkit.
        arguments: the command line after the verb.
        options: all options of the verb.
        usage: the form of its command line.
    """
    by_name = {name: option for option in options for name in option.names}
    waiting, positional = list(arguments), []
    unknown: list[str] = []
    wrong: str | None = None
    while waiting:
        argument = waiting.pop(0)
        if argument == "--":
            positional += waiting
            break
        if not argument.startswith("-") or _is_value(argument):
            positional.append(argument)
            continue
        written, equals, value = argument.partition("=")
        option = by_name.get(written.replace("_", "-"))
        if option is None:
            unknown.append(written)
            if not equals and waiting and not waiting[0].startswith("-"):
                waiting.pop(0)  # its value, probably
            continue
        if option.is_switch:
            if equals:
                wrong = wrong or f"{written} is a switch: give {' or '.join(option.names)}, without a value."
            continue
        if not equals:
            if not waiting or (waiting[0].startswith("-") and not _is_value(waiting[0])):
                wrong = wrong or f"{written} needs a value: {written} {option.value}."
                continue
            value = waiting.pop(0)
        wrong = wrong or _refuse_value(written, option, value)
        if option.most > 1 and not option.is_list:
            while waiting and not waiting[0].startswith("-"):
                waiting.pop(0)
    if unknown:
        return " ".join(_unknown_option(verb, written, options) for written in unknown)
    return wrong or _refuse_positional(verb, positional, options, usage)


def _unknown_option(verb: str, written: str, options: Sequence[Option]) -> str:
    """Say that a verb has no such option, and which option does the same."""
    names = [option_name for option in options for option_name in option.names]
    name = written.lstrip("-").replace("_", "-").lower()
    positional = {
        f"--{label}": option.name
        for option in options
        if option.is_positional
        for label in (option.field, option.name.lower())
    }
    ours = next(
        (
            ours
            for ours, others in OTHER_NAMES.items()
            if name in (ours[2:], *others) and ours in (*names, *positional)
        ),
        "",
    )
    hint = f"Here it is {ours}." if ours else MEANT.get(name)
    if ours in positional:
        hint = f"{positional[ours]} is given without an option."
    if hint is None:
        bare = {long.removeprefix("--").rpartition(".")[2]: long for long in reversed(names)}
        near = difflib.get_close_matches(name, bare, n=1, cutoff=0.7)
        hint = f"Did you mean {bare[near[0]]}?" if near else f"vitkit {verb} --help-all lists all."
    return f"vitkit {verb} has no option {written}. {hint}"


def _refuse_value(written: str, option: Option, value: str) -> str | None:
    """Say why a text is no value of an option; None where it is a value."""
    if option.default is None and value == "None":
        return None
    parts = [part.strip() for part in value.split(",")] if option.is_list else [value]
    if option.value == "SIZE":
        parts = re.split("[x,]", value)
    for part in parts:
        if option.number is not None and not _is_number(part, option.number):
            kind = "a whole number" if option.number is int else "a number"
            several = " or several with commas between them" if option.is_list else ""
            several = ", or height and width such as 224,320" if option.value == "SIZE" else several
            return f"{written} is {kind}{several}, found {_shown(value)}."
        if option.choices and part not in option.choices:
            near = difflib.get_close_matches(part, option.choices, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]}?" if near else ""
            return f"{written} is one of {', '.join(option.choices)}, found {_shown(part)}.{hint}"
    is_square = option.value == "SIZE" and len(parts) == 1
    if option.is_list and len(parts) != option.most < ANY_NUMBER and not is_square:
        return f"{written} takes {option.most} numbers, found {len(parts)} in {_shown(value)}."
    return None


def _refuse_positional(
    verb: str, arguments: Sequence[str], options: Sequence[Option], usage: str
) -> str | None:
    """Say which of the positional arguments is missing, wrong or one too many."""
    places = [option for option in options if option.is_positional]
    needed = [option for option in places if option.is_required and option.most == 1]
    if len(arguments) < len(needed):
        missing = needed[len(arguments)]
        text = re.split(r"(?<=\.)\s+(?=[A-Z])|[.;]$", missing.text, maxsplit=1)[0].rstrip(".")
        return f"{missing.name} is missing: {text}. Usage: {usage}"
    for option, argument in zip(places, arguments, strict=False):
        wrong = _refuse_value(option.name, option, argument) if option.choices else None
        if wrong:
            return wrong
    if len(arguments) > len(places) and not any(option.most > 1 for option in places):
        argument = arguments[len(places)]
        assigned = re.fullmatch(r"([A-Za-z][\w.-]*)=(.*)", argument)
        if assigned:
            return f"Options are written with two hyphens: --{assigned[1].replace('_', '-')} {assigned[2]}"
        if Path(spaced := " ".join(arguments)).exists():
            return f"A path with blanks is put into quotes: {shlex.quote(spaced)}"
        return f"vitkit {verb} takes no further argument, found {_shown(argument)}. Usage: {usage}"
    return None


def _is_value(argument: str) -> bool:
    """Whether an argument that begins with a hyphen is a value: a negative number, or standard input."""
    return argument == "-" or NUMBER.fullmatch(argument) is not None


def _is_number(text: str, kind: type) -> bool:
    """Whether the parser reads a text as a number."""
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    return shlex.quote(text if len(text) <= 80 else f"{text[:77]}...")
