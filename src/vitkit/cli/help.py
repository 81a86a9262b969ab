"""The help of all verbs: their first pages side by side, so that verbs that are alike are described alike,
and how a page is written, with what matters and two examples or with every option.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from vitkit.cli.verb_options import Option, summary_of
from vitkit.text import pluralize

VERBS = {
    "advise": ("what starts tell of images, and what they cost to train", "jobs.advise:advise"),
    "train": ("train a model on your images, evaluate it, write a report", "cli.train:TRAIN"),
    "finetune": ("train a model that is there already on your images", "cli.train:FINETUNE"),
    "extend": ("add images or classes to a model, or take them out, exactly", "jobs.extend:extend"),
    "pretrain": ("train a model on images without labels", "cli.train:PRETRAIN"),
    "evaluate": ("measure a model on images it never saw", "cli.verbs:EVALUATE"),
    "compare": ("two models on the same images: which is better, where", "jobs.compare:compare"),
    "fewshot": ("how well classes are learned from a few images of each", "cli.verbs:FEWSHOT"),
    "ablate": ("what options are worth: variants of a recipe, compared", "cli.verbs:ABLATE"),
    "reproduce": ("the paper's figures and tables at this machine's size", "cli.verbs:REPRODUCE"),
    "vtab": ("fine-tune on the 19 tasks of VTAB-1k, mean accuracy", "jobs.vtab:vtab"),
    "scale": ("what three times more images, steps or size would buy", "cli.verbs:SCALE"),
    "predict": ("name what is in images", "cli.verbs:PREDICT"),
    "embed": ("keep the features of images in Parquet or .npy files", "jobs.embed:embed"),
    "runs": ("list runs, series and studies: results, and what was interrupted", "jobs.list_runs:list_runs"),
    "report": ("write a run's report.html again", "cli.verbs:REPORT"),
    "inspect": ("draw filters, positions and attention of a model", "jobs.inspect:inspect"),
    "data": ("data check PATH: count images, find bad files; data show", "cli.verbs:CHECK"),
    "convert": ("write a checkpoint in another format, and compare", "jobs.convert:convert"),
    "export": ("write a model for OpenVINO or ONNX Runtime, also in int8", "cli.verbs:EXPORT"),
    "serve": ("answer over HTTP with a model of vitkit export", "jobs.serve:serve"),
    "card": ("describe a checkpoint and its numerics", "jobs.convert:read_card"),
    "cost": ("estimate parameters, FLOPs, memory, training compute", "jobs.cost:count_costs"),
    "bench": ("time models: images a second, latency, memory", "jobs.bench:bench"),
    "models": ("list models with parameters and FLOPs", "jobs.cost:measure_models"),
    "starts": ("list published checkpoints to begin from, or try them", "cli.verbs:STARTS"),
    "recipes": ("list recipes: named configurations of training", "jobs.recipes:list_recipes"),
    "completion": ("let the shell complete verbs and options", "cli.verbs:COMPLETION"),
}
"""A summary of each verb, and what runs it: a job, the function behind the colon, whose result is printed; or
a verb of the command line, whose `main(arguments)` does more."""


@dataclass(frozen=True)
class HelpPage:
    """The choice of what the first page of a verb's help shows."""

    first: str
    """The words after the verb of a command that works; a comment behind two spaces and a # may say what it
    does."""
    second: str
    """The words of another."""
    options: str = ""
    """The options that most people need, with blanks between them; left out, the first and last ones."""
    usage: str = ""
    """The text after the verb: "[PATTERN...] [OPTIONS]"; left out, what its options make."""
    description: str = ""
    """The purpose of the verb; left out, the docstring of its job."""

    def examples(self, verb: str) -> tuple[str, str]:
        """Return the two commands, whole."""
        return f"vitkit {verb} {self.first}".rstrip(), f"vitkit {verb} {self.second}"


PAGES = {
    "ablate": HelpPage(
        "digits --vary position=learned,none --plan",
        "digits --vary pool=token,mean --steps 200",
        usage="RECIPE --vary OPTION=VALUE,... [OPTIONS]",
    ),
    "advise": HelpPage("my_photos/ vit-ti16-augreg-in21k", "digits"),
    "bench": HelpPage("ViT-Ti/16", "ViT-S/16 --image-size 224,384"),
    "card": HelpPage("runs/digits", "vit-ti16-augreg-in21k --json"),
    "compare": HelpPage("runs/digits-seed0 runs/digits-seed1", "runs/photos runs/my_photos new_photos/"),
    "completion": HelpPage(
        "bash > ~/.vitkit-completion  # then: source it in ~/.bashrc",
        "zsh > ~/.vitkit-completion  # then: source it in ~/.zshrc",
    ),
    "convert": HelpPage("runs/digits digits_hf --to huggingface", "ViT-B_16.npz vit_b16 --num-classes 10"),
    "cost": HelpPage("ViT-B/16 ViT-L/16", "ViT-S/16 --epochs 300 --images 1281167"),
    "data check": HelpPage("my_photos/", "labels.csv --task multi-label --json"),
    "data show": HelpPage("my_photos/", "my_photos/ --crop-area 0.05,1 --out views.png"),
    "embed": HelpPage("vit-ti16-augreg-in21k my_photos/", "runs/digits digits --out features.npy"),
    "evaluate": HelpPage(
        "runs/digits",
        "runs/my_photos new_photos/ --json",
        options="--data --split --protocol --out --batch-size --image-size --precision --device --workers "
        "--processes --json",
    ),
    "export": HelpPage("runs/digits digits_graph --format onnx", "runs/mine mine.html --to page"),
    "export --check": HelpPage("digits_graph", "digits_graph --engine openvino"),
    "extend": HelpPage("runs/frozen new_photos/", "runs/frozen new_photos/ --without sky  # sky anew"),
    "fewshot": HelpPage("vit-ti16-augreg-in21k my_photos/", "runs/a runs/b digits --shots 1,5"),
    "finetune": HelpPage(
        "my_photos/  # from a published start that suits them",
        "runs/digits my_photos/ --minutes 20",
        options="--yes --dry-run --recipe --freeze --head --image-size --epochs --minutes --batch-size "
        "--learning-rate --out --resume",
        description="""Train a model that is there already on your images.

Its head is replaced by a new one. Options left out suit the start and the number of images; --recipe paper
is the paper's fine-tuning. --sweep tries learning rates first, and --runs 3 trains with three seeds.
--freeze backbone solves the head alone, in seconds; vitkit extend adds images to it and takes them out.""",
    ),
    "inspect": HelpPage("runs/digits", "vit-ti16-augreg-in21k photo.jpg --out pictures/"),
    "models": HelpPage(
        "'ViT-B*'", "ViT-Ti/16 --image-size 384 --num-classes 10", usage="[PATTERN...] [OPTIONS]"
    ),
    "predict": HelpPage(
        "runs/digits photo.jpg",
        "runs/my_photos holiday/ --csv",
        options="--top --csv --json --out --batch-size --image-size --engine --precision --device "
        "--max-pixels",
    ),
    "pretrain": HelpPage(
        "my_photos/ --minutes 60",
        "my_photos/ --then labelled/  # does it help?",
        options="--objective --then --fewshot.data --model --image-size --epochs --minutes --batch-size "
        "--out --resume",
        description="""Train a Vision Transformer on images without labels.

Labels are ignored. Options left out suit the size of the images; --recipe masked-patches is the paper's.
--start begins from weights, and --fewshot.data measures on the way what the features are worth.""",
    ),
    "recipes": HelpPage("", "--json"),
    "report": HelpPage("runs/digits", "runs/my_photos-runs"),
    "reproduce": HelpPage("", "table8 --minutes 30"),
    "runs": HelpPage("", "my_runs/ --html"),
    "scale": HelpPage("digits --budget 20m --plan", "my_photos/ --along size --budget 2h"),
    "serve": HelpPage(
        "mine-onnx",
        "mine-onnx --host 0.0.0.0 --key key.txt --processes 4",
        options="--host --port --processes --batch-size --queue --key --max-pixels --json",
    ),
    "starts": HelpPage(
        "'vit-b16*'",
        "--try my_photos/ runs/a 'vit-s16*'  # which suits these images?",
        options="--model --data --try --yes --minutes --shots --image-size --json",
        usage="[PATTERN...] [OPTIONS]",
    ),
    "train": HelpPage(
        "--recipe digits                    # built in, no download",
        "my_photos/ --recipe photos         # folders of classes",
        options="--recipe --model --image-size --epochs --minutes --batch-size --learning-rate --out "
        "--resume",
        description="""Train a Vision Transformer on your images, evaluate it, and write a report.

--start RUN trains a finished run for longer, as a new run. --sweep tries learning rates first, and --runs 3
trains with three seeds.""",
    ),
    "vtab": HelpPage("vit-b16-augreg-in21k vtab/", "runs/mine vtab/ --tasks dtd,svhn --protocol finetune"),
}


WIDTH = 80
"""Columns of every page: the width of the narrowest common terminal."""
COLUMN = 24
"""The column at which texts begin; the text of a longer name begins on the next line."""
LONGEST_NAME = 44
"""Most columns of a name with its choices; where they take more, the text lists the choices."""
MOST_SHOWN = 10
"""Options on the first page of a verb whose page chooses none."""
ALL = "--help-all"
ASKING = ("-h", "--help", ALL)
"""The options that ask for help."""
RULE = (
    "Lists of numbers are written 1,5,10 or 1 5 10, lists of names a,b. A switch is turned off with "
    "--no-NAME."
)


def write_help(verb: str, command: object, options: Sequence[Option], page: HelpPage, *, whole: bool) -> str:
    """Write the help of a verb in lines of at most 80 columns.

    Args:
        verb: as it follows vitkit.
        command: the function of its job, whose docstring says what the verb does.
        options: all options, those that the verb itself reads included.
        page: the choice of what the first page shows.
        whole: show every option with its whole text, in groups.
    """
    positional = [option for option in options if option.is_positional]
    named = [option for option in options if not option.is_positional]
    paragraphs = "\n\n".join(map(_wrapped, re.split(r"\n\s*\n", page.description or summary_of(command))))
    parts = [_wrapped(f"usage: {usage(verb, options, page)}", "  "), paragraphs]
    if positional:
        parts.append("\n".join(_entry(option, whole) for option in positional))
    if whole:
        # The options of the verb itself have no group and come first.
        ordered = sorted(named, key=lambda option: bool(option.group))
        for group, members in groupby(ordered, lambda option: option.group):
            entries = [_entry(option, True) for option in members]
            parts.append("\n".join([*([_wrapped(group)] if group else []), *entries]))
        parts.append(_wrapped(RULE))
    else:
        shown = page.options.split() or [option.name for option in named]
        if len(shown) > MOST_SHOWN and not page.options:
            shown = [name for name in shown if name not in ("--quiet", "--csv")]
            shown[MOST_SHOWN - 1 : -1] = []  # the last one is --json, where there is one
        by_name = {name: option for option in named for name in option.names}
        parts.append("\n".join(_entry(by_name[name], False) for name in shown))
    parts.append("\n".join(["Examples:", *(f"  {example}" for example in page.examples(verb))]))
    if not whole:
        parts.append(_wrapped(f"vitkit {verb} {ALL} lists all {pluralize(len(named), 'option')}."))
    return "\n\n".join(part for part in parts if part)


def usage(verb: str, options: Sequence[Option], page: HelpPage) -> str:
    """Write the form of a verb's command line: "vitkit card CHECKPOINT [OPTIONS]"."""
    places = (option for option in options if option.is_positional)
    parts = [_name(option) if option.is_required else f"[{_name(option)}]" for option in places]
    if len(options) > len(parts):
        parts.append("[OPTIONS]")
    return f"vitkit {verb} {page.usage or ' '.join(parts)}".rstrip()


def _wrapped(text: str, later: str = "") -> str:
    text = " ".join(text.split())
    return textwrap.fill(text, WIDTH, subsequent_indent=later, break_on_hyphens=False, break_long_words=False)


def _entry(option: Option, everything: bool) -> str:
    """Write the lines of an option: its name with its value, and its text."""
    name, text = _name(option), option.text
    if not everything:
        text = re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0].rstrip(".")
    if option.choices and not all(choice in f"{name} {text}" for choice in option.choices):
        text += f"{' One' if everything else '; one'} of {', '.join(option.choices)}"
    default = "on" if option.default is True else option.default_text
    if default:
        text += f" [default: {default}]"
    is_long = len(text.split(" ", 1)[0]) > WIDTH
    lines = textwrap.wrap(text, WIDTH - COLUMN, break_on_hyphens=False, break_long_words=is_long)
    head, below = f"  {name}", textwrap.indent("\n".join(lines), " " * COLUMN)
    return head + below[len(head) :] if len(head) < COLUMN - 1 else f"{head}\n{below}"


def _name(option: Option) -> str:
    """Write the name of an option with the placeholder of its value."""
    if option.is_positional:
        return f"{option.name}{'...' * (option.most > 1)}"
    if not option.value:
        # A switch that is on by default is there to be turned off.
        return ", ".join(option.names) if option.default is True else option.name
    name = f"{option.name} {option.value}"
    return name if len(name) <= LONGEST_NAME else f"{option.name} NAME"
