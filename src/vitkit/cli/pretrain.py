"""`vitkit pretrain`: `vitkit train` on images without labels."""

from vitkit.cli import train


def main(arguments: list[str]) -> None:
    """Parse the command line and pre-train."""
    train.run_verb(arguments, "pretrain")
