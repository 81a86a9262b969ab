"""Read the functions of jobs for the command line, and make public functions from dataclasses of options.

A module with a job computes, and so imports torch, for which help must not wait: `read_signature` reads the
function from its source, and the options of its verb follow from it.

Jobs that are not written as functions yet are functions of one value, their options, a frozen dataclass:
`from_options` makes the public function, whose parameters are the fields and whose Args are the texts below.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args, is_typeddict

from vitkit.jobs.options import JobOptions
from vitkit.listener import hushed

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")


def from_options(
    options: Callable[P, Options],
) -> Callable[[Callable[[Options], Result]], Callable[P, Result]]:
    """Turn a job, a function of its options, into the public function whose parameters are their fields.

    Args:
        options: a dataclass. The texts below its fields become the Args of the docstring, which is the job's.

    Returns:
        A decorator. The function has the name of the job without the "run_" that may stand before it.
    """

    def publish(job: Callable[[Options], Result]) -> Callable[P, Result]:
        def function(*args: P.args, **kwargs: P.kwargs) -> Result:
            return job(hush(options(*args, **kwargs)))

        _describe(function, job, options)
        return function

    return publish


def hush(options: Options) -> Options:
    """Have the listener of a job's options hear warnings alone, if the options say `quiet`."""
    if isinstance(options, JobOptions) and options.quiet:
        return replace(options, listener=hushed(options.listener, options.quiet))
    return options


def _describe(function: Callable[..., Any], job: Callable[..., Any], options: Callable[..., Any]) -> None:
    """Give a function the name of its job, the parameters of its options, and the docstring of both."""
    function.__name__ = function.__qualname__ = job.__name__.removeprefix("run_")
    function.__module__ = job.__module__
    parameters = inspect.signature(options).parameters.values()
    # Quiet and listener come last among their kind, as the least important; a signature must be in the order
    # of kinds.
    ordered = sorted(
        parameters, key=lambda parameter: (parameter.kind, parameter.name in ("quiet", "listener"))
    )
    result = inspect.signature(job).return_annotation
    function.__dict__["__signature__"] = inspect.Signature(ordered, return_annotation=result)
    function.__annotations__ = {"return": result}  # what typing.get_type_hints reads
    function.__doc__ = _with_arguments(job.__doc__ or "", [parameter.name for parameter in ordered], options)


def _with_arguments(text: str, names: Sequence[str], options: Any) -> str:
    """Put the texts of the fields into a docstring, before Returns and Raises.

    Args:
        text: the docstring of the job.
        names: the fields, in the order of the parameters.
        options: the dataclass.
    """
    texts = read_field_texts(options)
    lines = [
        textwrap.fill(f"    {name}: {texts[name]}", 108, subsequent_indent=" " * 8, break_on_hyphens=False)
        for name in names
        if name in texts
    ]
    head, heading, rest = re.split(
        r"(^(?:Returns|Raises):\n|\Z)", inspect.cleandoc(text), maxsplit=1, flags=re.MULTILINE
    )
    return "\n".join([head.rstrip(), "", "Args:", *lines, "", heading + rest]).rstrip() + "\n"


def read_field_texts(options: type) -> dict[str, str]:
    """Read the text below each field of a dataclass or TypedDict and of its base classes, from their source.

    Returns:
        The texts by the names of the fields; none where the source is missing.
    """
    texts = {}
    owners = [owner for owner in reversed(options.__mro__) if is_dataclass(owner)]
    if is_typeddict(options):  # it does not know its bases: they are those of its file whose keys it has
        named = vars(sys.modules[options.__module__]).values()
        keys = options.__annotations__.keys()
        owners = [kind for kind in named if is_typeddict(kind) and kind.__annotations__.keys() <= keys]
    for owner in owners:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        except OSError:
            return {}
        for statement, below in pairwise(getattr(tree.body[0], "body", [])):
            if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
                texts[ast.unparse(statement.target)] = " ".join(ast.literal_eval(below.value).split())
    return texts


def read_signature(module: str, name: str) -> Callable[..., Any]:
    """Make a function that has the parameters and the docstring of another, and does nothing.

    It imports only what the types and defaults of the parameters name, and so no torch; a type in quotes, of
    a parameter that is no option, is not looked at.

    Args:
        module: the module of the function.
        name: the function.
    """
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    function.body, function.decorator_list, function.returns = function.body[:1], [], None  # the docstring
    needed = {node.id for node in ast.walk(function.args) if isinstance(node, ast.Name)}
    before: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in needed]
            before += [node] if node.names else []
        elif isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & needed:
            before.append(node)
    namespace: dict[str, Any] = {}
    exec(compile(ast.Module([*before, function], []), spec.origin, "exec"), namespace)
    made: Callable[..., Any] = namespace[name]
    return made


def read_argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """Read the texts of the parameters from the Args of a docstring, by their names.

    A TypedDict of further options by name explains its keys itself.
    """
    _, _, below = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", below, maxsplit=1)[0]
    entries = re.split(r"^ {4}(?=\S)", section, flags=re.MULTILINE)[1:]
    texts: dict[str, str] = {}
    for names, text in (entry.split(": ", 1) for entry in entries):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            texts |= read_field_texts(get_args(parameter.annotation)[0])
    return texts


def summary_of(function: object) -> str:
    """Return what a docstring says before its sections, without the marks of code."""
    text = re.split(r"\n\n(?=Args:|Returns:|Raises:|>>> )", inspect.getdoc(function) or "", maxsplit=1)[0]
    return text.replace("`", "")
