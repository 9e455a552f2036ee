"""What a package's device runs: kernels as text, and what they take; neither needs the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mlc.errors import UsageError
from mlc.runtime import Package

if TYPE_CHECKING:
    from mlc.targets.gpu.listing import KernelReport
    from mlc.targets.gpu.program import GpuProgram
    from mlc.targets.gpu.record import Gpu

_PROGRAMS = (".cuda", ".opencl")


def gpu_programs(package: Package) -> Iterator[tuple[GpuProgram, ...]]:
    """Regions of devices that run grids of threads: of each, a program for every device that it is for."""
    from mlc.targets.gpu.program import unpack

    for name in package.names():
        if name.startswith("device/") and name.endswith(_PROGRAMS):
            yield unpack(package.read(name))


def device_kernels(package: Package) -> list[KernelReport]:
    """What each kernel of a package's programs takes of the device, in order of the first launch.

    Args:
        package: open; one without such a device has no such kernels.
    Raises:
        PackageError: it is damaged.
    """
    from mlc.targets.base import get_target
    from mlc.targets.gpu.accelerator import GpuAccelerator

    regions = list(gpu_programs(package))
    if not regions:
        return []
    accelerator = get_target(package.manifest.target.string).accelerator
    assert isinstance(accelerator, GpuAccelerator)
    found = []
    for programs in regions:
        # every architecture has launches of its own; those of a step stand together
        each = [(k, r) for p in programs for k, r in _reports(p, accelerator.record_of(p))]
        found += [report for _, report in sorted(each, key=lambda item: item[0])]
    return found


def _reports(program: GpuProgram, record: Gpu) -> Iterator[tuple[int, KernelReport]]:
    """Each kernel of a program, after the number of the first step that launches it."""
    from mlc.targets.cuda.arch import ARCHS
    from mlc.targets.gpu.listing import KernelReport, bound_of, launched

    for name, commands in launched(program).items():
        step, first = program.steps[commands[0].step], commands[0]
        x, y, z = first.block
        own = {i.arch: i.resources[name] for i in program.images if name in i.resources}
        resources = {arch: replace(r, shared=r.shared + first.shared) for arch, r in own.items()}
        occupancy = {
            arch: ARCHS[arch].occupancy(x * y * z, r.registers, r.shared)
            for arch, r in resources.items()
            if arch in ARCHS
        }
        shared = first.declared + first.shared
        if not program.images:
            occupancy[""] = record.occupancy(x * y * z, shared)
        yield (
            commands[0].step,
            KernelReport(
                name,
                len(commands),
                step.sources,
                first.grid,
                first.block,
                step.flops,
                step.bytes,
                bound_of(step, record),
                shared,
                resources,
                occupancy,
            ),
        )


def device_listing(package: Package, kernel: str, kind: str, arch: str | None = None) -> str:
    """The code of a device's kernel.

    Args:
        package: open.
        kernel: its name, or that of one of its functions.
        kind: ``src`` (the device's language), ``ptx`` or ``sass`` (assembly and machine code of NVIDIA GPUs).
        arch: for which architecture, each of which has schedules of its own; the newest unless given.
    Raises:
        UsageError: there is no such kernel, or no such code of it.
        MissingDependencyError: there is no disassembler.
    """
    from mlc.targets.cuda.compiler import disassembly
    from mlc.targets.gpu import listing

    regions = list(gpu_programs(package))
    if not regions:
        raise UsageError(f"{package.path}: is not compiled for a GPU", hint="mlc compile --target cuda")
    programs = next((ps for ps in regions if any(listing.functions_of(p, kernel) for p in ps)), None)
    if programs is None:
        known = [name for ps in regions for name in dict.fromkeys(s.kernel for s in ps[0].steps)]
        near = get_close_matches(kernel, known, n=3)
        raise UsageError(
            f"{package.path}: the device has no kernel {kernel!r}",
            hint=f"did you mean {', '.join(near)}?" if near else "mlc inspect shows which it has",
        )
    images = {i.arch: (p, i) for p in programs for i in p.images}
    if not images and kind != "src":
        raise UsageError(f"{package.path}: the device's driver compiles its kernels", hint="--src shows their text")
    archs = sorted(images, key=lambda a: int(a.removeprefix("sm_")))
    if arch is not None and arch not in images:
        raise UsageError(f"{package.path}: is not compiled for {arch}", hint=f"it is for {', '.join(archs)}")
    program, image = images[arch or archs[-1]] if archs else (programs[0], None)
    functions = listing.functions_of(program, kernel)
    if kind == "src" or image is None:
        return listing.source_of(program, functions)
    if kind == "ptx":
        return listing.assembly_of(image.assembly.decode("utf-8", "replace"), functions)
    return listing.code_of(disassembly(image.code), functions)
