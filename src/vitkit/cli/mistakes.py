"""The error of a wrong command line, and what is meant by options that have no counterpart here."""

from vitkit.errors import VitkitError


class WrongCommandLine(VitkitError):  # noqa: N818 (it is the command line that is wrong)
    """A command line that cannot be read: an unknown option, a missing argument, a value of another type."""

    exit_code = 2


MEANT = {
    "pretrained": "Trained weights stand first: vitkit finetune START DATA; vitkit starts lists them.",
    "num-classes": "The number of classes follows from the images.",
    "subset": 'It is a part of the images that a run trains on; vitkit evaluate has --split "test[:10%]".',
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
