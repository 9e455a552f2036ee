"""Packages: models compiled for a target."""

from __future__ import annotations

import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlc.api.models import Model
from mlc.api.options import SLICES, compile_options, make_folder, require_products
from mlc.errors import DeviceError, MemoryLimitError, UnsupportedError, UsageError
from mlc.runtime import Manifest, Module, atomic_write, load_module, write_package
from mlc.runtime import Package as OpenPackage
from mlc.runtime.native import available_cores
from mlc.runtime.tensor_spec import ConstantSpec
from mlc.settings import MAX_KERNELS, MAX_OPT_LEVEL, CompileOptions, Observer, Settings

if TYPE_CHECKING:
    from mlc.build import Built
    from mlc.pipeline.placements import Placements
    from mlc.records.lookup import Finding, Source
    from mlc.rewrite.offload import Decision
    from mlc.targets.base import Target

_LOGGER = logging.getLogger("mlc")


@dataclass(frozen=True)
class Report:
    """What a compilation took.

    Args:
        passes: name and seconds of every pass, in order.
        seconds: all of it.
        peak_bytes: the most memory this process ever held.
    """

    passes: tuple[tuple[str, float], ...]
    seconds: float
    peak_bytes: int

    def to_json(self) -> dict[str, Any]:
        return {
            "passes": [{"name": name, "seconds": seconds} for name, seconds in self.passes],
            "seconds": self.seconds,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True, eq=False)
class Package:
    """A compiled model, not yet written.

    Args:
        manifest: what it says about itself, the list of members excepted.
        params: the parameters as the kernels want them, by name.
        members: contents of the other files of the package.
        report: what compiling it took.
        findings: what tuning records had for each kernel, where any were given.
        offloads: for a target with an accelerator, where every operation runs, and why.
        programs: what the accelerator's compiler says of each region of the model, by the region's name.
        notices: what whoever compiles should know, such as that 8 bits do not pay on the target.
        placements: how tensors lie in memory, if that was asked for.
        functions: how many kernels were ``found`` in the folder of functions, and how many were ``made``; nothing where
            none was named.
    """

    manifest: Manifest
    params: Mapping[str, np.ndarray]
    members: Mapping[str, bytes]
    report: Report
    findings: tuple[Finding, ...] = ()
    offloads: tuple[Decision, ...] = ()
    programs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    placements: Placements | None = None
    functions: Mapping[str, int] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> Manifest:
        """Write a ``module.tar``, whole or not at all.

        Returns:
            the manifest as written, with size and hash of every member.
        Raises:
            OutputError: the file cannot be written.
        """
        return write_package(path, self.manifest, self.params, self.members)

    def load(self, threads: int | None = None, device: str | None = None) -> Module:
        """Load the model into this process.

        Args:
            threads, device: as for :func:`load_module`.
        Raises:
            DeviceError: this machine cannot run it.
        """
        # A loaded module maps its package; the mapping stays after the file is gone.
        with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
            path = Path(folder) / "module.tar"
            self.save(path)
            try:
                return load_module(path, threads, device)
            except DeviceError as error:  # the file is gone when the message is read
                raise DeviceError(error.message.removeprefix(f"{path}: "), hint=error.hint) from None


def compile(
    model: Model,
    target: str = "x86",
    *,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    verify_passes: bool = False,
    check_regions: bool = False,
    list_layouts: bool = False,
    dump_dir: str | os.PathLike[str] | None = None,
    max_memory: int | None = None,
    max_kernels: int | None = MAX_KERNELS,
    memory: int | None = None,
    functions: str | os.PathLike[str] | None = None,
    records: Sequence[str | os.PathLike[str]] | None = None,
    require_tuned: bool = False,
    threads: int | None = None,
    name: str | None = None,
    weights: str | None = None,
    bf16: bool = False,
    fp16: bool = False,
    keep_f32: Sequence[str] = (),
    allow_emulation: bool = False,
    observer: Observer | None = None,
) -> Package:
    """Compile a model for a target.

    Args:
        model: from ``load``.
        target: e.g. ``x86``, ``x86 -mcpu=skylake-avx512``.
        opt_level: 0 (as it stands) to 3.
        disabled_passes: names of passes to leave out.
        fast_math: whether results may differ in their last digits from those of the model's operators one by one:
            Winograd convolution, and ``a*b + c`` rounded once.
        verify_passes: check the program after every pass.
        check_regions: run what the regions of an accelerator became on random data, and compare with the interpreter.
        list_layouts: tell in ``placements`` how every tensor lies in memory, who asked for that, and where data are
            converted while the model runs.
        dump_dir: folder for the program after every pass, numbered; made if it is not there.
        max_memory: bytes that parameters and working memory may take together when the model runs.
        max_kernels: distinct kernels that the model may take, each of which costs milliseconds to compile; any number
            if it is ``None``.
        memory: bytes that a run may take, with its inputs, results and parameters: where keeping a value until its last
            reader would take more, it is made again by the same kernel. As many as it likes unless given.
        functions: a folder of kernels that were compiled for this processor before, with the same schedules: they are
            taken from there, and others are left there.
        records: files of tuning records, or folders of such: kernels get the best configurations found there. Unless
            given, those are looked into that come with this program for such processors, and those that ``tune`` has
            left in the user's cache.
        require_tuned: refuse to compile a kernel that the records have nothing for.
        threads: that will run the model, as far as is known: records of as many are preferred, and more than eight do
            not run batches in slices. All cores of this machine unless given.
        name: of the model in its package, and what every symbol that the package exports begins with, so that several
            models fit into one C program; unless given, the model's own, and ``mlc``.
        weights: ``f16``, ``bf16``, ``int8`` or ``int4``: the type in which constant operands of matrix products are
            stored; they are widened as they are read. Their own unless given.
        bf16: round both operands of matrix products by constants to bf16, and sum up in f32; those of one row only
            where ``weights`` says nothing.
        fp16: compute in f16, with sums in f32, what loses little by it; softmax, norms and means stay in f32.
        keep_f32: names of operators, or of nodes of the model, that stay in f32 as well.
        allow_emulation: widen them where the processor has no instruction for products of bf16.
        observer: is told how it goes on.
    Raises:
        UsageError: an option or the target cannot be understood; the name cannot begin a C identifier; a kernel is not
            tuned though it is required.
        UnsupportedError: the target cannot express the model, or it needs more than ``max_kernels``.
        MemoryLimitError: it needs more than ``max_memory`` or ``memory``, whether or not batches run in slices.
        OutputError: ``dump_dir`` cannot be written.
        CheckFailedError: what a region became gives other results than the interpreter.
        DeviceError: regions are to be checked, and there is no driver here.
    """
    from mlc.build import build_package
    from mlc.targets.base import get_target

    if opt_level not in range(MAX_OPT_LEVEL + 1):
        raise UsageError(f"the optimisation level must be from 0 to {MAX_OPT_LEVEL}, not {opt_level}")
    usable = opt_level == MAX_OPT_LEVEL and "layout" not in disabled_passes
    if not usable and (records or require_tuned):
        raise UsageError(
            "tuned configurations are only used at the highest optimisation level, with the layout pass",
            hint=f"compile with -O{MAX_OPT_LEVEL}, or without --records and --require-tuned",
        )
    options = compile_options(
        model,
        name,
        opt_level,
        disabled_passes,
        fast_math,
        verify=verify_passes,
        check_regions=check_regions,
        list_layouts=list_layouts,
        keep_assembly=dump_dir is not None,
        weights=weights,
        bf16=bf16,
        fp16=fp16,
        keep_f32=keep_f32,
        max_kernels=max_kernels,
        memory=memory,
        max_memory=max_memory,
        functions=functions,
        threads=threads,
    )
    watch = _Watch(observer or Observer(), None if dump_dir is None else Path(dump_dir))
    machine = get_target(target)
    if check_regions and machine.accelerator is None:
        raise UsageError(f"the target {target!r} has no accelerator whose regions could be checked")
    if memory is not None and machine.accelerator is not None:
        raise UnsupportedError(f"a run's memory can be limited on processors, not on {target!r}")
    require_products(machine, target, weights, bf16=bf16, fp16=fp16, keep_f32=keep_f32, allow_emulation=allow_emulation)
    source = _source_of(records, machine, available_cores() if threads is None else threads) if usable else None

    def built_with(options: CompileOptions) -> tuple[Built, tuple[Finding, ...]]:
        if source is None and not require_tuned:
            return build_package(model.graph, machine, options, watch), ()
        from mlc.api.missed import missed
        from mlc.records.best import Best
        from mlc.records.lookup import Tuned, require_all

        known = source or Best({}, {})
        tuned = Tuned(known, machine)
        of_others = partial(missed, model, machine, options, records, known, tuned, left_out=SLICES in disabled_passes)

        def check() -> None:
            if not require_tuned:
                return
            try:
                require_all(tuned.findings())
            except UsageError as error:
                raise UsageError(error.message, hint=of_others() or error.hint) from None

        built = build_package(model.graph, machine, options, watch, tuned, check)
        in_loops = any(step.parts for step in built.manifest.steps)
        if (in_loops or SLICES in options.disabled_passes) and (notice := of_others()):
            built = replace(built, notices=(*built.notices, notice))
        # who named no records wants to know what is used, and not what is missing
        return built, tuple(tuned.used() if records is None else tuned.findings())

    try:
        built, findings = built_with(options)
    except MemoryLimitError as refusal:
        if not refusal.slices or SLICES in options.disabled_passes:
            raise
        built, findings = _without_slices(built_with, options, refusal)
    fixed, states = (
        tuple(ConstantSpec(c.name, c.dtype, c.shape, c.data.hex()) for c in inputs)
        for inputs in (model.info.constants, model.info.states)
    )
    spec = replace(
        built.manifest.model,
        constants=fixed,
        format=model.info.format,
        layouts=dict(model.info.layouts),
        states=states,
    )
    manifest = replace(built.manifest, model=spec)
    return Package(
        manifest, built.params, built.members, watch.report(), findings, built.offloads, built.programs, built.notices,
        built.placements, built.functions,
    )  # fmt: skip


def _without_slices(
    built_with: Callable[[CompileOptions], tuple[Built, tuple[Finding, ...]]],
    options: CompileOptions,
    refusal: MemoryLimitError,
) -> tuple[Built, tuple[Finding, ...]]:
    """What is built where a batch in slices takes more memory than allowed.

    Raises:
        MemoryLimitError: the whole batch takes more as well; or it would do, but its kernels are not tuned.
    """
    try:
        built, findings = built_with(replace(options, disabled_passes=(*options.disabled_passes, SLICES)))
    except MemoryLimitError as other:
        raise min(refusal, other, key=lambda error: error.needed) from None
    except UsageError:  # tuned kernels are required
        raise refusal from None
    text = f"the batch is not run in slices, which would take {refusal.needed} bytes, more than the limit"
    return replace(built, notices=(*built.notices, text)), findings


def pass_names() -> list[str]:
    """The passes that ``compile`` may leave out, in their order; some have a meaning for some targets only."""
    from mlc.pipeline import passes

    return passes.pass_names()


def assembly(package: OpenPackage) -> str:
    """The assembly of a package's code, generated again from the intermediate code that it holds.

    Raises:
        UsageError: the package holds none, or its target is not installed.
    """
    from mlc.targets.base import get_target

    spec = package.manifest.target
    target = get_target(spec.string)
    sources = {
        name.removeprefix("src/"): package.read(name).decode("utf-8", "replace")
        for name in package.names()
        if name.startswith("src/")
    }
    level = int(spec.details.get("opt_level", MAX_OPT_LEVEL))
    return target.assembly(sources, opt_level=level, details=spec.details)


def _source_of(records: Sequence[str | os.PathLike[str]] | None, target: Target, threads: int) -> Source | None:
    """Where to look for configurations; nowhere if there is nothing."""
    from mlc.records.places import default_files

    files = default_files(target, Settings.from_environment().cache) if records is None else records
    if not files:
        return None
    from mlc.records.best import best_of
    from mlc.records.files import read_records
    from mlc.records.record import Fingerprint
    from mlc.records.shelf import Shelf

    here = Fingerprint.of(target)
    if records is None:
        return Shelf(map(Path, files), here, threads)
    log = read_records(files)
    for text in log.complaints(here):
        _LOGGER.warning(text)
    return best_of(log.records, here, threads)


class _Watch(Observer):
    """Keeps the times of the passes and writes dumps, for the observer that the user gave."""

    def __init__(self, inner: Observer, dump_dir: Path | None) -> None:
        self._inner = inner
        self._dump_dir = dump_dir
        self._passes: list[tuple[str, float]] = []
        self._start = time.perf_counter()

    def stage(self, name: str) -> None:
        self._inner.stage(name)

    def passed(self, name: str, program: object, seconds: float) -> None:
        self._passes.append((name, seconds))
        text = "" if self._dump_dir is None else str(program)
        if self._dump_dir is not None and text:
            _dump(self._dump_dir, len(self._passes), name, text)
        self._inner.passed(name, program, seconds)

    def kernel(self, done: int, total: int) -> None:
        self._inner.kernel(done, total)

    def report(self) -> Report:
        # Linux counts the largest resident set in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Report(tuple(self._passes), time.perf_counter() - self._start, peak)


def _dump(folder: Path, number: int, name: str, program: str) -> None:
    """Write ``NN-name.txt``; what a pass is called need not be fit for a file name."""
    file = folder / f"{number:02d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:64]}.txt"
    make_folder(folder)
    with atomic_write(file) as out:
        out.write(f"{program}\n".encode())
