"""What the documents point at exists, and the texts of ``docs/one-convolution.md`` are what the compiler prints."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest

import mlc
from examples.one_convolution import model
from mlc.settings import Observer

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
WALK = ROOT / "docs" / "one-convolution.md"
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


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    path = tmp_path_factory.mktemp("walk") / "one-convolution.onnx"
    onnx.save(model(), path)
    loaded = mlc.load(path)
    texts = Texts()
    mlc.compile(loaded, "x86 -mcpu=skylake-avx512", disabled_passes=["winograd"], observer=texts)
    texts.lines.update(repr(loaded.graph).splitlines())
    return texts


def test_the_walk_shows_what_the_compiler_prints(printed: Texts) -> None:
    # assembly is LLVM's own text and differs between its versions
    blocks = re.findall(r"^```(?:text|llvm)\n(.*?)^```$", WALK.read_text(), re.DOTALL | re.MULTILINE)
    shown = [line for block in blocks for line in block.splitlines() if LEFT_OUT not in line]
    assert len(shown) > 100
    gone = [line for line in shown if unnumbered(line) not in printed.lines]
    assert not gone, "docs/one-convolution.md shows what is not printed any more; update it:\n" + "\n".join(gone)


def test_the_walk_names_dumps_that_are_written(printed: Texts) -> None:
    named = re.findall(r"`(\d\d-[\w-]+\.txt)`", WALK.read_text())
    assert named
    assert set(named) <= set(printed.dumps)


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
