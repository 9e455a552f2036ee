"""What ARM processors spend their time on: the straight code with the most products, of kernels that papers measure."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import ModelProto, helper

import mlc
from benchmarks.zoo import build
from mlc.targets.arm.record import record_for
from mlc.targets.base import get_target
from mlc.targets.cpu.loops import InnerLoop, analysed
from tests.e2e.compiled import load, network

PROCESSORS = ("cortex-a53", "cortex-a76", "neoverse-v1")
QUICK = {("C6", "cortex-a53"), ("D3", "cortex-a76"), ("D9", "neoverse-v1"), ("MM1", "cortex-a53")}
CASES = [
    pytest.param(name, cpu, marks=() if (name, cpu) in QUICK else pytest.mark.slow)
    for name in ("C2", "C6", "C9", "D3", "D9", "MM1")
    for cpu in PROCESSORS
]
_JUMP = re.compile(r"(?:b|b\.\w+|cbn?z|tbn?z|ret)\b")
_PRODUCT = re.compile(r"fm(?:la|ul)\b")


def straight(assembly: str) -> Iterator[list[str]]:
    """Instructions between labels and jumps."""
    found: list[str] = []
    for line in assembly.splitlines():
        text = line.strip()
        if re.match(r"[\w.$]+:", line):
            yield found
            found = []
        elif text and not text.startswith((".", "//")):
            found.append(text)
            if _JUMP.match(text):
                yield found
                found = []
    yield found


def heaviest(model: ModelProto, cpu: str, product: re.Pattern[str] = _PRODUCT, *, half: bool = False) -> list[str]:
    target = f"arm -mcpu={cpu}{' -sums=f16' if half else ''}"
    package = mlc.compile(load(model), target, records=[], fp16=half)
    assembly = get_target(target).assembly({"model.ll": package.members["src/model.ll"].decode()})
    return max(straight(assembly), key=lambda code: sum(bool(product.match(t)) for t in code))


def granted(cpu: str) -> float:
    """Products by lane a cycle that ``llvm-mca`` lets a processor start, if nothing waits: one or two, or four."""
    code = [f"fmla v{k}.4s, v30.4s, v31.s[{k % 4}]" for k in range(28)]
    found = analysed(InnerLoop((*code, "b"), len(code)), "aarch64", cpu)
    assert found.least is not None
    return len(code) / found.least


def waits(products: list[str], cpu: str) -> int:
    """Cycles that an iteration takes if nothing counts but sums, which wait for themselves.

    A tile has as many sums as the result's rows and columns leave it: fourteen of a plane of 7 by 7 in vectors of four,
    where a core that starts four products a cycle, and adds to each sum every four cycles, could use sixteen.
    """
    sums = Counter(t.split()[1].split(".")[0] for t in products)
    return record_for(cpu).fma_latency * max(sums.values())


@pytest.mark.parametrize(("name", "cpu"), CASES)
def test_products_are_all_that_counts(name: str, cpu: str) -> None:
    """No spill, products by lane, and as many of them as the core starts where nothing waits."""
    code = heaviest(build(name), cpu)
    products = [t for t in code if _PRODUCT.match(t)]
    assert len(products) >= 20
    assert not [t for t in code if "[sp" in t]
    # a weight that stays in a register for a column of taps may be there in all lanes
    assert sum(".s[" in t for t in products) >= (0.6 if name.startswith("D") else 0.85) * len(products)
    assert not [t for t in code if re.match(r"(?:mov|dup)\s+v", t)] or name.startswith("D")
    if shutil.which("llvm-mca") is None:
        return
    jumps = bool(_JUMP.match(code[-1]))
    found = analysed(InnerLoop(tuple(code if jumps else [*code, "b"]), len(products)), "aarch64", cpu)
    assert found.least is not None
    assert len(products) >= 0.9 * granted(cpu) * found.least
    if cpu != "cortex-a53":  # whose loads llvm-mca lets wait for every product before them
        assert found.cycles is not None
        assert max(len(products) / granted(cpu), waits(products, cpu)) >= 0.9 * found.cycles


@pytest.mark.parametrize(
    ("name", "cpu"),
    [
        pytest.param(name, cpu, marks=() if (name, cpu) == ("C9", "cortex-a76") else pytest.mark.slow)
        for name in ("C2", "C6", "C9", "MM1")
        for cpu in ("cortex-a76", "neoverse-v1")
    ],
)
def test_products_of_halves_are_all_that_counts(name: str, cpu: str) -> None:
    """No spill, and each product is of eight halves by a lane, nearly two a cycle."""
    code = heaviest(build(name), cpu, half=True)
    products = [t for t in code if _PRODUCT.match(t)]
    assert len(products) >= 48
    assert all(".8h" in t and ".h[" in t for t in products)
    assert not [t for t in code if "[sp" in t or re.match(r"(?:mov|dup)\s+v", t)]
    if shutil.which("llvm-mca") is not None:
        found = analysed(InnerLoop(tuple(code), len(products)), "aarch64", cpu)
        assert found.cycles is not None
        assert len(products) / found.cycles >= 1.8


@pytest.mark.parametrize("convolves", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blocks_of_bytes_take_few_instructions(convolves: bool) -> None:
    """No spill, and no more instructions of other kinds than products."""
    shapes = ((1, 64, 28, 28), (64, 64, 3, 3)) if convolves else ((64, 256), (256, 192))
    w = np.ones(shapes[1], np.int8)
    op, attrs = ("ConvInteger", {"pads": [1] * 4}) if convolves else ("MatMulInteger", {})
    node = helper.make_node(op, ["x", "w", "z"], ["y"], **attrs)
    model = network([node], {"x": np.zeros(shapes[0], np.uint8)}, ["y"], {"w": w, "z": np.uint8(9)})
    code = heaviest(model, "neoverse-v1", re.compile("smmla"))
    products = sum(t.startswith("smmla") for t in code)
    assert products >= 16
    assert len(code) <= 2 * products
    assert not [t for t in code if "[sp" in t]


@pytest.mark.parametrize(("cpu", "ahead"), [("cortex-a53", True), ("cortex-a72", False)])
def test_cores_in_order_fetch_their_weights_ahead(cpu: str, ahead: bool) -> None:
    """Of a product by 2.4 MB; others fetch those of the next tile, which come from memory."""
    w = np.ones((768, 768), np.float32)
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": w}, ["y"], {"w": w})
    fetched = [t for t in heaviest(model, cpu) if t.startswith("prfm")]
    assert fetched
    assert all(("pldl1keep" in t) == ahead for t in fetched)


@pytest.mark.parametrize(("rows", "columns"), [(5, 10), (1, 10), (7, 61)])
def test_a_part_of_a_panel_is_not_fetched_ahead(rows: int, columns: int) -> None:
    """Columns that end inside of the only panel: what its rows are read of are no neighbours."""
    w = np.ones((2048, columns), np.float32)
    x = np.ones((rows, 2048), np.float32)
    model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": w})
    assert heaviest(model, "cortex-a53")
