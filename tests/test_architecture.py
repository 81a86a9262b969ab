"""The rooms of the house: imports point one way, wherever in a file they stand."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from tests.helpers.rooms import MAY_IMPORT

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vitkit"
SHARED = {
    *("errors", "config", "durable", "listener", "other_names", "result", "signals"),
    *("text", "world", "_version"),
}
"""Leaves that any room may import."""
ROOMS = tuple(MAY_IMPORT)


@cache
def parse(path: Path) -> ast.Module:
    """Parse a file once for all tests."""
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Every vitkit module a file imports: at its top, inside functions, under TYPE_CHECKING."""
    return imports_of(parse(path), path)


def imports_of(tree: ast.AST, path: Path) -> set[str]:
    """Every vitkit module that is imported anywhere in what was parsed of a file."""
    package = ["vitkit", *path.relative_to(SOURCE).parts[:-1]]
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return {name for name in names if name == "vitkit" or name.startswith("vitkit.")}


def offences(path: Path) -> list[str]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    if parts[0] in ROOMS:
        permitted = MAY_IMPORT[parts[0]] | {parts[0]} | SHARED
    elif parts[0] in SHARED:
        permitted = SHARED
    else:
        return []  # __init__ and __main__ are doors
    names = {name.split(".")[1] for name in imports(path) if "." in name}
    return sorted(name for name in names if name in {*ROOMS, *SHARED, "__main__"} and name not in permitted)


FILES = sorted(SOURCE.rglob("*.py"))


def test_imports_point_one_way() -> None:
    text = "from ..jobs import train\nif x:\n    import vitkit.cli\nimportlib.import_module('vitkit.tasks')"
    names = imports_of(ast.parse(text), SOURCE / "data" / "new.py")
    assert names == {"vitkit.jobs", "vitkit.jobs.train", "vitkit.cli", "vitkit.tasks"}
    assert {path: wrong for path in FILES if (wrong := offences(path))} == {}


FLOORS = 7
"""The longest chain of imports in a folder: who stands in it can say what it may use."""
JOBS_FLOORS = 8
"""The same in jobs/ with its folders, where studies stand on verbs."""


def floors(files: list[Path]) -> int:
    """Count the floors of files: the longest chain of imports among them, those inside functions too."""
    names = {".".join(["vitkit", *path.relative_to(SOURCE).with_suffix("").parts]): path for path in files}
    below = {
        name: {other for other in _run_time_imports(path) if other in names and other != name}
        for name, path in names.items()
    }
    height: dict[str, int] = {}
    for name in TopologicalSorter(below).static_order():  # which refuses a circle
        height[name] = 1 + max((height[other] for other in below[name]), default=0)
    return max(height.values())


def _run_time_imports(path: Path) -> set[str]:
    """Every vitkit module that a file imports when it runs: none for types alone."""
    tree = parse(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = [ast.Pass()]
    return imports_of(tree, path)


def test_a_folder_has_few_floors() -> None:
    for folder in {path.parent for path in FILES if path.parent != SOURCE}:
        assert floors([path for path in FILES if path.parent == folder]) <= FLOORS, folder
    assert floors([path for path in FILES if "jobs" in path.relative_to(SOURCE).parts]) <= JOBS_FLOORS


def test_every_file_is_in_a_room() -> None:
    rooms = {*ROOMS, *SHARED, "__init__", "__main__"}
    assert {path.relative_to(SOURCE).with_suffix("").parts[0] for path in FILES} == rooms


def modules(path: Path) -> set[str]:
    """The packages a file imports, vitkit among them."""
    return {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def test_models_import_torch_alone_and_know_no_machine() -> None:
    """No file, no format, no network: models map tensors to tensors.

    `runs/machine.py` chooses among the ways to compute, which stand in `fast.py`.
    """
    standard = "collections dataclasses difflib fnmatch functools itertools math weakref re typing"
    instruction_sets = re.compile(r"avx|amx_|triton|get_capabilities")
    for path in (SOURCE / "models").rglob("*.py"):
        assert modules(path) <= {"torch", "vitkit", *standard.split()}, path
        assert not instruction_sets.search(path.read_text()), path
    other_ways = re.compile(r"chosen|compiled|CLASS_TOKEN")
    for name in ("vit", "parts"):
        assert not other_ways.search((SOURCE / "models" / f"{name}.py").read_text()), name


ENDINGS = "Config|Options|Rule|Preprocessing|Augmentation|Splits|Loading|Architecture|Run"
CONFIGURATION = re.compile(f"({ENDINGS})$")
"""Names of classes that help texts and recipes are made of."""
HEAVY = {"torch", "numpy", "PIL", "pyarrow", "matplotlib", "safetensors", "jinja2", "rich"}


def configuration_modules() -> list[str]:
    """The modules that define a configuration or the options of a job, whatever they are called."""
    return [
        ".".join(["vitkit", *path.relative_to(SOURCE).with_suffix("").parts])
        for path in FILES
        if path.relative_to(SOURCE).parts[0] != "cli"
        and any(
            isinstance(node, ast.ClassDef)
            and CONFIGURATION.search(node.name)
            and not node.name.startswith("_")
            and any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
            for node in parse(path).body
        )
    ]


def test_configurations_import_no_torch() -> None:
    """Help texts are made of them, and must not wait for torch: nor for anything else that is slow."""
    configurations = configuration_modules()
    of_rooms = ("data.config", "models.config", "training.config", "runs.config")
    assert {*(f"vitkit.{name}" for name in of_rooms), "vitkit.runs.run_options"} <= {*configurations}
    code = "".join(
        f"import {module}; heavy = {{*sys.modules}} & {HEAVY}\nif heavy: sys.exit(f'{module}: {{heavy}}')\n"
        for module in configurations
    )
    result = subprocess.run([sys.executable, "-c", f"import sys\n{code}"], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_families_answer_for_themselves() -> None:
    """Whoever asks which family a model is of would have to be changed for the next one."""
    question = re.compile(r"isinstance\([^)]*(ViT|ResNet)")
    # `measure.py` has the rules by which the products of each family are counted, side by side.
    files = [path for path in FILES if path.name != "measure.py"]
    lines = [line for path in files for line in path.read_text().splitlines() if question.search(line)]
    assert len(lines) <= 2, lines


FRAGMENT = re.compile(r"(Of|By|As|That|To|With|From|What|Whose|Which)\b")


def test_the_image_size_is_declared_at_few_places_and_set_at_one() -> None:
    """Preprocessing owns it; a model's configuration is given it by `with_image_size` alone."""
    places, setters = [], set()
    for path in FILES:
        name = path.relative_to(SOURCE).as_posix()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.arg):
                places += [name] * (node.arg == "image_size")
            elif isinstance(node, ast.ClassDef):
                fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
                places += [name for field in fields if ast.unparse(field) == "image_size"]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "replace":
                is_set = "image_size" in {keyword.arg for keyword in node.keywords}
                if is_set and "config" in ast.unparse(node.args[0]):
                    setters.add(name)
    # A job takes it as an argument, and the names that a type checker knows are compared with the run's.
    assert len([name for name in places if not name.startswith(("jobs/", "runs/run_options.py"))]) <= 15
    assert not {name for name in setters if not name.startswith("models/") and "/formats/" not in name}


def test_docstrings_do_not_begin_in_the_middle_of_a_sentence() -> None:
    """A reader who opens a file at any place has not read the words that such a beginning leaves out."""
    fragments = [
        f"{path.relative_to(SOURCE)}:{node.lineno}: {node.value.value.splitlines()[0]}"
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and FRAGMENT.match(node.value.value)
    ]
    assert not fragments


def test_only_tasks_know_the_numbers_of_a_task() -> None:
    """Whoever trains, asks, draws or prints goes by the task, so that another one needs no edit there.

    Few-shot evaluation and ridge are no task's: they know features and labels. Nor are the test sets of
    ImageNet: they know its classes, and may take several for right. Paired differences know a score of each
    image alone, a law of scale is fitted to errors, an interval is computed, and an image refused, whatever
    they count.
    """
    names = "features fewshot protocols refusal ridge statistics"
    no_tasks = tuple(f"vitkit.evaluation.{name}" for name in names.split())
    for path in FILES:
        room = path.relative_to(SOURCE).parts[0]
        if room == "training":  # it knows files of weights and no formats
            assert not any(name.startswith("vitkit.weights.formats") for name in imports(path)), path
        if room in ("training", "runs", "jobs", "report", "cli"):
            imported = {name for name in imports(path) if name.startswith("vitkit.evaluation.")}
            imported = {name for name in imported if not name.startswith(no_tasks)}
            loop = "vitkit.evaluation.run_model"  # it runs a model, whatever its outputs mean
            assert imported <= {loop, f"{loop}.evaluation_mode", f"{loop}.output_function"}, path
            # An answer, or a count of right ones, whatever the task is: and none of the tasks themselves.
            answers = {name for name in imports(path) if name.startswith("vitkit.tasks.answering.")}
            assert answers <= {f"vitkit.tasks.answering.{name}" for name in ("Answer", "Guess", "Pooled")}, (
                path
            )


def test_jobs_import_no_terminal_and_no_parser() -> None:
    """A job returns values and tells a listener; it prints, parses and asks nothing."""
    for path in FILES:
        if path.relative_to(SOURCE).parts[0] in ("runs", "jobs"):
            calls = {ast.unparse(node.func) for node in ast.walk(parse(path)) if isinstance(node, ast.Call)}
            assert not modules(path) & {"rich", "argparse"} and not calls & {"print", "input"}, path


def test_comparisons_with_other_libraries_need_no_pytest() -> None:
    """They run in an environment that has those libraries and not the ones of the tests."""
    modules = {f"tests.peers.{path.stem}" for path in (SOURCE.parents[1] / "tests" / "peers").glob("*.py")}
    while True:
        files = [SOURCE.parents[1] / f"{name.replace('.', '/')}.py" for name in modules]
        nodes = [node for path in files if path.is_file() for node in ast.walk(parse(path))]
        imported = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        imported |= {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        assert "pytest" not in imported
        more = {name for name in imported if name.startswith("tests.")} - modules
        if not more:
            return
        modules |= more


def test_no_foreign_pickle_is_ever_loaded() -> None:
    """PyTorch's pickles are read at one place alone, with weights only; no others anywhere."""
    loads = []
    for path in FILES:
        assert not modules(path) & {"pickle", "dill", "cloudpickle", "joblib"}, path
        assert not re.search(r"torch\.serialization(?!\.safe_globals)", path.read_text()), path
        for call in (node for node in ast.walk(parse(path)) if isinstance(node, ast.Call)):
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert keywords.get("allow_pickle", "False") == "False", path
            if ast.unparse(call.func) in ("torch.load", "torch.jit.load"):
                loads.append((path.relative_to(SOURCE).as_posix(), keywords.get("weights_only")))
    assert loads == [("weights/files/source.py", "True")]


VAGUE = {"found", "asked", "told", "known", "kept", "wanted"}
"""Participles that say what happened to a value and not what it is."""
VAGUE_ALONE = VAGUE | {"one", "words"}


def given_names(tree: ast.AST) -> set[str]:
    """The names that a file gives to variables, parameters, attributes, functions and classes."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias | ast.ExceptHandler):
            names.add((node.asname if isinstance(node, ast.alias) else node.name) or "")
    return names


def is_vague(name: str) -> bool:
    """Whether a name is one of the vague ones, or a longer one has a participle for a part."""
    parts = name.strip("_").lower().split("_")
    return not VAGUE.isdisjoint(parts) or "_".join(parts) in VAGUE_ALONE


def test_names_say_what_a_value_is() -> None:
    """`docs/style.md`, Names: the noun of the field, and not what happened to a value."""
    assert [name for name in ("found", "_kept", "found_device", "words", "Told") if not is_vague(name)] == []
    assert [name for name in ("one_hot", "summary", "checkpoint", "unknown") if is_vague(name)] == []
    vague = {
        # The names of tests are sentences.
        path: [name for name in given_names(parse(path)) if is_vague(name) and not name.startswith("test_")]
        for path in (*FILES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"))
    }
    assert {path: names for path, names in vague.items() if names} == {}


def is_number(value: ast.expr | None) -> bool:
    """Whether a value is a number, or several, written out."""
    if isinstance(value, ast.Tuple):
        return bool(value.elts) and all(map(is_number, value.elts))
    if isinstance(value, ast.UnaryOp | ast.BinOp):
        parts = [node for node in ast.walk(value) if not isinstance(node, ast.UnaryOp | ast.BinOp)]
        return all(isinstance(node, ast.operator | ast.unaryop | ast.Constant) for node in parts)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def numbers_without_reason(text: str) -> list[int]:
    """Return the lines of a file's numbers at whose block of lines no sentence stands."""
    lines, bare = text.splitlines(), []
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            first = last = node.lineno
            while first > 1 and lines[first - 2]:
                first -= 1
            while last < len(lines) and lines[last]:
                last += 1
            block = "\n".join(lines[first - 1 : last])
            if "#" not in block and '"""' not in block:
                bare.append(node.lineno)
    return bare


def test_every_number_has_its_reason() -> None:
    """`docs/style.md`: a sentence at every numeric constant, or at the block of lines that it is part of."""
    assert numbers_without_reason('A = 3\n\nB = 2**20\n"""Bytes."""\n\nC = (1, -2)  # pixels\nD = 2\n') == [1]
    bare = {path.relative_to(SOURCE).as_posix(): numbers_without_reason(path.read_text()) for path in FILES}
    assert {path: lines for path, lines in bare.items() if lines} == {}
