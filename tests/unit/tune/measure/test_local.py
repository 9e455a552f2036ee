"""What is refused before anything is measured, and what it is that is measured."""

from __future__ import annotations

import os
import re

import numpy as np
import pytest

from mlc.build import make_kernel
from mlc.errors import DeviceError, UsageError
from mlc.rewrite.inplace import InPlaceOperands
from mlc.targets.base import CallSpec
from mlc.targets.x86.target import X86Target
from mlc.tune.measure import LocalMeasurer, MeasureOptions
from mlc.tune.measure.native import support_objects
from mlc.tune.task import candidate
from tests.unit.tune.measure.tasks import OPTIONS, product, task_of


def measurer_of(target: X86Target, threads: int = 1, cores: tuple[int, ...] = ()) -> LocalMeasurer:
    return LocalMeasurer(
        [],
        target,
        threads=threads,
        compile_options=OPTIONS,
        options=MeasureOptions(cores=cores),
        rng=np.random.default_rng(0),
    )


def test_kernels_are_those_of_a_package() -> None:
    target = X86Target.from_options({})
    task = task_of(product(), target)
    node = candidate(task, target, task.space.default)
    fn = make_kernel(node, "kernel", target, InPlaceOperands())
    call = CallSpec("kernel", (("input", 0), ("param", 0), ("output", 0)))
    texts = []
    for whole in (True, False):
        artifact = target.codegen({"kernel": fn}, lambda _: [call], opt_level=3, whole=whole)
        listing = target.assembly(artifact.sources)
        (found,) = re.findall(r"\nkernel:\n(.*?)\.Lfunc_end", listing, re.S)
        texts.append(re.sub(r"\.L\w+", ".L", found))
        assert (b"mlc_pool_create" in artifact.obj) == whole
    assert texts[0] == texts[1]


def test_more_threads_than_cores_are_refused() -> None:
    target = X86Target.from_options({})
    with pytest.raises(UsageError, match="cannot be timed on"):
        measurer_of(target, threads=1000)
    with pytest.raises(UsageError, match=r"cores \[4095\] are not all available"):
        measurer_of(target, cores=(4095,))
    with pytest.raises(UsageError, match="2 threads cannot be timed on 1 cores"):
        measurer_of(target, threads=2, cores=tuple(sorted(os.sched_getaffinity(0))[:1]))


def test_caches_of_other_processors_are_not_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llvmlite.binding.get_process_triple", lambda: "aarch64-unknown-linux-gnu")
    with pytest.raises(DeviceError, match="caches can be emptied on x86 only, and this machine is aarch64"):
        support_objects(X86Target.from_options({}), flush=True)


def test_a_target_of_another_machine_is_refused() -> None:
    import llvmlite.binding as llvm

    if llvm.get_host_cpu_features().get("avx512f"):
        pytest.skip("this machine has it all")
    with pytest.raises(DeviceError, match=r"lacks .*avx512f"):
        measurer_of(X86Target.from_options({"mcpu": "skylake-avx512"}))
