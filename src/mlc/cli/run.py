"""``mlc run``: outputs of a module, their comparison with a reference, and where the time goes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mlc.cli import run_views as views
from mlc.cli import values
from mlc.cli.console import Console, require_distinct, require_writable, status, write_json
from mlc.cli.group import Command
from mlc.cli.options import LoadOptions, is_package, json_option, load_options
from mlc.cli.pooling import pool_options
from mlc.errors import CheckFailedError, UsageError
from mlc.settings import MAX_SEED

if TYPE_CHECKING:
    import numpy as np

    from mlc.api import Model
    from mlc.harness.reference import Reference
    from mlc.pool.wish import Wish
    from mlc.runtime import Module, OutsideModule

Arrays = Mapping[str, "np.ndarray"]

WARMUP, DURATION, ITERATIONS = 3, 3.0, 100
MAX_COUNT, MAX_THREADS = 1 << 40, 1024
# More than any machine can make in the longest duration anybody waits for.
_UNLIMITED_RUNS = MAX_COUNT
INTERPRETER = "interpreter"  # our own, of the graph as it was imported
PYTHON = "python"  # the format of networks that only we can build
_UNLIMITED_SECONDS = 1e9


@dataclass(frozen=True)
class Checks:
    """What to compare the outputs with; ``model`` is where the user says the original is.

    ``operators``: whether the original calls operators of the user's own, which no other program knows.
    """

    verify: str | None
    layers: bool
    model: str | None
    atol: float | None
    rtol: float | None
    operators: bool = False

    def __post_init__(self) -> None:
        if not self.wanted and (self.model is not None or self.atol is not None or self.rtol is not None):
            raise UsageError(
                "--model, --atol and --rtol are only for a comparison",
                hint="add --verify model, or leave them out",
            )
        if self.verify is not None and not self.named and not self.verify.endswith(".npz"):
            known = ", ".join(("model", *_programs()))
            raise UsageError(f"--verify {self.verify}: there is no such reference", hint=f"{known}, or a FILE.npz")
        given = {"--verify": None if self.named else self.verify, "--model": self.model}
        for option, file in given.items():
            if file is not None and not Path(file).is_file():
                raise UsageError(f"{file}: there is no such file", hint=f"check the path after {option}")

    @property
    def wanted(self) -> bool:
        return self.verify is not None or self.layers

    @property
    def named(self) -> bool:
        """The outputs are compared with those of a program that runs the original model."""
        return self.verify == "model" or self.verify in _programs()

    @property
    def original(self) -> bool:
        """The original model has to be run."""
        return self.named or self.layers

    def program(self, format: str) -> str:
        """What runs the original model: what the user names, or what runs its format.

        Raises:
            UsageError: nothing does.
        """
        from mlc.harness.reference import reference_of

        if self.verify in _programs():
            return str(self.verify)
        return INTERPRETER if self.operators or format == PYTHON else reference_of(format)


def _programs() -> Collection[str]:
    from mlc.harness.reference import REFERENCES

    return [*REFERENCES, INTERPRETER]


@dataclass(frozen=True)
class Timing:
    """How long to measure; ``None`` is the default."""

    bench: bool
    warmup: int | None
    duration: float | None
    iterations: int | None
    profile: bool
    trace: str | None

    def __post_init__(self) -> None:
        if not self.bench and (self.warmup, self.duration, self.iterations) != (None, None, None):
            raise UsageError("--warmup, --duration and --iterations are only for --bench", hint="add --bench")

    @property
    def seconds(self) -> float:
        return self.duration if self.duration is not None else (_UNLIMITED_SECONDS if self.iterations else DURATION)

    @property
    def runs(self) -> int:
        return self.iterations or (_UNLIMITED_RUNS if self.duration is not None else ITERATIONS)


@dataclass
class Session:
    """One run of the command: the module, what it is fed, and what goes into the JSON document.

    ``original`` is the model it was compiled from, where that is to be run as well.
    """

    console: Console
    path: str
    module: Module | OutsideModule
    threads: int | None
    original: Path | None = None
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)

    @property
    def native(self) -> Module:
        """The module, where it is code in this process: an emulated one, or a board's, has no steps and no times."""
        from mlc.runtime import Module

        assert isinstance(self.module, Module)
        return self.module


@click.command(
    cls=Command,
    examples="""
    mlc run resnet18.tar --inputs image.npz --outputs result.npz --top 5
    mlc run resnet18.tar --verify model
    mlc run resnet18.tar --verify onnxruntime --verify-layers --model resnet18.onnx
    mlc run resnet18.tar --bench --threads 2
    mlc run resnet18.tar --profile --json profile.json
    mlc run bert.tar --range input_ids=0:30521 --verify expected.npz
    mlc run board.tar --emulate --verify model
    mlc run board.tar --pool tls://hub:8786 --certificates pool/ann --verify model
    """,
)
@click.argument("module", required=False, metavar="MODULE.tar")
@click.option("--inputs", "-i", multiple=True, metavar="FILE.npz|NAME=FILE.npy", help="Inputs; may be repeated.")
@click.option("--outputs", "-o", metavar="FILE.npz", help="Save the outputs under the model's own names.")
@click.option("--fill", "--fill-mode", type=click.Choice(["random", "zeros", "ones"]), help="Fill inputs not given.")
@click.option("--seed", type=values.Whole(0, MAX_SEED), metavar="N", help="Seed of all that is random.  [default: 0]")
@click.option("--range", "ranges", multiple=True, metavar="[NAME=]A:B", help="Values of random inputs.")
@click.option("--top", "--print-top", type=values.Whole(1, MAX_COUNT), metavar="N", help="Show the N highest entries.")
@click.option("--labels", metavar="FILE", help="Names for --top, one a line.")
@click.option("--verify", metavar="model|NAME|FILE.npz", help="Compare the outputs; exit code 1 if they differ.")
@click.option("--verify-layers", is_flag=True, help="Find the first step that differs from the model.")
@click.option("--model", metavar="FILE", help="The original model, if it is not where it was.")
@click.option("--atol", type=values.Real(), metavar="X", help="Absolute tolerance.")
@click.option("--rtol", type=values.Real(), metavar="X", help="Tolerance over the largest magnitude.")
@click.option("--bench", "--print-time", is_flag=True, help=f"Time it: {DURATION:g} s, or {ITERATIONS} runs.")
@click.option(
    "--warmup", type=values.Whole(0, MAX_COUNT), metavar="N", help=f"Runs before timing.  [default: {WARMUP}]"
)
@click.option("--duration", type=values.Real(), metavar="S", help="Seconds to time, however many runs.")
@click.option("--iterations", type=values.Whole(1, MAX_COUNT), metavar="N", help="Runs to time, however long.")
@click.option("--profile", is_flag=True, help="Time every step, in runs of their own.")
@click.option("--trace", metavar="FILE.json", help="Write the profile as a Chrome trace.")
@click.option("--threads", type=values.Whole(1, MAX_THREADS), metavar="N", help="Threads.  [default: all cores]")
@click.option(
    "--device", metavar="NAME[:N]",
    help="Where to run: cpu, cuda, cuda:1 (the second one) …; 'list' lists them.  [default: what the module is for]",
)  # fmt: skip
@click.option("--emulate", is_flag=True, help="Run a module for another kind of processor under qemu.")
@pool_options
@load_options
@json_option
@click.pass_obj
def command(
    console: Console,
    module: str | None,
    inputs: tuple[str, ...],
    outputs: str | None,
    fill: str | None,
    seed: int | None,
    ranges: tuple[str, ...],
    top: int | None,
    labels: str | None,
    verify: str | None,
    verify_layers: bool,
    model: str | None,
    atol: float | None,
    rtol: float | None,
    bench: bool,
    warmup: int | None,
    duration: float | None,
    iterations: int | None,
    profile: bool,
    trace: str | None,
    threads: int | None,
    device: str | None,
    emulate: bool,
    wish: Wish | None,
    load_options: LoadOptions,
    json_file: str | None,
) -> None:
    """Run MODULE.tar once, and show, save, verify or time what it does. A module is native code: trust it first.

    Inputs that no file gives are random: floats are standard normal, booleans even odds, bytes anything, and wider
    integers 0 or 1, which is a valid token, mask or index in any model; --range says otherwise. States begin as the
    model has them before its first run.

    A model (.onnx, .tflite, .keras, .h5, .mlc) in place of the module is compiled in memory first.
    """
    from mlc.harness.arrays import write_npz
    from mlc.harness.top import read_labels

    checks = Checks(verify, verify_layers, model, atol, rtol, load_options.operators is not None)
    timing = Timing(bench, warmup, duration, iterations, profile or trace is not None, trace)
    if device == "list":
        from mlc.api import devices

        console.data("\n".join(f"{name}: {what}" if what else name for name, what in devices()))
        return
    if module is None:
        raise UsageError("Missing argument 'MODULE.tar'", hint="mlc run --help shows what can be given")
    if (emulate or wish is not None) and device is not None:
        where = "--emulate" if emulate else "--pool"
        raise UsageError(f"{where} runs on no device of this machine", hint="leave --device out")
    if emulate and wish is not None:
        raise UsageError("--emulate is of this machine, and --pool of others", hint="leave one of them out")
    if (emulate or wish is not None) and (timing.bench or timing.profile or verify_layers):
        raise UsageError(
            "--bench, --profile, --trace and --verify-layers need the processor itself",
            hint=f"leave them out, or leave {'--emulate' if emulate else '--pool'} out",
        )
    if labels is not None and top is None:
        raise UsageError("--labels is only for --top", hint="add --top 5")
    read = [module, model, labels, *(path for _, path in map(values.named_file, inputs))]
    require_distinct([*read, None if checks.named else verify], [outputs, trace, json_file])
    require_writable(outputs, trace, json_file)
    names = None if labels is None else read_labels(labels)
    session = _open(console, module, threads, device, load_options, checks, emulate, wish)
    if session.module.draws and checks.original:
        raise UsageError(
            f"{module}: draws random numbers, which no other program draws alike",
            hint="compare with what mlc gave before for the same --seed: --verify FILE.npz",
        )
    if checks.original:
        session.original = _original(session, checks)
    seed = console.settings.seed if seed is None else seed
    if session.module.draws:
        session.document["seed"] = seed
        console.note(f"random numbers: seed {seed}")
    session.feeds = _feeds(session, inputs, fill, seed, ranges)
    results = session.module.run(session.feeds, seed=seed)
    if outputs:
        write_npz(outputs, results)
    device_runs = session.module.device_runs
    session.document["outputs"] = views.show_outputs(console, results, saved=outputs)
    if device_runs:
        session.document["device"] = views.show_device(console, device_runs)
    if top is not None:
        session.document["top"] = views.show_top(console, results, top, names)
    failures = _verify(session, results, checks, load_options) if checks.wanted else []
    if timing.bench:
        times = session.native.benchmark(
            session.feeds, WARMUP if timing.warmup is None else timing.warmup, timing.seconds, timing.runs
        )
        session.document["bench"] = views.show_bench(session.console, times, session.native.phases)
    if timing.profile:
        session.document["profile"] = _profile(session, timing.trace)
    write_json(console, json_file, "run", session.document)
    if failures:
        raise CheckFailedError("; ".join(failures), hint=_next_step(checks, session.module))


def _open(
    console: Console,
    path: str,
    threads: int | None,
    device: str | None,
    load_options: LoadOptions,
    checks: Checks,
    emulate: bool,
    wish: Wish | None,
) -> Session:
    """Loads a module, or compiles a model in memory."""
    from mlc.runtime import emulate_module, load_module

    loaded: Module | OutsideModule
    if is_package(path):
        fixed = replace(load_options, constants={})
        if checks.original:  # what imports the original again
            fixed = replace(fixed, operators=None, dims={})
        if fixed.given:
            raise UsageError(
                "--shape, --dim, --input-layout and --model-format are for a model; a module has fixed shapes",
                hint="compile it again",
            )
        if load_options.constants and not checks.original:
            raise UsageError("--const is only for a model, or for a comparison with it", hint="leave it out")
        if wish is not None:
            from mlc.pool.module import PooledModule

            loaded = PooledModule(wish, path, threads)
            click.get_current_context().call_on_close(loaded.close)
        else:
            loaded = emulate_module(path, threads) if emulate else load_module(path, threads, device)
    elif emulate or wish is not None:
        raise UsageError(
            f"{'--emulate' if emulate else '--pool'} is for a module",
            hint=f"compile it first: mlc compile {path} --target arm -o MODULE.tar",
        )
    else:
        from mlc.api import compile as compile_model
        from mlc.runtime.device import CPU, device_named

        name = CPU if device is None else device_named(device)[0]
        with status(console, f"compiling {path}"):
            package = compile_model(load_options.load(path), "x86" if name == CPU else name, threads=threads)
            loaded = package.load(threads, device)
        console.note(f"{path} is a model: compiled in memory; mlc compile makes a module to keep")
    manifest = loaded.manifest
    document = {
        "module": path,
        "model": manifest.model.to_json(),
        "target": manifest.target.to_json(),
        "threads": loaded.threads,
    }
    return Session(console, path, loaded, threads, document=document)


def _feeds(
    session: Session, files: tuple[str, ...], fill: str | None, seed: int, ranges: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """Inputs from files, and made up ones for the rest."""
    from mlc.harness.arrays import read_npy, read_npz
    from mlc.harness.feeds import Fill, as_input, make_feeds

    given: dict[str, np.ndarray] = {}
    for name, file in map(values.named_file, files):
        arrays = read_npz(file) if name is None else {name: read_npy(file)}
        given = values.merged("--inputs", [*given.items(), *arrays.items()])
    specs = session.module.inputs
    states = {} if fill else session.module.manifest.model.initial_states()
    states = {name: array for name, array in states.items() if name not in given}
    spans = [values.span(text) for text in ranges]
    # With some inputs at hand, leaving others out is more often a mistake than a wish.
    left = [spec for spec in specs if spec.name not in {*given, *states}] if fill or not given else []
    everywhere = next((span for name, span in reversed(spans) if name is None), None)
    if ranges and fill in ("zeros", "ones"):
        raise UsageError(f"--range is for random inputs, and --fill {fill} makes none", hint="leave one of them out")
    if ranges and not left:
        raise UsageError("--range is for random inputs, and there are none", hint="leave it out")
    mode = Fill(fill or "random")
    made = make_feeds(
        left, mode, seed, everywhere, values.merged("--range", [(n, s) for n, s in spans if n is not None])
    )
    feeds = {spec.name: as_input(spec, given[spec.name]) for spec in specs if spec.name in given}
    unknown = {name: array for name, array in given.items() if name not in feeds}
    how = f"random, seed {seed}" if mode is Fill.RANDOM else str(mode)
    if made:
        session.console.note(f"inputs: {how}")
    if states:
        session.console.note(f"before the first run: {', '.join(states)}")
    came = {**dict.fromkeys(made, how), **dict.fromkeys(states, "before the first run")}
    session.document["inputs"] = [{**spec.to_json(), "from": came.get(spec.name, "file")} for spec in specs]
    # The module itself complains of missing and unknown names.
    return {**feeds, **made, **states, **unknown}


def _verify(session: Session, results: Arrays, checks: Checks, load_options: LoadOptions) -> list[str]:
    """Compares outputs, and steps if asked to; gives what differs, in words."""
    from mlc.harness.arrays import read_npz
    from mlc.harness.compare import compare_outputs
    from mlc.harness.feeds import as_original
    from mlc.harness.layers import compare_layers
    from mlc.harness.reference import open_reference

    failures = []
    reference: Reference | None = None
    states = session.module.manifest.model.initial_states()
    against = checks.verify
    if checks.original:
        assert session.original is not None
        kept = {c.name: c.array for c in session.module.manifest.model.constants}
        known = {name: array for name, array in kept.items() if array is not None}
        fixed = {**known, **states, **load_options.constants}
        format = session.module.manifest.model.format
        program = checks.program(format)
        if program == INTERPRETER:
            from mlc.api.interpreted import InterpretedReference

            reference = InterpretedReference(_imported(session, load_options))
        else:
            reference = open_reference(program, format, session.original, constants=fixed, threads=session.threads)
        if reference.note:
            session.console.note(reference.note)
            session.document["reference_note"] = reference.note
        against = program if checks.named else checks.verify
    if against is not None:
        with status(session.console, f"running {against}"):
            expected = (
                reference.run(as_original(session.feeds, session.module.manifest.model))
                if checks.named and reference
                else read_npz(against)
            )
        # which programs that keep states to themselves do not tell
        after = {f"{name}.next" for name in states} - {*expected}
        told = {name: array for name, array in results.items() if name not in after}
        precision = session.module.manifest.precision
        found = compare_outputs(told, expected, absolute=checks.atol, relative=checks.rtol, precision=precision)
        session.document["verify"] = views.show_comparison(session.console, against, found)
        failures += [f"output {c.name!r} differs from {against}: {c.summary()}" for c in found if not c.ok]
    if checks.layers and reference is not None:
        with status(session.console, "comparing every step"):
            report = compare_layers(
                session.native, reference, session.feeds, absolute=checks.atol, relative=checks.rtol
            )
        session.document["layers"] = views.show_layers(session.console, report)
        first = report.first_wrong
        if first is not None:
            failures.append(
                f"the first step to differ is {first.step} ({first.kernel}), tensor {first.result.name!r}, "
                f"from {', '.join(first.sources) or 'no node'}: {first.result.summary()}"
            )
    return failures


def _imported(session: Session, load_options: LoadOptions) -> Model:
    """The original model, imported with the shapes that the module has."""
    assert session.original is not None
    model = session.module.manifest.model
    shapes = {spec.name: spec.shape for spec in session.module.inputs} if model.format != PYTHON else {}
    return replace(load_options, shapes={**shapes, **load_options.shapes}).load(str(session.original))


def _original(session: Session, checks: Checks) -> Path:
    """The original model: where the user says, or where it was."""
    from mlc.harness.reference import file_sha256, find_source

    recorded = session.module.manifest.model
    if checks.model is None:
        return find_source(session.path, recorded)
    path = Path(checks.model)
    if file_sha256(path) != recorded.sha256:
        session.console.note(f"warning: {path} is not the very file that {session.path} was compiled from")
    return path


def _profile(session: Session, trace: str | None) -> list[dict[str, Any]]:
    """Times every step, shows the table, and writes the trace."""
    from mlc.harness.profile import chrome_trace, rows
    from mlc.runtime.atomic import atomic_write

    table = rows(session.native.profile(session.feeds))
    views.show_profile(session.console, table)
    if trace is not None:
        with atomic_write(trace) as file:
            file.write(json.dumps(chrome_trace(table, session.module.manifest.model.name)).encode())
    return [row.to_json() for row in table]


def _next_step(checks: Checks, module: Module | OutsideModule) -> str:
    if checks.layers:
        return "look at that step with: mlc inspect MODULE.tar --src KERNEL"
    if checks.original and any(module.manifest.precision.get(spec.name) == "quantised" for spec in module.outputs):
        return "give inputs like those that the model was quantised with: others may well be cut off"
    return "find the first step that differs with --verify-layers" if checks.original else "widen it with --rtol"
