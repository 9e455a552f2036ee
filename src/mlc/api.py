"""The Python face of mlc: load a model, compile it, run the package. Nothing here prints or exits.

>>> import mlc
>>> model = mlc.load("resnet18.onnx", dims={"batch": 1})       # doctest: +SKIP
>>> package = mlc.compile(model, target="x86")                 # doctest: +SKIP
>>> package.save("resnet18.tar")                               # doctest: +SKIP
>>> outputs = package.load().run({"data": image})              # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
import re
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlc import __version__
from mlc.errors import DeviceError, MlcError, OutputError, UnsupportedError, UsageError
from mlc.frontend.base import ImportedModel, ModelSource, TensorInfo, get_frontend, guess_frontend
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.survey import Survey
from mlc.ir.graph import Graph
from mlc.runtime import Manifest, Module, TargetSpec, TensorSpec, atomic_write, load_module, write_package
from mlc.runtime import Package as OpenPackage
from mlc.runtime.manifest import SYMBOLS, ConstantSpec, is_prefix
from mlc.runtime.native import available_cores, check_device
from mlc.settings import MAX_OPT_LEVEL, CompileOptions, Observer, Settings

if TYPE_CHECKING:
    from mlc.harness.accuracy import Accuracy
    from mlc.records.lookup import Finding, Source
    from mlc.rewrite.offload import Decision
    from mlc.targets.base import Target
    from mlc.tuning.drive import Tuning
    from mlc.tuning.measure import MeasureOptions
    from mlc.tuning.session import TuneOptions, Watcher
    from mlc.tuning.task import Task

_LOGGER = logging.getLogger("mlc")

__all__ = [
    "Model",
    "Package",
    "Quantization",
    "Report",
    "TargetInfo",
    "compile",
    "load",
    "load_module",
    "pass_names",
    "quantize",
    "survey",
    "targets",
    "tune",
    "tuning_tasks",
]


@dataclass(frozen=True, eq=False)
class Model:
    """An imported model.

    Args:
        graph: its operators.
        info: the file it came from; for a saved model, the one it was first imported from.
        format: the front end that read it.
    """

    graph: Graph
    info: ModelSource
    format: str

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """What the model takes: names, shapes and element types."""
        return self.info.inputs

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """What it gives."""
        return self.info.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a ``.mlc`` file, whole or not at all.

        Raises:
            OutputError: the file cannot be written.
            UnsupportedError: the graph holds an operator of the user's own.
        """
        from mlc.frontend.saved import encode_model

        with atomic_write(path) as file:
            for chunk in encode_model(ImportedModel(self.graph, self.info), __version__):
                file.write(chunk)


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
    """

    manifest: Manifest
    params: Mapping[str, np.ndarray]
    members: Mapping[str, bytes]
    report: Report
    findings: tuple[Finding, ...] = ()
    offloads: tuple[Decision, ...] = ()
    programs: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    def save(self, path: str | os.PathLike[str]) -> Manifest:
        """Write a ``module.tar``, whole or not at all.

        Returns:
            the manifest as written, with size and hash of every member.
        Raises:
            OutputError: the file cannot be written.
        """
        return write_package(path, self.manifest, self.params, self.members)

    def load(self, threads: int | None = None) -> Module:
        """Load the model into this process.

        Args:
            threads: threads to run on, the caller's included; all available cores unless given.
        Raises:
            DeviceError: this machine cannot run it.
        """
        # A loaded module maps its package; the mapping stays after the file is gone.
        with tempfile.TemporaryDirectory(prefix="mlc-") as folder:
            path = Path(folder) / "module.tar"
            self.save(path)
            return load_module(path, threads)


def load(
    path: str | os.PathLike[str],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    limits: Limits | None = None,
    frontend: str | None = None,
) -> Model:
    """Import a model file.

    Args:
        path: the file; its format is guessed by its content.
        shapes: shapes of inputs, by name.
        dims: values of symbolic dimensions, by name.
        constants: values for inputs that shall be fixed; plain numbers take the input's element type.
        limits: budgets of the import.
        frontend: name of the front end, when its guess shall not count.
    Raises:
        ImportModelError: the file is broken, hostile, or beyond a limit.
        UnsupportedError: it uses something that cannot be compiled; names all of it.
        UsageError: a shape, dimension or constant does not fit the model.
    """
    reader = get_frontend(frontend) if frontend else guess_frontend(path)
    imported = reader.load(path, shapes=shapes, dims=dims, constants=constants, limits=limits or DEFAULT_LIMITS)
    return Model(imported.graph, imported.source, reader.name)


def compile(
    model: Model,
    target: str = "x86",
    *,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    verify_passes: bool = False,
    check_regions: bool = False,
    dump_dir: str | os.PathLike[str] | None = None,
    max_memory: int | None = None,
    records: Sequence[str | os.PathLike[str]] | None = None,
    require_tuned: bool = False,
    threads: int | None = None,
    name: str | None = None,
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
        dump_dir: folder for the program after every pass, numbered; made if it is not there.
        max_memory: bytes that parameters and working memory may take together when the model runs.
        records: files of tuning records, or folders of such: kernels get the best configurations found there. Unless
            given, those are looked into that come with this program for such processors, and those that ``tune`` has
            left in the user's cache.
        require_tuned: refuse to compile a kernel that the records have nothing for.
        threads: that will run the model, as far as is known: records of as many are preferred. All cores of this
            machine unless given.
        name: of the model in its package, and what every symbol that the package exports begins with, so that several
            models fit into one C program; unless given, the model's own, and ``mlc``.
        observer: is told how it goes on.
    Raises:
        UsageError: an option or the target cannot be understood; the name cannot begin a C identifier; a kernel is not
            tuned though it is required.
        UnsupportedError: the target cannot express the model, or it needs more than ``max_memory``.
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
    options = _options(
        model,
        name,
        opt_level,
        disabled_passes,
        fast_math,
        verify=verify_passes,
        check_regions=check_regions,
        keep_assembly=dump_dir is not None,
    )
    watch = _Watch(observer or Observer(), None if dump_dir is None else Path(dump_dir))
    machine = get_target(target)
    if check_regions and machine.accelerator is None:
        raise UsageError(f"the target {target!r} has no accelerator whose regions could be checked")
    source = _source_of(records, machine, available_cores() if threads is None else threads) if usable else None
    findings: tuple[Finding, ...] = ()
    if source is None and not require_tuned:
        built = build_package(model.graph, machine, options, watch)
    else:
        from mlc.records.best import Best
        from mlc.records.lookup import Tuned, require_all

        tuned = Tuned(source or Best({}, {}), machine)

        def check() -> None:
            if require_tuned:
                require_all(tuned.findings())

        built = build_package(model.graph, machine, options, watch, tuned, check)
        # who named no records wants to know what is used, and not what is missing
        findings = tuple(tuned.used() if records is None else tuned.findings())
    _require_memory(built.manifest, max_memory)
    fixed = tuple(ConstantSpec(c.name, c.dtype, c.shape, c.data.hex()) for c in model.info.constants)
    manifest = replace(built.manifest, model=replace(built.manifest.model, constants=fixed))
    return Package(manifest, built.params, built.members, watch.report(), findings, built.offloads, built.programs)


@dataclass(frozen=True, eq=False)
class Quantization:
    """A quantised model, and what it lost.

    Args:
        model: the model in integers, ready to compile.
        exponents: a number ``x`` of a quantised tensor is stored as ``round(x * 2**exponent)``; by the tensor's name.
        products: how many convolutions and matrix products are in integers.
        floats: those that are not, by the model's name for them, with the reason.
        samples: how many there were.
        accuracy: of every output, against the float model on those samples.
        seconds: that it took.
    """

    model: Model
    exponents: Mapping[str, int]
    products: int
    floats: Mapping[str, str]
    samples: int
    accuracy: tuple[Accuracy, ...]
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "exponents": dict(self.exponents),
            "products": self.products,
            "floats": dict(self.floats),
            "samples": self.samples,
            "accuracy": [a.to_json() for a in self.accuracy],
            "seconds": self.seconds,
        }


def quantize(
    model: Model,
    samples: Mapping[str, np.ndarray],
    *,
    per_channel: bool = False,
    ends: bool = False,
    keep: Sequence[str] = (),
    observer: Observer | None = None,
) -> Quantization:
    """Quantise a model to 8-bit integers with power-of-two scales.

    >>> found = mlc.quantize(model, np.load("images.npz"), per_channel=True)   # doctest: +SKIP
    >>> found.accuracy[0].snr_db                                               # doctest: +SKIP
    >>> mlc.compile(found.model, "vdla").save("module.tar")                    # doctest: +SKIP

    Args:
        model: from ``load``, in floating point.
        samples: typical inputs by name, several along the first axis; some tens are enough.
        per_channel: a scale for each output channel of the weights, not one for all.
        ends: also a first convolution of few channels and the last matrix product, which stay in floats otherwise.
        keep: names of the model's nodes that stay in floats.
        observer: is told how it goes on.
    Raises:
        UsageError: the samples do not fit the model, or a node to keep is unknown.
        UnsupportedError: nothing in the model can be quantised.
    """
    from mlc.harness.accuracy import AccuracyMeter
    from mlc.harness.samples import split_samples
    from mlc.rewrite.pipeline import passes_for, run_passes
    from mlc.rewrite.quantize import QuantizeOptions
    from mlc.rewrite.quantize import quantize as quantize_graph

    start = time.perf_counter()
    specs = [TensorSpec(t.name, t.dtype, t.shape) for t in model.inputs]
    feeds = split_samples(specs, {name: np.asarray(array) for name, array in samples.items()})
    graph = run_passes(model.graph, [p for p in passes_for(MAX_OPT_LEVEL) if not p.groups])
    options = QuantizeOptions(per_channel, ends, tuple(keep))
    watch = observer or Observer()
    watch.stage("calibrate")
    found = quantize_graph(graph, feeds, options, _native, watch.kernel)
    watch.stage("compare with the float model")
    before, after, meter = _native(graph), _native(found.graph), AccuracyMeter()
    for k, feed in enumerate(feeds):
        meter.add(before(feed), after(feed))
        watch.kernel(k + 1, len(feeds))
    return Quantization(
        Model(found.graph, model.info, model.format),
        found.exponents,
        found.products,
        found.floats,
        len(feeds),
        meter.result(),
        time.perf_counter() - start,
    )


def _native(graph: Graph) -> Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]:
    """Something that runs a graph on this machine: compiled where that is possible, else interpreted."""
    from mlc.build import build_package
    from mlc.rewrite.quantize import interpreted
    from mlc.targets.base import get_target

    built = build_package(graph, get_target("x86"), CompileOptions(graph.name, "", "0" * 64), Observer())
    package = Package(built.manifest, built.params, built.members, Report((), 0.0, 0))
    try:
        module = package.load()
    except DeviceError:
        seed = built.manifest.seed
        run = interpreted(graph)
        return run if seed is None else lambda feeds: run({**feeds, seed: np.array(0, np.uint64)})
    # what a model draws at random is the same wherever results are compared
    return lambda feeds: module.run(feeds, seed=0)


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


def tuning_tasks(
    model: Model,
    target: str = "x86",
    *,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
) -> list[Task]:
    """The kernels of a model that have something to choose; arguments as for :func:`compile`."""
    from mlc.targets.base import get_target
    from mlc.tuning.task import tasks_of

    options = _options(model, None, opt_level, disabled_passes, fast_math)
    return tasks_of(model.graph, get_target(target), options, Observer())


def tune(
    model: Model,
    target: str = "x86",
    *,
    trials: int | None = None,
    records: str | os.PathLike[str] | None = None,
    options: TuneOptions | None = None,
    measure: MeasureOptions | None = None,
    opt_level: int = MAX_OPT_LEVEL,
    disabled_passes: Sequence[str] = (),
    fast_math: bool = True,
    threads: int | None = None,
    only: Sequence[int] | None = None,
    fresh: bool = False,
    check_whole: bool = True,
    transfer: Sequence[str | os.PathLike[str]] = (),
    watcher: Watcher | None = None,
) -> Tuning:
    """Measures schedules of a model's kernels on this machine, and keeps the fastest for ``compile``.

    >>> tuning = mlc.tune(model, trials=600)                   # doctest: +SKIP
    >>> tuning.whole.speedup                                   # doctest: +SKIP
    1.31
    >>> package = mlc.compile(model)                           # doctest: +SKIP

    Args:
        trials: configurations to measure for the whole model, those that the records hold included; as ``options``
            say unless given.
        records: the file that every trial is appended to; what it holds is gone on from. Unless given, it is one in the
            user's cache, and the best of it is put where ``compile`` looks by itself.
        transfer: record files, or folders of such, of any models, that the cost model learns from before anything is
            measured.
        model, target, options, measure, opt_level, disabled_passes, fast_math, threads, only, fresh, check_whole,
            watcher: see :func:`mlc.tuning.drive.tune_graph`.
    Returns:
        the file of records, every task with its trials and decision, and the model's times before and after.
    Raises:
        UsageError, DeviceError, CheckFailedError: as there.
    """
    from mlc.records.files import read_records
    from mlc.records.places import journal_of
    from mlc.records.shelf import keep
    from mlc.targets.base import get_target
    from mlc.tuning.drive import tune_graph
    from mlc.tuning.session import TuneOptions

    options = options or TuneOptions()
    if trials is not None:
        options = replace(options, trials=trials)
    cache = Settings.from_environment().cache
    compile_options = _options(model, None, opt_level, disabled_passes, fast_math)
    journal = journal_of(cache, compile_options.name, model.info.sha256) if records is None else Path(records)
    if records is None:
        _make_folder(journal.parent)
    tuning = tune_graph(
        model.graph,
        get_target(target),
        compile_options,
        options,
        records=journal,
        threads=threads,
        only=only,
        measure=measure,
        fresh=fresh,
        check_whole=check_whole,
        transfer=transfer,
        watcher=watcher,
    )
    if records is None:
        keep(cache, journal, read_records([journal]).records)
    return tuning


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror}", hint="name a folder to be created") from error


def _options(
    model: Model,
    name: str | None,
    opt_level: int,
    disabled_passes: Sequence[str],
    fast_math: bool,
    *,
    verify: bool = False,
    check_regions: bool = False,
    keep_assembly: bool = False,
) -> CompileOptions:
    if name is not None and not is_prefix(name):
        raise UsageError(
            f"the name {name!r} cannot begin a C identifier, as it does in the calls of the package",
            hint="use letters, digits and _, 64 at most, the first a letter; for example detector",
        )
    return CompileOptions(
        name=name or model.info.name or Path(model.info.path).stem or "model",
        source=model.info.path,
        sha256=model.info.sha256,
        opt_level=opt_level,
        disabled_passes=tuple(disabled_passes),
        fast_math=fast_math,
        verify=verify,
        symbols=name or SYMBOLS,
        check_regions=check_regions,
        keep_assembly=keep_assembly,
    )


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
    _make_folder(folder)
    with atomic_write(file) as out:
        out.write(f"{program}\n".encode())


def _require_memory(manifest: Manifest, most: int | None) -> None:
    needed = manifest.memory.params_bytes + manifest.memory.workspace_bytes
    if most is not None and needed > most:
        raise UnsupportedError(
            f"the model needs {needed} bytes to run ({manifest.memory.params_bytes} of parameters and "
            f"{manifest.memory.workspace_bytes} of working memory), more than the limit of {most}",
            hint=f"raise it with --max-memory {needed}, or give the model a smaller batch",
        )


def pass_names() -> list[str]:
    """The passes that ``compile`` may leave out, in their order; some have a meaning for some targets only."""
    from mlc.pipeline import passes

    return passes.pass_names()


def survey(path: str | os.PathLike[str], *, limits: Limits | None = None, frontend: str | None = None) -> Survey:
    """What is in a model file, whether or not it can be imported.

    Args:
        path: the file.
        limits, frontend: as for ``load``.
    Raises:
        ImportModelError: the file is broken, hostile, or beyond a limit.
    """
    reader = get_frontend(frontend) if frontend else guess_frontend(path)
    return reader.survey(path, limits or DEFAULT_LIMITS)


def assembly(package: OpenPackage) -> str:
    """The assembly of a package's code, generated again from the intermediate code that it holds.

    Raises:
        UsageError: the package holds none, or its target is not installed.
    """
    from mlc.targets.base import get_target

    spec = package.manifest.target
    attributes = spec.details.get("mattr", "")
    target = get_target(f"{spec.string} -mattr={attributes}" if attributes else spec.string)
    sources = {
        name.removeprefix("src/"): package.read(name).decode("utf-8", "replace")
        for name in package.names()
        if name.startswith("src/")
    }
    return target.assembly(sources, opt_level=int(spec.details.get("opt_level", MAX_OPT_LEVEL)))


@dataclass(frozen=True)
class TargetInfo:
    """A target, as ``mlc targets`` lists it.

    Args:
        name: what users type.
        facts: what it stands for on this machine, by name: ``triple``, ``cpu``, ``features`` …
        compiles: code for it can be generated here.
        runs: such code can be run here.
        reason: why it does not compile or run; empty when it does both.
    """

    name: str
    facts: Mapping[str, Any]
    compiles: bool
    runs: bool
    reason: str


def targets() -> list[TargetInfo]:
    """Every installed target, and what this machine can do with it."""
    from mlc.targets.base import get_target, target_names

    found = []
    for name in target_names():
        try:
            facts: Mapping[str, Any] = get_target(name).describe()
        except MlcError as error:
            found.append(TargetInfo(name, {}, False, False, error.message))
            continue
        try:
            check_device(TargetSpec.from_facts(facts))
            reason = ""
        except DeviceError as error:
            reason = error.message
        found.append(TargetInfo(name, facts, True, not reason, reason))
    return found
