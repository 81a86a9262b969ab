"""The names of our options in other programs, for messages to people who know those."""

NAMES = {
    "--learning-rate": "lr base-lr lr0 lrate learning-rate-init eta peak-learning-rate",
    "--weight-decay": "wd decay",
    "--batch-size": "b bs batch train-batch-size per-device-train-batch-size per-gpu-train-batch-size "
    "per-device-eval-batch-size",
    "--epochs": "epoch e n-epochs num-epochs num-train-epochs max-epochs max-iter",
    "--steps": "iters iterations max-steps num-steps total-steps n-steps",
    "--image-size": "imgsz img img-size input-size imsize resolution crop-size size sizes height",
    "--optimizer": "opt optim solver optimiser",
    "--schedule": "sched lr-scheduler lr-scheduler-type scheduler",
    "--warmup-steps": "warmup num-warmup-steps",
    "--workers": "j num-workers dataloader-num-workers data-workers nw",
    "--label-smoothing": "smoothing label-smoothing-factor",
    "--dropout": "drop drop-rate",
    "--drop-path": "drop-path-rate stochastic-depth",
    "--attention-dropout": "attn-drop attn-drop-rate",
    "--random-erasing": "reprob erasing",
    "--rand-augment": "aa auto-augment randaugment",
    "--flip": "hflip fliplr horizontal-flip",
    "--clip-norm": "clip-grad grad-clip max-grad-norm gradient-clip-val",
    "--polyak": "ema model-ema model-ema-decay ema-decay",
    "--layer-decay": "layerwise-decay llrd",
    "--freeze-layers": "freeze-blocks num-frozen-layers",
    "--out": "o output output-dir save-dir project outdir out-dir logdir workdir",
    "--data": "data-dir dataset dataset-name data-path train-dir train-data root d",
    "--start": "initial-checkpoint checkpoint weights init model-name-or-path ckpt",
    "--resume": "resume-from-checkpoint continue resume-from",
    "--seed": "random-state random-seed",
    "--precision": "dtype amp fp16 bf16 half amp-dtype mixed-precision",
    "--device": "gpu gpus cuda accelerator no-cuda",
    "--processes": "nproc-per-node num-gpus devices nproc n-jobs",
    "--patience": "early-stopping early-stopping-patience",
    "--splits.val-fraction": "val-split validation-split val-fraction val-size",
    "--splits.test-fraction": "test-split test-size test-fraction",
    "--cross-validate": "cv folds kfold k-fold",
    "--sweep": "lr-find auto-lr-find find-lr",
    "--top": "k topk top-k num-predictions",
    "--image-mean": "mean pixel-mean",
    "--image-std": "std pixel-std",
    "--neighbours": "n-neighbors neighbors num-neighbors knn-k",
    "--channels": "in-chans in-channels num-channels",
    "--pool": "global-pool pooling",
    "--model": "arch a m model-name architecture",
    "--check-images": "verify-images",
    "--json": "as-json format-json",
    "--to": "format target dialect",
    "--engine": "backend runtime",
    "--calibration": "calibration-data calib",
    "--num-classes": "nc classes num-labels nb-classes",
    "--images": "image source inputs",
    "--evaluate-every": "eval-steps eval-every val-interval eval-interval",
    "--checkpoint-every": "save-steps save-every save-interval save-period",
    "--log-every": "logging-steps log-interval",
}
OTHER_NAMES = {option: tuple(names.split()) for option, names in NAMES.items()}
"""Our options, and their names in timm, ultralytics, Hugging Face, scikit-learn and the original code."""

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
