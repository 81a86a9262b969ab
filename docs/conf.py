"""Sphinx's settings.

`scripts/docs` builds the site from the folder above this one, so that links lead where they lead in the
repository.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import vitkit

ROOT = Path(__file__).parents[1]
project = "vitkit"
author = "The vitkit authors"
release = vitkit.__version__
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**.md"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

myst_heading_anchors = 4  # the anchors of headings that a code host makes too
napoleon_use_param = False  # parameters that are described together stay together
default_role = "code"  # docstrings are written with single backticks
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"vitkit {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_show_search_summary = False  # it would fetch the pages, which a browser refuses for files
pygments_style = "default"


def add_what_a_code_host_does_not_show(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn the comments of the front page into tables of contents, and the names of the API into entries."""
    if name == root_doc:
        source[0] = re.sub(r"<!-- pages: (.*?) = (.*?) -->", toctree, source[0])
    elif name == "docs/api":
        source[0] = re.sub(r"^- `vitkit\.(\w+)`$", entry, source[0], flags=re.MULTILINE)


def toctree(comment: re.Match[str]) -> str:
    """List the pages that are there; pages of one pattern in the order of their links on the front page."""
    docs = ROOT / "docs"
    links = [docs / link for link in re.findall(r"\]\(([\w./-]+\.md)\)", comment.string)]
    paths = [
        path
        for pattern in comment[2].split()  # one that no page has is left for later pages
        for path in sorted(docs.glob(f"{pattern}.md"), key=lambda path: ([*links, path].index(path), path))
    ]
    names = ["/" + path.resolve().relative_to(ROOT).with_suffix("").as_posix() for path in paths]
    pages = "\n".join("On one page </README>" if name == "/README" else name for name in names)
    return f"```{{toctree}}\n:hidden:\n:caption: {comment[1]}\n\n{pages}\n```"


MEMBERS = """
   :members:
   :special-members: __call__, __getitem__, __len__
   :exclude-members: set_score_request"""  # of scikit-learn


def entry(line: re.Match[str]) -> str:
    value = getattr(vitkit, line[1])
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    members = MEMBERS if inspect.isclass(value) else ""
    return f"```{{eval-rst}}\n.. {kind}:: vitkit.{line[1]}{members}\n```"


def show_defaults(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write defaults that are no Python, such as `<factory>`, as `...`; and numpy's types by their names."""
    for pattern, text in (
        (r"<[\w.]+( object( at \w+)?)?>", "..."),
        (r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[(.*?)\]\]", r"NDArray[\1]"),
        (r"_Buffer \|.*?_NestedSequence\[complex \| bytes \| str\]", "ArrayLike"),
    ):
        signature, returns = (text_of and re.sub(pattern, text, text_of) for text_of in (signature, returns))
    return signature, returns


def hide_colons(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Hide colons in the descriptions of fields: napoleon would take what stands before one for a type."""
    if what in ("attribute", "property"):
        lines[:] = [line.replace(":", "\0") for line in lines]


def show_colons(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [line.replace("\0", ":") for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_what_a_code_host_does_not_show)
    app.connect("autodoc-process-signature", show_defaults)
    app.connect("autodoc-process-docstring", hide_colons, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", show_colons, priority=600)
