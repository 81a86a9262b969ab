"""Wrong calls of public functions, for mypy alone: never run.

`warn_unused_ignores` is on, so a wrong call that mypy accepts is an error of
scripts/check.
"""

import vitkit


def wrong() -> None:
    """Misspell a name, take another library's name, and give values of another type."""
    vitkit.train("my_photos", stepps=3)  # type: ignore[call-arg]
    vitkit.train("my_photos", epochs="many")  # type: ignore[arg-type]
    vitkit.train("my_photos", optimizer="adamax")  # type: ignore[arg-type]
    vitkit.finetune("start", "my_photos", runs="three")  # type: ignore[arg-type]
    vitkit.pretrain("my_photos", "rotation")  # type: ignore[arg-type]
    vitkit.evaluate("runs/digits", dta="other_photos")  # type: ignore[call-arg]
    vitkit.evaluate_protocol("runs/digits", "imagenet-a", "imagenet-b")  # type: ignore[arg-type]
    vitkit.Predictor("runs/digits", divice="cpu")  # type: ignore[call-arg]
    vitkit.fewshot("runs/digits", "my_photos", shots="1,5")  # type: ignore[arg-type]
    vitkit.convert("runs/digits", "digits.npz", to="tinm")  # type: ignore[arg-type]
    vitkit.advise("my_photos", second=10)  # type: ignore[call-arg]
