"""A command that fails says so in one message, as JSON too, and never with a traceback."""

import json
import os
import signal
from pathlib import Path

import pytest

import vitkit
from tests.helpers.cli import Capture, Cli
from tests.helpers.hostile import HOSTILE, OBEYED, SHOWN
from vitkit.cli import console
from vitkit.cli.main import run

pytestmark = pytest.mark.usefixtures("inside")


def test_json_is_json_whatever_the_values(capsys: Capture) -> None:
    console.print_json({"a": float("nan"), "b": HOSTILE})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": HOSTILE, "not_finite": ["a"]}
    assert not any(character in text for character in OBEYED)


def test_json_has_one_way_out() -> None:
    """The console's own method knows nothing of encodings, of NaN and of control characters."""
    for path in Path(vitkit.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert ".out.print_json" not in text and "print(json." not in text, path


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("data check x --json --no-such-option", "--no-such-option"),
        ("completion bash --json --no-such-option", "--no-such-option"),
        ("card --json", "CHECKPOINT is missing"),
        ("evaluate m --json --split", "--split needs a value: --split SPLIT"),
        ("cards --json", "No command is named 'cards'"),
        ("card x\0 --json", "a character that no option has"),
        ("predict m x --json --topp 3", "vitkit predict has no option --topp. Did you mean --top?"),
    ],
)
def test_wrong_command_lines_are_told_as_json_too(line: str, sentence: str, cli: Cli) -> None:
    """Also where a verb has no --json: whoever asks for it reads the answer as that."""
    printed = cli(line.split(" "), 2)
    record = json.loads(printed.out)
    assert record.keys() == {"error", "exit_code"} and record["exit_code"] == 2
    assert sentence in record["error"]
    assert printed.err == f"vitkit: {record['error']}\n".replace("\0", r"\x00")  # in one style, and no box


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (vitkit.VitkitError(HOSTILE + "\nsecond line"), 1, f"{HOSTILE}\nsecond line"),
        (MemoryError(), 1, "the memory of this machine"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), 1, "the memory of"),
        (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 1, "invalid start byte"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device. What was finished"),
        (OSError(30, "Read-only file system", "/x"), 1, "/x: Read-only file system. Correct this"),
        (OSError(13, "Permission denied", "/x\x1b"), 1, "/x\x1b: Permission denied. Correct this"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (signal.SIGTERM, 143, "SIGTERM"),
        (RuntimeError("shapes differ"), 0, "RuntimeError: shapes differ"),
        (ZeroDivisionError("a bug"), 0, "ZeroDivisionError: a bug"),
    ],
)
def test_a_command_that_fails_says_so_in_one_message_and_as_json(
    error: BaseException | int, code: int, sentence: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug keeps its traceback."""

    def main(arguments: list[str]) -> None:
        console.print_json({"image": "first.png"}, indent=None)
        if isinstance(error, int):
            os.kill(os.getpid(), error)
        else:
            raise error

    monkeypatch.setattr("vitkit.cli.verbs.STARTS.main", main)
    for line in (["starts", "--json"], ["starts"])[: 1 + (code != 143)]:  # then it ignores signals
        if code:
            assert run(line) == code
        else:
            with pytest.raises((RuntimeError, ZeroDivisionError)):
                run(line)
        printed = capsys.readouterr()
        first, *last = map(json.loads, printed.out.splitlines())
        assert first == {"image": "first.png"} and len(last) == len(line) - 1
        assert all(sentence in record["error"] and record["exit_code"] == (code or 1) for record in last)
        shown = sentence.replace(HOSTILE, SHOWN).replace("\x1b", r"\x1b")
        assert not code or (printed.err.startswith("vitkit: ") and shown in printed.err)


REFUSED = {
    1: {
        "models vit-b/160": "Near it: ViT-B/16",
        "data check ~nobody_of_this_name/x": "~nobody_of_this_name",
        "predict model images --device mps": "'mps' cannot be used",
        "predict images/a/0.png": "Which model, and which images?",  # one file alone
        "ablate": "vitkit ablate RECIPE",
        "ablate --vary pool=mean digits": "vitkit ablate RECIPE",
        "ablate --vary position=none": "Which recipe? It stands first",
        "ablate digits --vary pool=mean --runs 3": "give --seeds and --rates",
        "scale digits --runs 3": "give --seeds, without --runs",
        "scale digits --budget 1m --steps 5": "give it without --steps",
        "scale digits --along size --start runs/x": "No checkpoint at runs/x",
        "pretrain": "Give a folder or file first",
        "pretrain digits --task classification": "needs no labels",
        "pretrain digits --recipe mae --objective simmim": "learns mae",
        "pretrain digits --recipe photos": "needs no labels",
        "train --data digits --model BiT-R1-1x0.5 --optimizer muon": "muon updates the matrices of a "
        "Transformer's blocks, and BiT-R1-1x0.5 has none",
        "train --recipe digits --optimizer adam": "adamw",
        "train --recipe digits --threads 0": "threads is from 1 to 4,096, found 0",
        "advise digits --threads 0": "threads is from 1 to 4,096, found 0",
        "train --recipe digits --beta1 1.5": "beta1",
        "train --recipe digits --representation-size -3": "representation_size",
        "train --data images --epochs 1e308": "epochs",
        "train --data images --threads 1000000000000000000000000000000": "--threads: the number 10",
        "train --data images --steps 1000000000000000000000": "steps",
        "train --data images --model ViT-100000x1x1/8": "does not fit into memory",
        "train --data images --model ViT-8x1000000000x2/4": "depth is from 1 to 1,000",
        "train --data images --batch-size 1000000000000": "fit into memory",
        "train --data images --splits.val-fraction nan": "--splits.val-fraction: expected a finite number",
        "train --data images --memory-gib inf": "--memory-gib: expected a finite number",
        "train --data images --mixup nan": "--mixup: expected a finite number",
        "train --resume nowhere": "no run folder",
        "train --resume x --out y": "--out",
        "finetune google/vit-base-patch16-224 --data digits": "hf:google/vit-base-patch16-224",
        "train": "Which images? Give --data: digits (built in), a folder",
        "train --data images --task simmim --cross-validate 2": "leave --cross-validate out",
        "train --data images --recipe digit": "Did you mean 'digits'?",
        "evaluate model --device gpu9": "The device 'cuda9' cannot be used",
        "fewshot model --data digits --shots 0,5": "shots of a few-shot evaluation are 1 or more, found 0, 5",
        "fewshot model --data digits --seeds 0": "--seeds is at least 1",
        "fewshot model --data digits --l2 0": "l2 is a number above 0",
        "fewshot model --data digits --l2 nan": "l2: expected a finite number",
        "fewshot --data digits": "Which model?",
        "embed model images --processes 2": "--on ray",
        "embed model images --out images/a/0.png": "is a file",
        "embed model images --out images/a/all.NPY": "would be listed as images by the next command",
        "predict model images --out guesses.Parquet": "--out takes a folder",
        "predict model images --out guesses --json": "leave --json and --csv out",
        "pretrain digits --plan": "belong to --then",
        "pretrain digits --then digits --pretrainings 0": "pretrainings is at least 1",
        "pretrain digits --labels 5": "give labelled images with it",
        "pretrain digits --then digits --runs 2": "chooses the runs by itself",
        "pretrain digits --then digits --minutes 1": "needs --out",
        "cost ViT-Bx/16": "Did you mean",
        "cost": "Name a model",
        "cost ViT-B/16 --num-heads 3": "--num-heads is for a checkpoint",
        "cost ViT-B/16 --epochs 3": "--epochs and --images together",
        "cost ViT-B/16 --epochs 0 --images 5": "above 0",
        "cost ViT-B/16 --batch-size 0": "--batch-size is at least 1",
        "cost ViT-1000000000x1000000000x1/16": "width is from 1 to 1,048,576",
        "cost BiT-R50x99999999999": "width_factor is at most 1,024",
        "cost ViT-B/16 --utilization 40": "fraction above 0",
    },
    2: {
        "train --recipe=digits --recipe=photos": "given twice",
        "scale --along data": "DATA is missing: images",
        "scale  --plan": "DATA is missing: images",
        "data show digits --runs 2": "vitkit data show has no option --runs",
        "evaluate model --subset=0.1": "has no option --subset. It is a part of the images",
        # The words of timm, ultralytics, Hugging Face and scikit-learn; misspelt options; values.
        "train -b 8": "vitkit train has no option -b. Here it is --batch-size.",
        "train --pretrained --data digits": "no option --pretrained. Trained weights stand first:",
        "predict --source x": "has no option --source. IMAGE is given without an option.",
        "train --warmup-epochs 5": "is warmed up for a number of steps: --warmup-steps.",
        "train --data digits --lr 0.001 --batch 32 --imgsz 224 --epochs x --pretrained": "has no option "
        "--lr. Here it is --learning-rate. vitkit train has no option --batch. Here it is --batch-size. "
        "vitkit train has no option --imgsz. Here it is --image-size. vitkit train has no option "
        "--pretrained. Trained weights stand first: vitkit finetune START DATA; vitkit starts lists them. "
        "--epochs is a number, found x.",
        "ablate digits --vary pool=mean --epochz 3": "Did you mean --epochs?",
        "train --task clasification": "found clasification. Did you mean classification?",
        "fewshot m --data digits --shots 1,x": "--shots is a whole number or several with commas",
        "train --data digits --image-size 64,x": "height and width such as 224,320, found 64,x.",
        "train --data digits --crop-area 1": "--crop-area takes 2 numbers, found 1 in 1.",
        "train --steps many": "--steps is a whole number, found many.",
        "predict m x --top": "--top needs a value: --top NUMBER.",
        "predict m x --json=1": "--json is a switch: give --json or --no-json, without a value.",
        "predict": "MODEL is missing: a run folder, any checkpoint that vitkit convert reads",
        "evaluate m epochs=3": "Options are written with two hyphens: --epochs 3",
        "evaluate m n o": "no further argument, found o. Usage: vitkit evaluate MODEL [DATA] [OPTIONS]",
        "finetune weights photos more": "Usage: vitkit finetune [START] [DATA] [OPTIONS]",
        "export m x --format tflite": "--format is one of openvino, onnx, found tflite.",
        "reproduce table80": "ITEM is one of fig2, ",
        "trian": "No command is named 'trian'. Did you mean 'train'?",
        "frobnicate": "No command is named 'frobnicate'. Known: advise, train, finetune, ",
        "val": "No command is named 'val'. Here it is 'evaluate'.",
        "data": "After 'vitkit data' comes 'check PATH' or 'show PATH', found nothing.",
    },
}
"""Command lines, by the code with which they end, and words of what is said."""


def test_what_cannot_be_meant_is_refused_in_a_sentence(tmp_path: Path, cli: Cli) -> None:
    before = {*tmp_path.rglob("*")}
    for code, lines in REFUSED.items():
        for line, message in lines.items():
            assert message in cli(line.split(" "), code).text, line
    assert cli(["help", "train"]).out.startswith("usage: vitkit train")
    assert {*tmp_path.rglob("*")} == before
