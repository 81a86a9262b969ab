"""`vitkit pretrain`: `vitkit train` on images without labels."""

from functools import partial

from vitkit.cli.train import run_verb

main = partial(run_verb, verb="pretrain")
