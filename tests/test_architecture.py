"""The house rules that no single file can check: which room imports which, and calls that are never allowed.

``docs/architecture.md`` explains the rooms. The table below is the whole rule; a new room or a new edge is added here,
in the same commit that needs it, so that it is seen in review.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "mlc"

# Rooms, lowest floor first, and what each may import besides itself and the ground floor.
GROUND = {"errors", "settings", "fields"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "settings": set(),
    "fields": set(),
    "ir": set(),
    "ops": {"ir"},
    "frontend": {"ir", "ops"},
    "rewrite": {"ir", "ops"},
    "lower": {"ir"},
    # The runtime is what gets deployed: it must be able to live without the compiler.
    "runtime": set(),
    # Of the runtime a target takes what links and drives: candidates are run on what the target supplies.
    "targets": {"ir", "ops", "lower", "runtime"},
    # Operators and networks that a program writes; how an operator fuses, its targets know by what it does.
    "define": {"ir", "ops", "frontend", "targets"},
    "vdla": {"ir", "ops", "rewrite", "lower", "targets"},
    # Feeds, comparisons with a reference, timing: around a loaded module, so without the compiler too.
    "harness": {"runtime"},
    # Trials, files of them, the best of them: what a compilation asks for configurations, and what tuning writes.
    "records": {"ir", "ops", "lower", "rewrite", "targets", "runtime"},
    # From a graph to kernels, places in memory and calls, for host and device alike.
    "pipeline": {"ir", "ops", "rewrite", "lower", "targets", "runtime", "harness"},
    # The whole compilation of a model: the pipeline, code, package.
    "build": {"ir", "ops", "rewrite", "targets", "runtime", "pipeline"},
    "tuning": {"ir", "ops", "rewrite", "lower", "targets", "runtime", "harness", "records", "pipeline", "build"},
    # What is shared among machines; nobody who works on one alone imports it.
    "pool": {"ir", "ops", "lower", "rewrite", "targets", "runtime", "records", "tuning"},
    "training": {"ir", "ops", "define", "rewrite", "lower", "targets", "runtime", "harness", "tuning"},
    "api": {
        "pipeline",
        "ir",
        "ops",
        "frontend",
        "rewrite",
        "lower",
        "targets",
        "vdla",
        "runtime",
        "harness",
        "records",
        "build",
        "tuning",
        "pool",
        "training",
        "define",
    },
    "cli": {
        "ir",
        "ops",
        "frontend",
        "rewrite",
        "lower",
        "targets",
        "vdla",
        "runtime",
        "harness",
        "records",
        "tuning",
        "pool",
        "training",
        "api",
    },
    "__main__": {"cli"},
}

# What an accelerator needs of these is built for any; they name none, in comments and strings neither.
GENERAL = ("ir", "ops", "rewrite", "lower", "records", "pipeline", "build", "tuning", "runtime", "harness")

# What machines share names none of them, in comments and strings neither (but for where something was measured).
SHARED = {
    "targets/groups": ("x86", "cpu", "gpu", "cuda", "opencl"),
    "targets/cpu": ("x86", "avx", "sse", "clflush"),
    "tuning": ("x86", "avx", "sse", "clflush", "arm", "neon", "llvm", "gpu", "cuda", "opencl", "vector_bits"),
}

# All that whoever searches and measures may know of targets: the protocols, and how a target is found.
PROTOCOLS = {"base", "bench"}

# The package's own face: the version is anybody's, the public functions come from `api`.
FACE = "__init__"
FACE_MAY_IMPORT = {"api", "define", "runtime"}
FREE_NAMES = {"__version__"}

FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve"}
FORBIDDEN_CALLS = {"eval", "exec", "yaml.load", "torch.load", "os.system", "os.popen"}
FORBIDDEN_KEYWORDS = {"shell", "allow_pickle"}

# Where whatever is raised becomes something else: a process ends here, or code of others begins.
BORDERS = {
    "cli/main.py",
    "define/foreign.py",
    "frontend/keras/live.py",
    "pool/client.py",
    "tuning/foreign.py",
    "tuning/measure/guard.py",
    "tuning/measure/zygote.py",
}

FILES = sorted(SRC.rglob("*.py"))


def room_of(file: Path) -> str:
    """The room that a source file lies in: its first folder below ``mlc``, or its own name on the top level."""
    relative = file.relative_to(SRC)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(tree: ast.AST, file: Path) -> Iterator[tuple[int, str]]:
    """Every import in a file as (line, absolute dotted name), those inside functions and type checks included."""
    package = ("mlc", *file.relative_to(SRC).parent.parts)
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def rooms_imported(tree: ast.AST, file: Path) -> Iterator[tuple[int, str]]:
    """The rooms that a file imports, as (line, room)."""
    for line, name in imported(tree, file):
        parts = name.split(".")
        if parts[0] == "mlc" and (len(parts) < 2 or parts[1] not in FREE_NAMES):
            yield line, parts[1] if len(parts) > 1 else FACE


def wrong_edges(tree: ast.AST, file: Path) -> list[str]:
    """The imports of one file that the table does not allow, each as one readable line."""
    room = room_of(file)
    allowed = GROUND | (FACE_MAY_IMPORT if room == FACE else ROOMS[room] | {room})
    if room in GROUND:
        allowed = GROUND
    where = file.relative_to(SRC)
    return [
        f"{where}:{line}: `{room}` imports `{target}`"
        for line, target in rooms_imported(tree, file)
        if target not in allowed
    ]


def file_of(name: str) -> Path:
    """The source file that an import of a dotted name of ours reads; what is no module is looked for in its parent."""
    parts = name.split(".")[1:]
    while parts and not SRC.joinpath(*parts).with_suffix(".py").is_file():
        if SRC.joinpath(*parts, "__init__.py").is_file():
            return SRC.joinpath(*parts, "__init__.py")
        parts = parts[:-1]
    return SRC.joinpath(*parts).with_suffix(".py") if parts else SRC / "__init__.py"


def files_imported(tree: ast.AST, file: Path) -> set[Path]:
    """The source files that a file imports anywhere in it, inside functions and for type checks as well."""
    names = {name for _, name in imported(tree, file) if name.split(".")[0] == "mlc"}
    return {file_of(name) for name in names if name.removeprefix("mlc.") not in FREE_NAMES} - {file}


def circles(edges: Mapping[Path, set[Path]]) -> set[frozenset[str]]:
    """The sets of files of which each reaches each other by imports."""
    reached: dict[Path, set[Path]] = {}
    for start in edges:
        found: set[Path] = set()
        stack = [start]
        while stack:
            new = edges.get(stack.pop(), set()) - found
            found |= new
            stack += new
        reached[start] = found
    return {
        frozenset(str(other.relative_to(SRC)) for other in found if file in reached[other])
        for file, found in reached.items()
        if file in found
    }


def dotted(node: ast.expr) -> str:
    """``a.b.c`` for a chain of names, and the empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def forbidden(tree: ast.AST, file: Path) -> list[str]:
    """The unsafe imports, calls and keywords in one file: a model file must never be able to run code."""
    where = file.relative_to(SRC)
    found = [
        f"{where}:{line}: imports {name}"
        for line, name in imported(tree, file)
        if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS
    ]
    for node in nodes(tree):
        if not isinstance(node, ast.Call):
            continue
        if dotted(node.func) in FORBIDDEN_CALLS:
            found.append(f"{where}:{node.lineno}: calls {dotted(node.func)}")
        for keyword in node.keywords:
            off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
            if keyword.arg in FORBIDDEN_KEYWORDS and not off:
                found.append(f"{where}:{node.lineno}: passes {keyword.arg}=")
    return found


def caught(tree: ast.AST, file: Path) -> list[str]:
    """The handlers of one file that swallow whatever comes: only what cleans up and raises again may catch it all."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        everything = any(k is None or dotted(k) in ("Exception", "BaseException") for k in kinds)
        last = node.body[-1]
        if everything and not (isinstance(last, ast.Raise) and last.exc is None):
            found.append(f"{file.relative_to(SRC)}:{node.lineno}: catches everything")
    return found


@pytest.fixture(autouse=True, scope="module")
def no_garbage() -> Iterator[None]:
    """All trees are kept, and to look for garbage among them takes longer than to parse them."""
    gc.disable()
    yield
    gc.enable()


def test_every_source_file_lies_in_a_known_room() -> None:
    assert FILES
    assert {room_of(file) for file in FILES} - {FACE} <= set(ROOMS)


def test_the_table_has_no_upward_edge() -> None:
    floors = {room: floor for floor, room in enumerate(ROOMS)}
    assert not [(room, edge) for room, edges in ROOMS.items() for edge in edges if floors[edge] >= floors[room]]


def test_rooms_import_only_what_the_table_allows() -> None:
    wrong = [line for file in FILES if room_of(file) in {*ROOMS, FACE} for line in wrong_edges(parse(file), file)]
    assert not wrong, "\n".join(wrong)


def test_no_format_of_models_knows_another() -> None:
    formats = {folder.name for folder in (SRC / "frontend").iterdir() if folder.is_dir()} - {"common", "__pycache__"}
    found = [
        f"{file.relative_to(SRC)}:{line}: {name}"
        for file in FILES
        if (parts := file.relative_to(SRC).parts)[0] == "frontend" and len(parts) == 3
        for line, name in imported(parse(file), file)
        if name.startswith("mlc.frontend.") and name.split(".")[2] in formats - {parts[1]}
    ]
    assert {"onnx", "saved"} <= formats
    assert not found, "\n".join(found)


def test_files_do_not_import_each_other_in_a_circle() -> None:
    found = circles({file: files_imported(parse(file), file) for file in FILES})
    assert not found, "\n".join(" ↔ ".join(sorted(circle)) for circle in found)


@pytest.mark.parametrize("room", GENERAL)
def test_the_general_rooms_name_no_accelerator(room: str) -> None:
    found = [
        f"{file.relative_to(SRC)}:{number}: {line.strip()}"
        for file in FILES
        if room_of(file) == room
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if "vdla" in line.lower()
    ]
    assert not found, "\n".join(found)


def test_the_tuner_knows_targets_by_their_protocols_only() -> None:
    found = [
        f"{file.relative_to(SRC)}:{line}: {name}"
        for file in FILES
        if room_of(file) == "tuning"
        for line, name in imported(parse(file), file)
        if name.startswith("mlc.targets.") and name.split(".")[2] not in PROTOCOLS
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", SHARED)
def test_what_machines_share_names_none(folder: str) -> None:
    found = [
        f"{file.relative_to(SRC)}:{number}: {line.strip()}"
        for file in FILES
        if file.relative_to(SRC).as_posix().startswith(f"{folder}/")
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if any(re.search(rf"(?<![a-z]){name}(?![a-z])", line.lower()) for name in SHARED[folder])
    ]
    assert FILES
    assert not found, "\n".join(found)


def test_nothing_is_decided_by_the_tag_of_a_compute() -> None:
    found = [
        f"{file.relative_to(SRC)}:{node.lineno}"
        for file in FILES
        for node in nodes(parse(file))
        if isinstance(node, ast.Compare)
        and any(isinstance(e, ast.Attribute) and e.attr == "tag" for e in (node.left, *node.comparators))
    ]
    assert not found, "\n".join(found)


def test_nothing_in_the_sources_can_run_code_from_a_file() -> None:
    found = [line for file in FILES for line in forbidden(parse(file), file)]
    assert not found, "\n".join(found)


def test_everything_is_caught_at_borders_only() -> None:
    found = [line for file in FILES for line in caught(parse(file), file)]
    assert not [line for line in found if line.split(":")[0] not in BORDERS], "\n".join(found)
    assert {line.split(":")[0] for line in found} == BORDERS


@pytest.mark.parametrize(
    "file, source, edges",
    [
        ("ir/graph.py", "from mlc.errors import MlcError", 0),
        ("ir/graph.py", "from mlc.ops import conv", 1),
        ("ir/graph.py", "def f():\n    import mlc.targets.x86", 1),
        ("lower/build.py", "from mlc import ir, ops", 1),
        ("lower/build.py", "from ..ops.conv import Conv", 1),
        ("lower/passes/unroll.py", "from ..build import lower", 0),
        ("runtime/load.py", "from mlc import __version__", 0),
        ("runtime/load.py", "import mlc", 1),
        ("errors.py", "from mlc.ir import graph", 1),
        ("__init__.py", "from mlc.api import load", 0),
        ("__init__.py", "from mlc.cli import main", 1),
    ],
)
def test_wrong_edges_are_found(file: str, source: str, edges: int) -> None:
    assert len(wrong_edges(ast.parse(source), SRC / file)) == edges


@pytest.mark.parametrize(
    "sources, count",
    [
        ({"ir/te.py": "from mlc.ir.expr import Expr", "ir/expr.py": "from mlc.ir import index"}, 0),
        ({"ir/te.py": "from mlc.ir.expr import Expr", "ir/expr.py": "def f():\n    from mlc.ir import te"}, 1),
        (
            {
                "ir/te.py": "from .expr import Expr",
                "ir/expr.py": "from .loop import For",
                "ir/loop.py": "from . import te",
            },
            1,
        ),
        ({"ir/te.py": "if TYPE_CHECKING:\n    import mlc.ir.expr", "ir/expr.py": "import mlc.ir.te"}, 1),
        ({"ir/te.py": "from mlc.ir import te"}, 0),
        ({"__init__.py": "from mlc.api import load", "api.py": "from mlc import __version__"}, 0),
    ],
)
def test_circles_are_found(sources: dict[str, str], count: int) -> None:
    found = circles({SRC / name: files_imported(ast.parse(text), SRC / name) for name, text in sources.items()})
    assert [len(circle) for circle in found] == [len(sources)] * count


@pytest.mark.parametrize(
    "source, count",
    [
        ("import pickle", 1),
        ("from yaml import load", 1),
        ("eval('1')", 1),
        ("ast.literal_eval('1'); re.compile('x').exec('x')", 0),
        ("subprocess.run(c, shell=True)", 1),
        ("subprocess.run(c, shell=False)", 0),
        ("np.load(f, allow_pickle=flag)", 1),
    ],
)
def test_forbidden_calls_are_found(source: str, count: int) -> None:
    assert len(forbidden(ast.parse(source), SRC / "ir" / "x.py")) == count


@cache
def parse(file: Path) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All of a syntax tree; the same ones again for the next test."""
    return tuple(ast.walk(tree))
