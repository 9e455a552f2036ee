"""Programs as files: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from mlc.errors import MlcError
from mlc.targets.cuda.arch import ARCHS, DEVICES, device_named
from mlc.targets.gpu.listing import profiled
from mlc.targets.gpu.program import Command, GpuProgram, Operand, Step, pack, unpack
from mlc.targets.opencl.devices import DEVICES as OPENCL

PROGRAM = GpuProgram(
    "kernel",
    (Step("k0_add", ("first", "second"), 4, 19), Step("copy", (), 0, 16)),
    (
        Command(
            0, "k", (Operand("input", 0, 8), Operand("param", 0, 3), Operand("workspace", 512, 8)), (2, 1, 1), (4, 1, 1)
        ),
        Command(1, "", (Operand("workspace", 512, 8), Operand("output", 0, 8))),
    ),
    [np.arange(3, dtype=np.uint8)],
    1,
    1,
    1024,
    0,
)


def test_what_is_written_is_read() -> None:
    (again,) = unpack(pack([PROGRAM]))
    assert (again.source, again.steps, again.commands) == (PROGRAM.source, PROGRAM.steps, PROGRAM.commands)
    assert [a.tolist() for a in again.params] == [[0, 1, 2]]
    assert (again.inputs, again.outputs, again.workspace_bytes, again.scratch_bytes) == (1, 1, 1024, 0)


def test_a_report_tells_of_every_step() -> None:
    first, copy = profiled(PROGRAM, [1e-3, 2e-3], None, lambda _: None)
    assert first == {"name": "k0_add", "seconds": 1e-3, "flops": 4, "bytes": 19, "sources": ["first", "second"]}
    assert (copy["name"], copy["seconds"], copy["sources"]) == ("copy", 2e-3, [])


@pytest.mark.parametrize(
    "threads, shared, share", [(256, 0, 1.0), (256, 16 << 10, 1.0), (256, 20 << 10, 0.75), (96, 0, 0.9375)]
)
def test_threads_and_shared_memory_bound_what_a_unit_holds(threads: int, shared: int, share: float) -> None:
    """Of 1024 threads and 64 KB."""
    assert OPENCL["generic"].occupancy(threads, shared) == share


def made(flops: int, nbytes: int, source: str = "", grid: tuple[int, int, int] = (9, 1, 1)) -> GpuProgram:
    """A program of one launch."""
    step, command = Step("k", (), flops, nbytes), Command(0, "k_0", (), grid, (grid[0], 1, 1))
    return GpuProgram(f"void k_0(float* y) {{\n{source}\n}}\n", (step,), (command,), [], 0, 0, 0, 0)


@pytest.mark.parametrize(
    "program, bound, least",
    [
        (made(1 << 40, 1 << 20), "compute", (1 << 40) / 66.9e12),
        (made(1 << 40, 1 << 20, "mlc_mma_f16_f16<1, 2>(a);"), "compute", (1 << 40) / 989.4e12),
        (made(1 << 40, 1 << 20, "mlc_mma_i8_u8<2, 4>(a);"), "compute", (1 << 40) / 1978.9e12),
        (made(1 << 20, 1 << 30), "memory", (1 << 30) / 4.8e12),
        (made(8, 8), "launch", 8 / 4.8e12),
    ],
)
def test_a_report_says_what_bounds_a_step(program: GpuProgram, bound: str, least: float) -> None:
    (row,) = profiled(program, [1.0], DEVICES["h200"], lambda c: 0.5)
    assert (row["bound"], row["occupancy"]) == (bound, 0.5)
    assert row["least_seconds"] == pytest.approx(least)
    assert "note" not in row


def test_a_report_says_where_a_thread_is_alone() -> None:
    (row,) = profiled(made(8, 8, grid=(1, 1, 1)), [1.0], DEVICES["h200"], lambda c: None)
    assert row["note"] == "one thread"


@pytest.mark.parametrize(
    "name, arch, found",
    [
        ("NVIDIA H200", "sm_90", "h200"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "a100"),
        ("Tesla T4", "sm_75", "t4"),
        ("NVIDIA GeForce RTX 2080", "sm_75", "rtx2080"),
        ("Imaginary GPU", "sm_89", "rtx4090"),
    ],
)
def test_devices_are_known_by_their_names(name: str, arch: str, found: str) -> None:
    gpu = device_named(name, ARCHS[arch])
    assert gpu is not None
    assert gpu.name == found
    assert device_named("Imaginary GPU", None) is None


def first(document: dict[str, Any]) -> dict[str, Any]:
    """The first command of the only program."""
    found: dict[str, Any] = document["programs"][0]["commands"][0]
    return found


def damaged(change: Callable[[dict[str, Any]], None]) -> bytes:
    tensors = load(pack([PROGRAM]))
    document = json.loads(tensors["program"].tobytes())
    change(document)
    tensors["program"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    return save(tensors)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda d: d.update(version=9), "version: expected 7, got 9"),
        (lambda d: d.update(more=1), "more: is not a field"),
        (lambda d: d["programs"][0].pop("commands"), "commands: is missing"),
        (lambda d: first(d).update(grid=[1]), "3 extents of a grid"),
        (lambda d: first(d)["operands"][0].__setitem__(0, "attic"), "input or output or param"),
        (lambda d: first(d)["operands"][0].pop(), "a space and three integers"),
        (lambda d: d["programs"].append(d["programs"][0]), "it has no text 1"),
        (lambda d: d["programs"].clear(), "it is for no device"),
        (lambda d: d.update(workspace=512), "command 0 has an operand outside workspace"),
        (lambda d: d["programs"][0]["commands"][1].update(step=2), "command 1 is of no step"),
        (lambda d: d["steps"][0].pop("flops"), "flops: is missing"),
        (lambda d: d.update(inputs=0), "command 0 has an operand outside input"),
        (
            lambda d: first(d)["operands"][1].__setitem__(2, 99),
            "command 0 has an operand outside param",
        ),
    ],
)
def test_damage_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(MlcError, match=message):
        unpack(damaged(change))


def test_another_file_is_refused() -> None:
    with pytest.raises(MlcError, match="the device's program cannot be read"):
        unpack(b"not a program")
