"""`vitkit finetune`: `vitkit train` from weights that are there already."""

from functools import partial

from vitkit.cli.train import run_verb

main = partial(run_verb, verb="finetune")
