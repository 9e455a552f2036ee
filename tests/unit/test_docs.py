"""What the documents point at exists, and the texts of a convolution's ways are what the compiler prints."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import mlc
from examples.one_convolution import model
from mlc.cli.main import run
from mlc.settings import Observer

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/**/README.md")])
WALK = ROOT / "docs" / "one-convolution.md"
GPU_WALK = ROOT / "docs" / "gpu.md"
LEFT_OUT = "…"

documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)


def outside_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The names that links to headings of a document may have."""
    headings = re.findall(r"^#+ +(.*)$", outside_code(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@documents
def test_relative_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", outside_code(document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = document.parent / name if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@documents
def test_paths_that_are_named_exist(document: Path) -> None:
    for path in re.findall(r"\b(?:src|tests|docs|examples|benchmarks)/[\w./-]*\w/?", document.read_text()):
        # `src/` and `examples/` are folders of a module.tar as well
        if path.startswith(("src/mlc/", "tests/", "docs/", "benchmarks/")):
            assert (ROOT / path).exists(), path


@documents
def test_nothing_is_a_wall_of_text(document: Path) -> None:
    """What is longer than that nobody reads: a list, a table or a section of its own says the same."""
    text = outside_code(document.read_text())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [cell for row in rows for cell in row.split("|") if len(cell) > 600] == []
    prose = "\n".join("" if line.startswith(("|", "#")) else line for line in text.splitlines())
    items = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    assert [item for item in items if len(item) > 1000] == []


def test_tests_that_are_named_exist() -> None:
    named = {name for path in DOCUMENTS for name in re.findall(r"`(test_\w+)`", path.read_text())}
    known = {
        name for path in ROOT.glob("tests/**/*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert named <= known | {path.stem for path in ROOT.glob("tests/**/test_*.py")}


def test_every_script_of_papers_is_listed_with_what_is_kept() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    rows = re.findall(r"^\| (`[^|]*`) \|", page.partition("## Figures of papers")[2], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    folder = ROOT / "benchmarks" / "papers"
    assert listed == {path.stem for path in folder.glob("*.py") if '"__main__"' in path.read_text()}
    kept = {path.name for path in (folder / "results").glob("*.md")} - {"README.md"}
    assert kept == set(re.findall(r"\(\.\./benchmarks/papers/results/([\w-]+\.md)\)", page))


class Texts(Observer):
    """Every line that a compilation prints, and the names of its dumps."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.dumps: list[str] = []

    def passed(self, name: str, program: object, seconds: float) -> None:
        self.dumps.append(f"{len(self.dumps) + 1:02d}-{name}.txt")
        self.lines.update(map(unnumbered, str(program).splitlines()))


def unnumbered(line: str) -> str:
    """A line without the numbers of LLVM's values and labels."""
    return re.sub(r"(%[a-z]+|^loop|^done)\d+", r"\1", line.rstrip())


@dataclass(frozen=True)
class Walk:
    """A page that follows a convolution, and what the compiler prints on the way."""

    page: str
    texts: Texts
    package: mlc.Package

    def blocks(self, kinds: str) -> list[str]:
        """The lines that the page shows in blocks of some kinds."""
        found = re.findall(rf"^```(?:{kinds})\n(.*?)^```$", self.page, re.DOTALL | re.MULTILINE)
        return [line for block in found for line in block.splitlines() if LEFT_OUT not in line]


@pytest.fixture(scope="module", params=["x86 -mcpu=skylake-avx512", "cuda -arch=sm_80 -mcpu=haswell"])
def walk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Walk:
    page = WALK.read_text()
    if request.param.startswith("cuda"):
        pytest.importorskip("cuda.bindings.nvrtc")
        (page,) = re.findall(r"^## One convolution.*?^(?=## )", GPU_WALK.read_text(), re.DOTALL | re.MULTILINE)
    path = tmp_path_factory.mktemp("walk") / "one-convolution.onnx"
    onnx.save(model(), path)
    loaded = mlc.load(path)
    texts = Texts()
    package = mlc.compile(loaded, request.param, disabled_passes=["winograd"], observer=texts)
    texts.lines.update(repr(loaded.graph).splitlines())
    return Walk(page, texts, package)


def test_the_walk_shows_what_the_compiler_prints(walk: Walk) -> None:
    # assembly is LLVM's own text and differs between its versions
    shown = walk.blocks("text|llvm")
    assert len(shown) > 100
    gone = [line for line in shown if unnumbered(line) not in walk.texts.lines]
    assert not gone, "the page shows what is not printed any more; update it:\n" + "\n".join(gone)


def test_the_walk_names_dumps_that_are_written(walk: Walk) -> None:
    named = re.findall(r"`(\d\d-[\w-]+\.txt)`", walk.page)
    assert named
    assert set(named) <= set(walk.texts.dumps)


def test_the_walk_shows_ptx_and_resources(
    walk: Walk, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = walk.blocks("ptx")
    if not shown:
        pytest.skip("of a GPU's code only")
    module = tmp_path / "module.tar"
    walk.package.save(module)
    monkeypatch.setenv("COLUMNS", "200")
    printed = []
    for options in ((), ("--ptx", "k0_conv_add_relu_0")):
        assert run(["inspect", str(module), *options]) == 0
        printed += [unnumbered(line) for line in capsys.readouterr().out.splitlines()]
    shown += [line for line in walk.blocks("console") if not line.startswith("$")]
    assert [line for line in shown if unnumbered(line) not in printed] == []


@pytest.mark.parametrize("name, count", [("architecture.md", 3), ("vdla.md", 4)])
def test_examples_print_what_they_show(capsys: pytest.CaptureFixture[str], name: str, count: int) -> None:
    text = (ROOT / "docs" / name).read_text()
    pairs = re.findall(r"^```python\n(.*?)^```\n\n^```output\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(pairs) == count
    names: dict[str, object] = {}
    for code, output in pairs:
        exec(code, names)
        assert capsys.readouterr().out.rstrip() == output.rstrip()


def test_functions_are_in_the_files_named_beside_them() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| .* \| ([^|]*) \| `(src/mlc/[\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(rows) > 10
    for functions, path in rows:
        source = (ROOT / path).read_text()
        for name in re.findall(r"`(\w+)`", functions):
            assert re.search(rf"^(def|class) {name}\b|^{name}\b.* = ", source, re.MULTILINE), f"{name} in {path}"
