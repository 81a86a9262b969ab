"""A command line that is wrong is told in one style, with what was probably meant."""

import pytest

from tests.helpers.verbs import COMMANDS, options_of
from vitkit.cli.main import run
from vitkit.other_names import MEANT, OTHER_NAMES


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is said of a command line that cannot be read."""
    assert run(line.split()) == 2, line
    captured = capsys.readouterr()
    assert not captured.out and captured.err.startswith("vitkit: ") and captured.err.count("\n") == 1
    return captured.err.removeprefix("vitkit: ").rstrip()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        # The words of timm, ultralytics, Hugging Face and scikit-learn.
        ("train --data digits --lr 0.1", "vitkit train has no option --lr. Here it is --learning-rate."),
        ("train --batch 8", "Here it is --batch-size."),
        ("train -b 8", "vitkit train has no option -b. Here it is --batch-size."),
        ("train --num_train_epochs 8", "Here it is --epochs."),
        ("train --imgsz 224", "Here it is --image-size."),
        ("finetune START --data digits --output_dir x", "Here it is --out."),
        ("train --val-split 0.1", "Here it is --splits.val-fraction."),
        ("train --pretrained --data digits", "vitkit finetune START DATA"),
        ("evaluate m --n-jobs 4", "Here it is --processes."),
        ("predict m x --topk 3", "Here it is --top."),
        ("predict --source x", "vitkit predict has no option --source. IMAGE is given without an option."),
        ("predict --model m x", "vitkit predict has no option --model. MODEL is given without an option."),
        ("convert m --output x", "OUT is given without an option."),
        ("train --warmup-epochs 5", "for a number of steps: --warmup-steps."),
        ("train --accum-steps 5", "in parts of --micro-batch-size images."),
        # All at once.
        (
            "train --data digits --lr 0.001 --batch 32 --imgsz 224 --epochs x --pretrained",
            "vitkit train has no options --lr, --batch, --imgsz. Here they are --learning-rate, "
            "--batch-size, --image-size. It has no option --pretrained. Trained weights stand first: "
            "vitkit finetune START DATA; vitkit starts lists them. --epochs is a number, found x.",
        ),
        # Misspelt: of the verb that was called, with the options of training that a study takes too.
        ("train --epochz 3", "Did you mean --epochs?"),
        ("train --recepie digits", "Did you mean --recipe?"),
        ("train --fraction 3", "vitkit train has no option --fraction."),
        (
            "ablate digits --vary pool=mean --epochz 3",
            "vitkit ablate has no option --epochz. Did you mean --epo",
        ),
        ("ablate digits --vary pool=mean --fixd-rate", "no option --fixd-rate. Did you mean --fixed-rate?"),
        ("scale digits --bugdet 3m", "vitkit scale has no option --bugdet. Did you mean --budget?"),
        ("scale digits --lr 3", "vitkit scale has no option --lr. Here it is --learning-rate."),
        (
            "predict m x --topp 3 --jason",
            "--top? vitkit predict has no option --jason. Did you mean --json?",
        ),
        # Values.
        ("train --data digits --batch-size x", "--batch-size is a whole number, found x."),
        ("train --data digits --dropout x", "--dropout is a number, found x."),
        ("train --task clasification", "Did you mean classification?"),
        (
            "fewshot m --data digits --shots 1,x",
            "--shots is a whole number or several with commas",
        ),
        (
            "fewshot m --data digits --methods ridge,svm",
            "--methods is one of ridge, knn, logistic, found",
        ),
        ("train --data digits --image-size 64,x", "--image-size is a whole number, or height and width"),
        ("train --data digits --crop-area 1", "--crop-area takes 2 numbers, found 1 in 1."),
        ("predict m x --top", "--top needs a value: --top NUMBER."),
        ("predict m x --top --csv", "--top needs a value: --top NUMBER."),
        ("predict m x --json=1", "--json is a switch: give --json or --no-json, without a value."),
        # Words.
        ("predict", "MODEL is missing: a run folder"),
        ("evaluate --data digits", "Usage: vitkit evaluate MODEL [DATA] [OPTIONS]"),
        ("convert m", "OUT is missing: file or folder to write"),
        ("report", "RUN is missing"),
        ("evaluate m epochs=3", "Options are written with two hyphens: --epochs 3"),
        ("evaluate m n o", "vitkit evaluate takes no further argument, found o."),
        ("reproduce table80", "Did you mean table8?"),
        ("trian", "no command is named 'trian'"),
        ("data", "After 'vitkit data' comes 'check PATH' or 'show PATH', found nothing."),
        ("finetune weights photos more", "vitkit finetune takes no further argument, found more."),
        ("train my photos", "vitkit train takes no further argument, found photos."),
        ("bench ViT-Ti/16 --sizes 32", "vitkit bench has no option --sizes. Here it is --image-size."),
        ("export m x --format tflite", "--format is one of openvino, onnx, found tflite."),
        ("val", "no command is named 'val'. Here it is 'evaluate'."),
    ],
)
def test_what_is_wrong_is_told_with_what_was_meant(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(line, capsys)


def test_the_words_of_others_lead_to_options_that_are_there() -> None:
    there = {name for verb in COMMANDS for option in options_of(verb) for name in option.names}
    assert set(OTHER_NAMES) <= there
    others = [name for names in OTHER_NAMES.values() for name in names]
    assert sorted(others) == sorted(set(others))
    # An option of ours by that name goes first, where the verb has it.
    assert not {f"--{name}" for name in MEANT} & {"--data", "--start", "--model"}
