"""Shared memory beyond what functions can declare: parts of an array that launches ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mlc.rewrite.group import configured
from mlc.targets.base import get_target
from mlc.targets.cuda.api import CudaError
from mlc.targets.cuda.arch import ARCHS, DEVICES, STATIC_SHARED
from mlc.targets.cuda.dialect import CUDA_C
from mlc.targets.cuda.target import CudaTarget
from mlc.targets.gpu.emit import emit, source_of
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.program import Command, GpuProgram, Operand, Step, pack, unpack
from mlc.targets.gpu.scalars import Scalars
from tests.cuda import CXX, CUresult, FakeCuda, fake_device, images_of
from tests.unit.targets.gpu.groups import Case, assert_close, put, x

LARGE = replace(DEVICES["h200"], shared_bytes=ARCHS["sm_90"].most_shared, asynchronous=True)
CONFIG = {"rows": 8, "columns": 8, "ty": 16, "tx": 8, "depth": 32, "versions": 3, "asynchronous": True}


def product() -> tuple[Case, GpuProgram]:
    """A product whose blocks have three parts of each operand."""
    case = Case.made("k", lambda b: [put(b, "matmul", [x(b, 70, 100), x(b, 100, 66, name="w")])])
    fn, scalars = kernel(configured(case.node, CONFIG), "k", LARGE), Scalars(CUDA_C)
    emitted = emit(fn, scalars)
    places = [Operand("output" if k == 2 else "input", k % 2, b.nbytes) for k, b in enumerate(fn.params)]
    source = source_of(scalars, [emitted.text])
    (made,) = emitted.launches
    command = Command(0, made.name, tuple(places[k] for k in made.operands), made.grid, made.block, made.shared)
    program = GpuProgram(source, (Step("k", (), 0, 0),), (command,), [], 2, 1, 0, 0, images_of(source, ["sm_90"]))
    return case, program


def test_large_arrays_are_parts_of_one() -> None:
    _, program = product()
    (command,) = program.commands
    assert STATIC_SHARED < command.shared <= LARGE.shared_bytes
    assert program.source.count("extern __shared__") == 1
    assert "(float*)(mlc_shared + 0);" in program.source
    assert unpack(pack([program]))[0].commands == program.commands


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_launches_ask_for_it() -> None:
    case, program = product()
    cu = FakeCuda()
    device = fake_device(cu)
    loaded = device.load(pack([program]))
    assert cu.shared == {"launch_k_0": program.commands[0].shared}
    feeds = case.feeds()
    want = case.expected(feeds)[0]
    places = [device.allocate(a.nbytes) for a in (*case.arrays(feeds), want)]
    for at, array in zip(places, case.arrays(feeds), strict=False):
        device.write(at, array.reshape(-1).view(np.uint8))
    device.run(loaded, places)
    found = np.empty(want.nbytes, np.uint8)
    device.read(places[-1], found)
    assert_close([found.view(np.float32)], [want])
    device.close()


@pytest.mark.skipif(CXX is None, reason="there is no C++ compiler")
def test_a_device_that_has_less_says_so() -> None:
    _, program = product()
    device = fake_device(FakeCuda(fail={"cuFuncSetAttribute": CUresult.CUDA_ERROR_INVALID_VALUE}))
    with pytest.raises(CudaError, match=r"cannot get \d+ bytes of shared memory for a block"):
        device.load(pack([program]))


def test_a_block_has_what_its_architecture_has() -> None:
    target = get_target("cuda -arch=sm_75,sm_80,sm_90,sm_89")
    assert isinstance(target, CudaTarget)
    found = {arch: record.shared_bytes >> 10 for arch, record in target.records.items()}
    assert found == {"sm_90": 227, "sm_89": 99, "sm_80": 163, "sm_75": 64}
    assert [r.shared_of_unit for r in target.records.values()] == [ARCHS[a].shared for a in found]


def test_occupancy_counts_it() -> None:
    """Of 228 KB, one block of 120 KB fits, or two of 100."""
    arch = ARCHS["sm_90"]
    assert arch.occupancy(256, 32, 120 << 10) == 8 / 64
    assert arch.occupancy(256, 32, 100 << 10) == 16 / 64
