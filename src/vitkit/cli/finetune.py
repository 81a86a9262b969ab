"""`vitkit finetune`: `vitkit train` from weights that are there already."""

from vitkit.cli import train


def main(arguments: list[str]) -> None:
    """Parse the command line and fine-tune."""
    train.run_verb(arguments, "finetune")
