"""Calls of public functions, for mypy alone: never run.

The wrong ones are marked. `warn_unused_ignores` is on, so a wrong call that mypy accepts is an error of
scripts/check.
"""

import vitkit


def right() -> None:
    """Call the functions that train as README and the documentation do."""
    vitkit.train("my_photos", recipe="photos", epochs=20, learning_rate=1e-3)
    vitkit.finetune("runs/digits", "my_photos", minutes=20, image_size=(224, 320), splits_val_fraction=0.2)
    vitkit.pretrain("my_photos", "mae", minutes=60, fewshot_data="labelled")
    vitkit.evaluate("runs/digits", "other_photos", split="test[:10%]", image_size=(224, 320))
    vitkit.evaluate_protocol("runs/digits", "imagenet-a", "imagenet-a", engine="torch", batch_size=8)
    vitkit.embed("runs/digits", "my_photos", "features.npy", num_heads=3)
    vitkit.convert("runs/digits", "digits.npz", to="official", head="keep")


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
