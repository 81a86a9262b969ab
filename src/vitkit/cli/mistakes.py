"""The error of a wrong command line, and what our options are called elsewhere."""

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
        "imgsz", "img", "img-size", "input-size", "imsize", "resolution", "crop-size", "size", "sizes",
        "height",
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
