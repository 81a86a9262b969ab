"""The first page of every verb's help: its usage, the options that most people need, and two commands.

They stand side by side, so that verbs that are alike are described alike. The verbs that train have theirs in
`vitkit.cli.training_options`, beside the options that they read themselves.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitkit.cli.verb_options import Option


@dataclass(frozen=True)
class HelpPage:
    """The choice of what the first page of a verb's help shows."""

    options: str = ""
    """The options that most people need, with blanks between them; about ten."""
    examples: tuple[str, ...] = ()
    """Two commands that work. A comment behind two spaces and a # may say what they do."""
    before: tuple["Option", ...] = ()
    """Arguments that the verb itself reads before the parser does."""
    has_defaults: bool = True
    """Whether options have fixed defaults: the defaults of fine-tuning depend on the images."""
    description: str = ""
    """The purpose of the verb; left out, the docstring of its command."""
    usage: str = ""
    """The text after the verb: "[START] DATA [OPTIONS]"; left out, what its options make."""


NO_PAGE = HelpPage()
"""The page of a verb that chooses nothing: it shows the first options."""

PAGES = {
    "ablate": HelpPage(
        "--vary --plan --grid --seeds --rates --fixed-rate --out --device --threads --json",
        (
            "vitkit ablate digits --vary position=learned,none --plan",
            "vitkit ablate digits --vary pool=token,mean --steps 200",
        ),
        usage="RECIPE --vary OPTION=VALUE,... [OPTIONS]",
    ),
    "advise": HelpPage(
        "--go --seconds --out --splits.val-fraction --splits.test-fraction --device --threads --json",
        ("vitkit advise my_photos/ vit-ti16-augreg-in21k", "vitkit advise digits"),
    ),
    "bench": HelpPage(
        "--minutes --batch-size --image-size --training --precision --device --threads --out --json",
        ("vitkit bench ViT-Ti/16", "vitkit bench ViT-S/16 --image-size 224,384"),
    ),
    "card": HelpPage(
        "--image-size --num-heads --json",
        ("vitkit card runs/digits", "vitkit card vit-ti16-augreg-in21k --json"),
    ),
    "compare": HelpPage(
        "--data --split --out --speed-seconds --threads --device --batch-size --json",
        (
            "vitkit compare runs/digits-seed0 runs/digits-seed1",
            "vitkit compare runs/photos runs/my_photos new_photos/",
        ),
    ),
    "completion": HelpPage(
        "",
        (
            "vitkit completion bash > ~/.vitkit-completion  # then: source it in ~/.bashrc",
            "vitkit completion fish > ~/.config/fish/completions/vitkit.fish",
        ),
    ),
    "convert": HelpPage(
        "--to --against --num-classes --head --image-size --position-interpolation --image-mean "
        "--image-std --accept-change --num-heads",
        (
            "vitkit convert runs/digits digits_hf --to huggingface",
            "vitkit convert ViT-B_16.npz vit_b16 --num-classes 10",
        ),
    ),
    "cost": HelpPage(
        "--batch-size --image-size --num-classes --epochs --images --optimizer --average "
        "--utilization --table6 --json",
        ("vitkit cost ViT-B/16 ViT-L/16", "vitkit cost ViT-S/16 --epochs 300 --images 1281167"),
    ),
    "data check": HelpPage(
        "--task --splits.val-fraction --splits.test-fraction --splits.seed "
        "--splits.group --splits.folds --channels --max-pixels --json",
        ("vitkit data check my_photos/", "vitkit data check labels.csv --task multi-label --json"),
    ),
    "data show": HelpPage(
        "--start --recipe --images --versions --out",
        ("vitkit data show my_photos/", "vitkit data show my_photos/ --crop-area 0.05,1 --out views.png"),
    ),
    "embed": HelpPage(
        "--out --batch-size --image-size --precision --device --workers --on --processes --num-heads",
        (
            "vitkit embed vit-ti16-augreg-in21k my_photos/",
            "vitkit embed runs/digits digits --out features.npy",
        ),
    ),
    "evaluate": HelpPage(
        "--data --split --protocol --batch-size --image-size --precision --device "
        "--workers --processes --json",
        (
            "vitkit evaluate runs/digits",
            "vitkit evaluate runs/my_photos new_photos/ --json",
        ),
    ),
    "export": HelpPage(
        "--format --precision --calibration --calibration-images --check-images "
        "--accept-change --image-size --num-heads",
        (
            "vitkit export runs/digits digits_graph --format onnx",
            "vitkit export runs/mine mine_int8 --precision int8",
        ),
    ),
    "fewshot": HelpPage(
        "--data --shots --seeds --methods --image-size --out --batch-size --device --processes --json",
        (
            "vitkit fewshot vit-ti16-augreg-in21k my_photos/",
            "vitkit fewshot runs/a runs/b digits --shots 1,5",
        ),
    ),
    "inspect": HelpPage(
        "--images --out --image-size --position-interpolation --num-heads --quiet --json",
        (
            "vitkit inspect runs/digits",
            "vitkit inspect vit-ti16-augreg-in21k photo.jpg --out pictures/",
        ),
    ),
    "models": HelpPage(
        "--image-size --num-classes --json",
        ("vitkit models 'ViT-B*'", "vitkit models ViT-Ti/16 --image-size 384 --num-classes 10"),
        usage="[PATTERN...] [OPTIONS]",
    ),
    "predict": HelpPage(
        "--top --csv --json --out --batch-size --image-size --engine --precision --device --max-pixels",
        (
            "vitkit predict runs/digits photo.jpg",
            "vitkit predict runs/my_photos holiday/ --csv",
        ),
    ),
    "recipes": HelpPage(
        "",
        ("vitkit recipes", "vitkit train --recipe digits --help  # its values"),
    ),
    "report": HelpPage(
        "",
        ("vitkit report runs/digits", "vitkit report runs/my_photos-runs"),
    ),
    "reproduce": HelpPage(
        "--list --plan --minutes --data --start --seeds --steps --only --out --json",
        ("vitkit reproduce --list", "vitkit reproduce table8 --minutes 30"),
    ),
    "runs": HelpPage(
        "--folder --json --quiet",
        ("vitkit runs", "vitkit runs my_runs/ --json"),
    ),
    "scale": HelpPage(
        "--along --budget --plan --points --seeds --recipe --start --out --device --json",
        ("vitkit scale digits --budget 20m --plan", "vitkit scale my_photos/ --along size --budget 2h"),
    ),
    "starts": HelpPage(
        "--model --data --json",
        ("vitkit starts 'vit-b16*'", "vitkit starts --model ViT-Ti/16"),
        usage="[PATTERN...] [OPTIONS]",
    ),
    "vtab": HelpPage(
        "--root --tasks --protocol --sweep --steps --batch-size --micro-batch-size --out --device --json",
        (
            "vitkit vtab vit-b16-augreg-in21k vtab/",
            "vitkit vtab runs/mine vtab/ --tasks dtd,svhn --protocol finetune",
        ),
        usage="START FOLDER [OPTIONS]",
    ),
}
