"""Taking turns: how all engines of a model are measured in one go.

Every engine runs in blocks of a fraction of a second, one engine after the other and in changing order, so a machine
that slows down slows all of them. Only one engine is awake at a time.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto

from benchmarks.engines import PATIENCE_SECONDS, Engine, Memory, compile_apart, let_settle
from benchmarks.peers import EngineError, EngineSpec, KernelTime
from benchmarks.stats import Arrays, Spread, largest_error, paired_ratio
from benchmarks.zoo import sample_inputs

# An engine that has used this many times its share of the time sits out the rounds that remain.
PATIENCE_SHARES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure: ``rounds`` blocks for each engine, each of about ``block_seconds``."""

    rounds: int
    block_seconds: float
    patience: float = PATIENCE_SECONDS


NORMAL = Plan(rounds=10, block_seconds=0.3)
QUICK = Plan(rounds=4, block_seconds=0.08, patience=60.0)


@dataclass(frozen=True, slots=True)
class Versus:
    """One of our engines against the best peer: ``speedup`` above 1 means that ours is faster."""

    peer: str
    speedup: Spread


@dataclass(slots=True)
class Result:
    """What was found for one model and one number of threads; by an engine's label where there is one for each.

    Args:
        kind: ``network``, ``int8`` (a network in 8 bits), ``operator``, ``batched``, ``single`` (a network on
            one word or token) or ``file``.
        flops: operations of one run, a multiply-add counted as two.
        bytes: least that one run must move: inputs, weights and outputs, each once.
        written: those of outputs.
        ours: labels of this compiler's engines.
        milliseconds: of one run; an engine that failed is absent.
        versus: for each of ours, the best peer and how much faster ours is.
        error: largest difference from ``reference`` over its largest magnitude.
        prepare_seconds: from the ONNX file to the end of the first run.
        kernels: of a network, in order, for engines that can tell.
        idle_share: CPU time that engines used while another was measured, over the whole time measured.
        failures: why an engine is absent.
    """

    model: str
    kind: str
    threads: int
    flops: float = 0.0
    bytes: float = 0.0
    written: float = 0.0
    ours: list[str] = field(default_factory=list)
    milliseconds: dict[str, Spread] = field(default_factory=dict)
    versus: dict[str, Versus] = field(default_factory=dict)
    reference: str = ""
    error: dict[str, float] = field(default_factory=dict)
    prepare_seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    kernels: dict[str, list[KernelTime]] = field(default_factory=dict)
    idle_share: float = 0.0
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def best_peer(self) -> str:
        """The fastest engine that is not ours; empty without one."""
        peers = {label: spread for label, spread in self.milliseconds.items() if label not in self.ours}
        return min(peers, key=lambda label: peers[label].median, default="")


# Seconds of every run, as one list for each round, by label.
Blocks = dict[str, list[list[float]]]


def take_turns(engines: Sequence[Engine], plan: Plan, failures: dict[str, str]) -> tuple[Blocks, float]:
    """Measures engines in changing order; one that fails on the way is noted and left out.

    Returns:
        the times, and the share of them for which engines used the processor although it was not their turn.
    """
    alive = list(engines)
    # How many runs make a block, and how many before it do not count: none where one run is longer than a block.
    sizes: dict[str, tuple[int, int]] = {}
    blocks: Blocks = {engine.label: [] for engine in engines}
    disturbance = 0.0

    def turn(engine: Engine, action: Callable[[], list[float]]) -> list[float]:
        try:
            let_settle(alive)
            return action()
        except EngineError as error:
            failures[engine.label] = str(error)
            alive.remove(engine)
            blocks.pop(engine.label)
            return []

    allowance = PATIENCE_SHARES * plan.rounds * plan.block_seconds
    for engine in engines:
        if engine.first_seconds > allowance:
            # Minutes a run: the one that there was has to do, and counts as the first round.
            sizes[engine.label] = (0, 0)
            continue
        once = turn(engine, lambda e=engine: e.time(1, warmup=0))
        if once and once[0] < plan.block_seconds:
            # That was perhaps the time of threads that were asleep.
            once = turn(engine, lambda e=engine: e.time(2, warmup=1))
        if once:
            count = max(1, round(plan.block_seconds / min(once)))
            sizes[engine.label] = (count, int(min(once) < plan.block_seconds))
    for index in range(plan.rounds):
        for engine in list(alive) if index % 2 == 0 else list(reversed(alive)):
            if sizes[engine.label] == (0, 0):
                blocks[engine.label].append([engine.first_seconds] if index == 0 else [])
                continue
            if sum(seconds for block in blocks[engine.label] for seconds in block) > allowance:
                blocks[engine.label].append([])
                continue
            others = [other for other in alive if other is not engine]
            before = sum(other.cpu_seconds() for other in others)
            times = turn(engine, lambda e=engine: e.time(*sizes[e.label]))
            if times:
                blocks[engine.label].append(times)
                disturbance += sum(other.cpu_seconds() for other in others) - before
    total = sum(value for rounds in blocks.values() for block in rounds for value in block)
    return blocks, disturbance / total if total else 0.0


def summarise(result: Result, blocks: Blocks) -> None:
    """Fills medians and speed-ups in."""
    for label, rounds in blocks.items():
        if values := [1e3 * value for block in rounds for value in block]:
            result.milliseconds[label] = Spread.of(values)
    best = result.best_peer
    for label in result.ours:
        if best and label in blocks and (ratio := paired_ratio(blocks[best], blocks[label])):
            result.versus[label] = Versus(best, ratio)


def compare_outputs(result: Result, outputs: dict[str, Arrays]) -> None:
    """Fills the errors in, against onnxruntime or, where it is absent, the first peer that gave something."""
    peers = [label for label in outputs if label not in result.ours]
    result.reference = next((label for label in peers if label.startswith("onnxruntime")), peers[0] if peers else "")
    if result.reference:
        expected = outputs[result.reference]
        result.error = {k: largest_error(v, expected) for k, v in outputs.items() if k != result.reference}


def bench(
    result: Result,
    specs: Sequence[EngineSpec],
    files: dict[str, Path],
    inputs: Arrays,
    plan: Plan,
    cores: Sequence[int],
) -> Result:
    """Fills in a result: starts the engines, measures them in turn and compares their outputs.

    Args:
        specs: the engines.
        files: what each has to load; one without is left out.
    """
    engines: list[Engine] = []
    try:
        for spec in specs:
            if spec.label not in files:
                continue
            try:
                engine = Engine(spec, files[spec.label], result.threads, inputs, cores, plan.patience)
            except EngineError as error:
                result.failures[spec.label] = str(error)
                continue
            engines.append(engine)
            result.prepare_seconds[spec.label] = engine.load_seconds
        blocks, result.idle_share = take_turns(engines, plan, result.failures)
        summarise(result, blocks)
        outputs = {}
        for engine in engines:
            if engine.label in blocks:
                result.memory[engine.label] = engine.memory()
                outputs[engine.label] = engine.outputs()
                if result.kind in ("network", "int8") and (kernels := engine.profile()):
                    result.kernels[engine.label] = kernels
        compare_outputs(result, outputs)
    finally:
        for engine in engines:
            engine.close()
    return result


@dataclass(frozen=True)
class Workload:
    """A model to measure: its name in reports, its kind, its ONNX file, and what a run of it does.

    Args:
        original: the file of the model before it was quantised, if it was.
    """

    name: str
    kind: str
    file: Path
    model: ModelProto
    flops: float = math.nan
    bytes: float = math.nan
    written: float = math.nan
    original: Path | None = None


def bench_workload(
    work: Workload,
    specs: Sequence[EngineSpec],
    threads: Sequence[int],
    plan: Plan,
    cores: Sequence[int],
    say: Callable[[str], None],
) -> list[Result]:
    """All results of one model: compiled once, measured with each number of threads."""
    inputs = sample_inputs(work.model)
    results = []
    with tempfile.TemporaryDirectory(prefix="mlc-bench-") as name:
        files: dict[str, Path] = {}
        seconds: dict[str, float] = {}
        failures: dict[str, str] = {}
        for index, spec in enumerate(specs):
            folder = Path(name, str(index))
            folder.mkdir()
            say(f"{work.name}: compiling with {spec.label}")
            try:
                file = work.original if spec.original and work.original is not None else work.file
                files[spec.label], seconds[spec.label] = compile_apart(spec, file, folder, plan.patience)
            except EngineError as error:
                failures[spec.label] = str(error)
        for count in threads:
            say(f"{work.name}: measuring with {count} thread{'s'[: count > 1]}")
            result = Result(
                work.name,
                work.kind,
                count,
                work.flops,
                work.bytes,
                work.written,
                ours=[spec.label for spec in specs if spec.ours],
                failures=dict(failures),
            )
            bench(result, specs, files, inputs, plan, cores)
            for label in result.prepare_seconds:
                result.prepare_seconds[label] += seconds[label]
            results.append(result)
    return results
