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

_PROGRAMS = (".cuda", ".opencl")


def gpu_programs(package: Package) -> Iterator[GpuProgram]:
    """Programs of devices that run grids of threads."""
    from mlc.targets.gpu.program import GpuProgram

    for name in package.names():
        if name.startswith("device/") and name.endswith(_PROGRAMS):
            yield GpuProgram.from_bytes(package.read(name))


def device_kernels(package: Package) -> list[KernelReport]:
    """What each kernel of a package's programs takes of the device, in order of the first launch.

    Args:
        package: open; one without such a device has no such kernels.
    Raises:
        PackageError: it is damaged.
    """
    from mlc.targets.base import get_target
    from mlc.targets.cuda.arch import ARCHS
    from mlc.targets.gpu.accelerator import GpuAccelerator
    from mlc.targets.gpu.listing import KernelReport, bound_of, launched

    programs = list(gpu_programs(package))
    if not programs:
        return []
    accelerator = get_target(package.manifest.target.string).accelerator
    assert isinstance(accelerator, GpuAccelerator)
    found = []
    for program in programs:
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
            found.append(
                KernelReport(
                    name,
                    len(commands),
                    step.sources,
                    first.grid,
                    first.block,
                    step.flops,
                    step.bytes,
                    bound_of(step, accelerator.record),
                    resources,
                    occupancy,
                )
            )
    return found


def device_listing(package: Package, kernel: str, kind: str, arch: str | None = None) -> str:
    """The code of a device's kernel.

    Args:
        package: open.
        kernel: its name, or that of one of its functions.
        kind: ``src`` (the device's language), ``ptx`` or ``sass`` (assembly and machine code of NVIDIA GPUs).
        arch: for which architecture; the newest that it is compiled for unless given.
    Raises:
        UsageError: there is no such kernel, or no such code of it.
        MissingDependencyError: there is no disassembler.
    """
    from mlc.targets.cuda.compiler import disassembly
    from mlc.targets.gpu import listing

    programs = list(gpu_programs(package))
    if not programs:
        raise UsageError(f"{package.path}: is not compiled for a GPU", hint="mlc compile --target cuda")
    program = next((p for p in programs if listing.functions_of(p, kernel)), None)
    if program is None:
        known = [name for p in programs for name in dict.fromkeys(s.kernel for s in p.steps)]
        near = get_close_matches(kernel, known, n=3)
        raise UsageError(
            f"{package.path}: the device has no kernel {kernel!r}",
            hint=f"did you mean {', '.join(near)}?" if near else "mlc inspect shows which it has",
        )
    functions = listing.functions_of(program, kernel)
    if kind == "src":
        return listing.source_of(program, functions)
    images = {i.arch: i for i in program.images}
    if not images:
        raise UsageError(f"{package.path}: the device's driver compiles its kernels", hint="--src shows their text")
    chosen = arch or max(images, key=lambda a: int(a.removeprefix("sm_")))
    if chosen not in images:
        raise UsageError(f"{package.path}: is not compiled for {chosen}", hint=f"it is for {', '.join(images)}")
    if kind == "ptx":
        return listing.assembly_of(images[chosen].assembly.decode("utf-8", "replace"), functions)
    return listing.code_of(disassembly(images[chosen].code), functions)
