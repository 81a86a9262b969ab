"""Read the functions of jobs for the command line.

A module with a job computes, and so imports torch, for which help must not wait: `read_signature` reads the
function from its source, and the options of its verb follow from it.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import is_dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, is_typeddict


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
