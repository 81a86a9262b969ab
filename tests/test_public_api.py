"""What `vitkit` offers, and that looking at it is cheap."""

import gc
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import vitkit
from vitkit.cli.help import VERBS
from vitkit.cli.main import STARTED, run
from vitkit.cli.options import home_of
from vitkit.cli.train import FIRST
from vitkit.cli.verb_options import read_argument_texts, read_field_texts
from vitkit.config import IN_PYTHON_ALONE
from vitkit.jobs.options import Job, ThenOptions


def test_every_public_name_is_there_and_documented() -> None:
    """docs/api.md lists them: a change is deliberate."""
    assert set(vitkit.__all__) == set(dir(vitkit))
    assert [name for name in {*vitkit.__all__} - {"__version__"} if not getattr(vitkit, name).__doc__] == []


def test_every_public_name_is_promised_or_marked_as_unstable() -> None:
    page = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (promised|unstable) \|.*\| (.*) \|$", page, re.MULTILINE)
    promised, unstable = ({*re.findall(r"`(\w+)`", dict(rows)[kind])} for kind in ("promised", "unstable"))
    assert promised | unstable == {*vitkit.__all__} - {"__version__"} and not promised & unstable
    texts = {name: inspect.getdoc(getattr(vitkit, name)) or "" for name in promised | unstable}
    assert {name for name in texts if texts[name].splitlines()[-1].startswith("Unstable: ")} == unstable


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'modle'"):
        _ = vitkit.modle


LOOKING = "torch numpy PIL rich matplotlib"
DATA, FORMATS = "check loader sources repeats workers", "timm huggingface official torchvision"
USE = """
import sys
import numpy as np
import torch
import vitkit
folder = sys.argv[1]
torch.manual_seed(0)
first = vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=8).state_dict()
torch.manual_seed(0)
again = vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=8).state_dict()
assert all(torch.equal(first[name], again[name]) for name in first)  # an import draws no random numbers
vitkit.save_model(vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=8), folder)
vitkit.Predictor(folder)(np.zeros((8, 8, 3), np.uint8))
vitkit.load_model(folder)
vitkit.evaluate
vitkit.finetune
vitkit.train
"""
UNNEEDED = {
    "import vitkit": LOOKING,
    "import vitkit; vitkit.starts()": LOOKING,
    "from vitkit.cli.main import run; run(['--help'])": LOOKING,
    "import vitkit.jobs.predict": " ".join(
        [f"vitkit.data.{name}" for name in DATA.split()]
        + [f"vitkit.weights.formats.{name}" for name in FORMATS.split()]
    ),
    USE: "matplotlib jinja2 sklearn pyarrow rich IPython",
}
"""The modules that each piece of code must not wait for."""


@pytest.mark.parametrize("code", UNNEEDED)
def test_modules_that_are_not_needed_are_not_imported(code: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules, file=sys.stderr)"]
    result = subprocess.run([*command, str(tmp_path / "model")], capture_output=True, text=True, check=True)
    assert not {*UNNEEDED[code].split()} & {*result.stderr.split()}


OPTIONS = {Job: "train", ThenOptions: "pretrain", vitkit.SeriesOptions: "train"}
"""The dataclasses of options, and the verb that reads them."""


def plain(text: str) -> str:
    """The letters of a text alone, without the breaks of lines."""
    return "".join(text.split())


def test_the_help_of_a_verb_has_every_field_and_its_text_which_is_not_written_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cli = Path(vitkit.__file__).parent / "cli"
    source = plain("\n".join(path.read_text() for path in cli.glob("*.py")))
    for options, verb in OPTIONS.items():
        assert run([verb, "--help-all"]) == 0
        shown = plain(capsys.readouterr().out)
        texts = read_field_texts(options)
        assert "listener" not in shown
        for field in fields(options):
            assert plain(texts[field.name]) not in source, field.name
            if field.name != "listener" and field.metadata != IN_PYTHON_ALONE:
                assert plain(texts[field.name]) in shown, field.name


def parameters_of(function: Callable[..., Any]) -> set[str]:
    """The names of its parameters, and of the keys of a TypedDict of further ones."""
    names: set[str] = set()
    for name, parameter in inspect.signature(function).parameters.items():
        is_typed = parameter.kind is parameter.VAR_KEYWORD
        names |= {*get_type_hints(get_args(parameter.annotation)[0])} if is_typed else {name}
    return names


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - FIRST.keys()))
def test_the_options_of_a_verb_are_the_parameters_of_its_function_and_each_is_read(verb: str) -> None:
    """An option is a parameter of a job that the verb calls, or the verb itself reads it by its name."""
    made = home_of(verb)
    source, beside = inspect.getsource(made.main), vars(inspect.getmodule(made.main))
    jobs = [beside[name] for name in re.findall(r"\b([A-Z_]+)\.(?:call|run|parse)", source)]
    taken = {name for job in (made, *jobs) for name in parameters_of(job.signature)}
    taken |= {"csv", "json"} if re.search(r"print_result|\.run\(", source) else set()
    taken |= {"processes"} if verb in STARTED else set()
    taken |= {*re.findall(r'"(?:--)?(\w+)"', source)}
    assert {option.path.partition(".")[0] for option in made.options} <= taken
    function = getattr(importlib.import_module(made.module), made.function)
    parameters = inspect.signature(function).parameters
    assert list(inspect.signature(made.signature).parameters) == list(parameters)
    assert made.signature.__doc__ == function.__doc__
    texts = read_argument_texts(function)
    assert set(texts) >= parameters.keys() and all(texts.values())
    options = {option.path.partition(".")[0] for option in made.options}
    hidden = {"command", "listener", "load", "machine", "model"} - ({"model"} if verb == "inspect" else set())
    assert options >= texts.keys() - hidden - ({"trained", "quiet"} if verb == "report" else set())


def test_functions_of_jobs_say_what_they_return() -> None:
    """`typing.get_type_hints` is what pages of reference and editors read."""
    for function in (vitkit.fewshot, vitkit.evaluate, vitkit.vtab, vitkit.finetune):
        result = get_type_hints(function)["return"]
        assert result == inspect.signature(function).return_annotation
        assert all(isinstance(each, type) for each in get_args(result) or [result])


@pytest.mark.parametrize("on", [True, False])
def test_an_import_leaves_the_garbage_collector_as_it_was(on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    during: list[bool] = []

    def imported(home: str) -> object:
        during.append(gc.isenabled())
        if home != "vitkit.jobs.train":
            raise ImportError(home)
        return importlib.import_module(home)

    monkeypatch.setattr("vitkit.import_module", imported)
    try:
        (gc.enable if on else gc.disable)()
        assert callable(vitkit.train)
        with pytest.raises(ImportError):
            _ = vitkit.bench
        assert gc.isenabled() == on and during == [False, False]
    finally:
        gc.enable()
