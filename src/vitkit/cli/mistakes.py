"""The error of a wrong command line, and what is meant by options that have no counterpart here."""

from vitkit.errors import VitkitError


class WrongCommandLine(VitkitError):  # noqa: N818 (it is the command line that is wrong)
    """A command line that cannot be read: an unknown option, a missing argument, a value of another type."""

    exit_code = 2


SENTENCES = {
    "pretrained use-pretrained": (
        "Trained weights stand first: vitkit finetune START DATA; vitkit starts lists them."
    ),
    "num-classes nb-classes num-labels nc": "The number of classes follows from the images.",
    "subset": 'It is a part of the images that a run trains on; vitkit evaluate has --split "test[:10%]".',
    "patch-size": "The patch size is a part of the model's name: --model ViT-S/8.",
    "momentum-decay": "The decay of Adam's means is --beta1 and --beta2.",
    "warmup-epochs warmup-ratio": "The learning rate is warmed up for a number of steps: --warmup-steps.",
    "accum-steps accum-iter grad-accum-steps gradient-accumulation-steps accumulate-grad-batches": (
        "A batch is computed in parts of --micro-batch-size images."
    ),
    "lr-decay": "The learning rate falls as --schedule says; from layer to layer by --layer-decay.",
    "do-train do-eval": "Each verb does one thing: vitkit train, vitkit evaluate, vitkit predict.",
    "exist-ok": "The same command again goes on with its run; another run needs another --out.",
    "verbose v": "A command always tells its progress.",
    "download": "A start of vitkit starts is fetched by its name.",
    "depth hidden-size embed-dim": "A shape is a model's name: --model ViT-WIDTHxDEPTHxHEADS/PATCH.",
}
"""Options of other tools that we have no option for, each with the way to reach the same."""
MEANT = {name: sentence for names, sentence in SENTENCES.items() for name in names.split()}
