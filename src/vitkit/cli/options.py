"""The options that verbs have in common, and how a command line becomes the options of a job."""

import gc
import inspect
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, get_args

from vitkit.cli import verb_options
from vitkit.cli.console import BesideData, TerminalListener, download, print_result
from vitkit.cli.help import ALL, ASKING, PAGES, VERBS, HelpPage, usage, write_help
from vitkit.cli.verb_options import CSV, JSON, Option, describe, read
from vitkit.data.paths import existing_path
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_names
from vitkit.models.zoo import model_config
from vitkit.runs.folder import is_checkpoint, kind_of, refuse_taken, require_runs
from vitkit.signals import stop_signals
from vitkit.weights.published import missing_checkpoint

Describe: TypeAlias = Callable[[Mapping[str, Any], Sequence[str]], Sequence[Option]]
"""A function that describes options of training, given a verb's own and its command line."""


class Verb:
    """A job on the command line: the parameters of its function are the options.

    Args:
        name: the verb.
        job: its module below vitkit and its function, "jobs.embed:embed"; it is imported when it is called,
            and so neither for help nor for a misspelt option.
        own: options that the verb itself reads; they come first in the help, but for --json.
        of_training: describes the options of training that the verb takes too, given its own and the command
            line. Of two of the same name, the verb's own is meant.
        main: takes the command line in place of `run`, which parses it, calls the job and prints its result.
    """

    def __init__(
        self,
        name: str,
        job: str,
        *own: Option,
        of_training: Describe = lambda *_: (),
        main: Callable[[list[str]], None] | None = None,
    ) -> None:
        module, _, function = job.partition(":")
        self.name, self.module, self.function = name, f"vitkit.{module}", function
        self.main, self.of_training = main or self.run, of_training
        self.signature = verb_options.read_signature(self.module, function)
        options = (*own, *describe(self.signature))
        self.options = tuple(sorted(options, key=lambda option: option.path == "json"))

    def run(self, arguments: list[str], given: Mapping[str, Any] | None = None) -> None:
        """Call the job with the options that are given, and print its result; left out, they are read from
        the command line."""
        given = self.parse(arguments) if given is None else given
        # The record of a study has the line that continues it.
        of_study = "command" in inspect.signature(self.signature).parameters
        line = {"command": shlex.join(["vitkit", self.name, *arguments])} if of_study else {}
        print_result(self.call(given, **line), given)

    def only(self, *names: str) -> Iterator[Option]:
        """Yield the options of some parameters, by name."""
        return (option for option in self.options if option.path in names and not option.is_positional)

    def parse(self, arguments: list[str]) -> dict[str, Any]:
        """Return the values that are given, by the path of their parameter.

        Raises:
            SystemExit, WrongCommandLine: as `parse_given`.
            VitkitError: they name weights or images that are not there, or a place to write that is taken.
        """
        return self.parse_with_training(arguments)[0]

    def parse_with_training(self, arguments: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the values that are given, and those of options of training; it raises as `parse`."""
        options = self.options
        if not {*ASKING} & {*arguments}:
            options = (*options, *self.of_training(read(arguments, options).given, arguments))
        given = parse_given(self.signature, options, arguments, self.name)
        own = {option.path: given.pop(option.path) for option in self.options if option.path in given}
        if own.get("json") and own.get("csv"):
            raise VitkitError("--json and --csv are two forms of the same: give one of them.")
        require_checkpoints(*self._weights(own))
        for name in own.get("models", ()):
            if is_checkpoint(name):
                require_checkpoints(name)
            else:
                model_config(name)
        if any(option.name == "OUT" and option.is_required for option in self.options):
            refuse_taken(Path(own["out"]))
        require_images(*(own.get(option.path) for option in self.options if option.names_images))
        if "folder" in own:
            require_runs(own["folder"])
        if isinstance(own.get("images"), tuple):  # files, of which standard input may name more
            own["images"] = read_names(own["images"])
        return own, given

    def call(self, given: Mapping[str, Any], *positional: Any, **more: Any) -> Any:
        """Fetch the weights that are given by address or name, and call the job, which the terminal hears.

        Args:
            given: the values of options.
            positional, more: further arguments.

        Raises:
            VitkitError: as the job, with the names of options for those of parameters.
        """
        with importing():
            job = getattr(import_module(self.module), self.function)
        download(*self._weights(given))
        return call(partial(job, *positional, **more), given, self.options)

    def _weights(self, given: Mapping[str, Any]) -> list[str]:
        """Return the paths, addresses and names of weights that are given."""
        values = [as_names(given.get(option.path, ())) for option in self.options if option.names_weights]
        return list(dict.fromkeys(chain.from_iterable(values)))


def home_of(name: str) -> Any:
    """Return what runs a verb: it has a function `main`."""
    module, _, attribute = VERBS[name][1].partition(":")
    if module.startswith("cli."):
        return getattr(import_module(f"vitkit.{module}"), attribute)
    return Verb(name, VERBS[name][1], CSV, JSON)


def parse_given(job: object, options: Sequence[Option], arguments: list[str], verb: str) -> dict[str, Any]:
    """Return the values of the options that are given, by the path of their field.

    Args:
        job: its docstring says in the help what the verb does.
        options: all options of the verb.
        arguments: what follows the verb.
        verb: the name in the help.

    Raises:
        SystemExit: the arguments ask for help, which is printed.
        WrongCommandLine: they cannot be read.
    """
    page = PAGES.get(verb, HelpPage("", ""))
    if {*ASKING} & {*arguments}:
        print(write_help(verb, job, options, page, whole=ALL in arguments))
        raise SystemExit(0)
    reading = read(arguments, options)
    return verb_options.parse_words(verb, reading, options, partial(usage, verb, options, page))


# Files, folders and models that are not there are refused before torch is imported, which takes seconds. Jobs
# refuse them too, with the same messages, as they are also called from Python.


def require_checkpoints(*paths: str | Path) -> None:
    """Refuse weights that are not there; an address is looked at when it is fetched.

    Raises:
        VitkitError: there is no such file or folder.
    """
    for path in paths:
        if str(path) and kind_of(path).kind == "nothing":
            raise missing_checkpoint(Path(path))


def require_images(*paths: str | Path | None) -> None:
    """Refuse images that are not there; an option that is left out refuses nothing.

    Raises:
        VitkitError: there is no such file or folder.
    """
    for path in paths:
        if path and str(path) != "digits":
            existing_path(str(path))


def call(function: Callable[..., Any], given: Mapping[str, Any], options: Sequence[Option]) -> Any:
    """Call a function with the options that are given; the terminal hears it.

    Args:
        function: the function.
        given: values by the paths of its parameters and of the fields in them; others are left alone.
        options: all options, by which an error names what is wrong.

    Raises:
        VitkitError: as the function, with the names of options for those of parameters.
    """
    positional: tuple[Any, ...] = ()
    hints: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional = given.get(name, ())
        elif parameter.kind is parameter.VAR_KEYWORD:
            hints |= get_args(parameter.annotation)[0].__annotations__  # of Unpack
        else:
            hints[name] = parameter.annotation
    named = {name: given[name] for name in hints if name in given}
    listener = BesideData() if given.get("json") or given.get("csv") else TerminalListener()
    named |= {name: listener for name in hints if name == "listener"}
    for section in {path.partition(".")[0] for path in given if "." in path} & {*hints}:
        within = {path.partition(".")[2]: given[path] for path in given if path.startswith(f"{section}.")}
        named[section] = verb_options.value_type(hints[section])[0](**within)
    with in_options(options, given):
        return function(*positional, **named)


@contextmanager
def in_options(options: Sequence[Option], given: Mapping[str, Any]) -> Iterator[None]:
    """Have an error name the options of the command line, where it names the fields that they fill.

    Args:
        options: all options of the verb.
        given: the values that are given, by the paths of their fields.
    """
    try:
        yield
    except VitkitError as error:
        # --seed and --splits.seed are options of fields of one name: the message is on the one given.
        ordered = sorted(options, key=lambda option: option.path in given)
        names = {option.field: option.name for option in ordered if not option.is_positional}
        message = re.sub(
            # A name with an underscore anywhere, and any name that begins the sentence.
            r"^[a-z]\w*(?=:| (?:is|are|has|must|and)\b)|(?<![\w.-])[a-z0-9]+(?:_[a-z0-9]+)+\b",
            # A word that names a file or folder here stands for that.
            lambda match: match[0] if Path(match[0]).exists() else names.get(match[0], match[0]),
            str(error),
        )
        error.args = (message, *error.args[1:])  # it keeps its class and its exit code
        raise


@contextmanager
def importing() -> Iterator[None]:
    """Finish imports before a signal is answered: an import that is broken off leaves half a module behind.

    A verb imports its job inside such a block once its command line is understood, so that neither its help
    nor the message on a misspelt option waits for torch.
    """
    # The first import of torch takes seconds in which nothing else is to be seen.
    first = "torch" not in sys.modules
    waiting = TerminalListener().progress("importing libraries") if first else nullcontext()
    with stop_signals() as stop, stop.held(), waiting:
        if first:  # to look for garbage meanwhile would take a sixth of torch's time
            gc.disable()
        try:
            yield
        finally:
            if first:  # and later a look at all that was imported
                gc.freeze()
                gc.enable()


def read_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the names of files and folders; a "-" stands for the names on standard input.

    Raises:
        VitkitError: standard input is closed, or nothing is named on it.
    """
    if "-" in sources and sys.stdin is None:
        raise VitkitError("Standard input is closed, so no paths can be read from it.")
    names: list[str] = []
    for source in sources:
        lines = getattr(sys.stdin, "buffer", sys.stdin) if source == "-" else ()
        listed = (os.fsdecode(line).strip() for line in lines)  # they need not be UTF-8
        names += filter(None, listed) if source == "-" else [source]
    if sources and not names:
        raise VitkitError("The list of images on standard input is empty.")
    return tuple(names)
