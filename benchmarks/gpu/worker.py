"""The process that runs models on the device, ours and PyTorch's: a job a line in, a line of JSON out.

It is a process of its own since a kernel that faults takes all that is in the process with it. Ours and PyTorch's
kernels share the device's context there; so whoever runs is waited for, and what goes wrong is said to be that side's,
in the answer and in the log.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import mlc
from benchmarks.gpu.pool import LOST
from benchmarks.gpu.table import COMPILED, OURS, SIDES
from benchmarks.stats import Arrays, Spread, largest_error
from benchmarks.zoo import MODELS, build, sample_inputs
from mlc.targets.cuda.api import CudaError

ROUNDS, SECONDS, WARMUP = 30, 1.5, 3  # of turns, at most; time that they take, about; runs before
TOLERANCES = {"fp32": 1e-3, "fp16": 5e-2}  # of the largest magnitude of a result

Job = dict[str, Any]
Timer = Callable[[], float]


class SideError(Exception):
    """What went wrong with one side of a job; the error itself is the cause.

    Args:
        side: whose turn it was.
        error: what was raised.
    """

    def __init__(self, side: str, error: Exception) -> None:
        said = (str(error).strip().splitlines() or [""])[0]
        super().__init__(f"{side}: {type(error).__name__}: {said}"[:500])
        self.side = side
        self.lost = _lost(error)


def _lost(error: BaseException) -> bool:
    """Whether the process has lost the device: it then answers everything with an error, even that nothing is left."""
    met: BaseException | None = error
    while met is not None:
        if isinstance(met, CudaError) and met.fatal:
            return True
        met = met.__cause__ or met.__context__
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@contextmanager
def turn_of(side: str, *, begins: bool = False) -> Iterator[None]:
    """What goes wrong meanwhile goes wrong with this side.

    Args:
        side: whose turn it is.
        begins: whether the log is told, which is all that is known of a process that ends.
    Raises:
        SideError: of what was raised.
    """
    if begins:
        tell(f"{side} begins")
    try:
        yield
    except Exception as error:
        raise SideError(side, error) from error


def tell(what: str) -> None:
    """A line of the log."""
    print(f"[{os.getpid()}] {what}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Side:
    """One who runs the model.

    Args:
        seconds: of one run, by the device's events or by the clock.
        outputs: of the last run.
        kept: what must live as long as the side: a captured graph reads where they lay its inputs and what the compiled
            code holds.
    """

    seconds: Timer
    outputs: Callable[[], Arrays]
    kept: object = None


def model_of(job: Job) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model of a job, with inputs."""
    model = build(job["model"], small=job["quick"])
    return model, sample_inputs(model, 1)


def package_of(job: Job) -> Path:
    """The compiled model, made unless it is there."""
    path = Path(job["package"])
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".onnx")
        onnx.save(build(job["model"], small=job["quick"]), file)
        records = [job["records"]] if job.get("records") else []
        how = {"fp16": job["precision"] == "fp16", "records": records, "disabled_passes": job.get("disabled", [])}
        mlc.compile(mlc.load(file), job["target"], **how).save(path)
    return path


def ours(job: Job, inputs: Arrays) -> tuple[Side, bool]:
    """This compiler's side, and whether all of the model is on the device: its own account counts then."""
    module = mlc.load_module(package_of(job))
    whole = all(step.device is not None for step in module.manifest.steps)
    found: dict[str, np.ndarray] = {}

    def seconds() -> float:
        start = time.perf_counter()
        found.update(module.run(inputs))
        took = time.perf_counter() - start
        return sum(float(r.report["seconds"]) for r in module.device_runs) if whole else took

    return Side(seconds, lambda: found), whole


def _compiler(model: str, *, graph: bool) -> Job:
    """How PyTorch compiles: on a GPU kernels are chosen by measuring; the graph is captured here, as eager's is.

    Convolutions of networks are cuDNN's: choosing among Triton's as well takes minutes for each network.
    """
    if not graph:
        return {}
    networks = {"max_autotune_conv_backends": "ATEN"} if MODELS[model].kind == "network" else {}
    return {"max_autotune": True, "coordinate_descent_tuning": True, "triton.cudagraphs": False, **networks}


def theirs(
    file: Path, inputs: Arrays, precision: str, *, graph: bool, compiler: Job | None = None, captured: bool = True
) -> Side:
    """PyTorch's side; inputs are on the device.

    Args:
        file: the ONNX model.
        precision: ``fp32`` or ``fp16``.
        graph: whether it runs on a GPU, all launches as one CUDA graph.
        compiler: options of PyTorch's compiler; eager where there are none.
        captured: whether the graph is made; otherwise it has only run.
    """
    import torch

    from benchmarks.peers.torch_graph import OnnxModule

    torch._dynamo.reset()
    device = "cuda" if graph else "cpu"
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    module = OnnxModule(file, half=precision == "fp16").eval().to(device)
    tensors = [torch.from_numpy(inputs[name]).to(device) for name in module.inputs]
    results: list[tuple[Any, ...]] = []

    def whole(*given: Any) -> tuple[Any, ...]:
        """With the model's own types of inputs and results, as ours has them in half precision, too."""
        if precision == "fp32":
            return tuple(module(*given))
        made = module(*(t.half() if t.is_floating_point() else t for t in given))
        return tuple(t.float() if t.is_floating_point() else t for t in made)

    def outputs() -> Arrays:
        return {name: t.cpu().numpy() for name, t in zip(module.results, results[0], strict=True)}

    run = whole if compiler is None else torch.compile(whole, options=compiler)
    for _ in range(WARMUP):
        results[:] = [run(*tensors)]
    if graph:
        torch.cuda.synchronize()  # what has faulted says so here, not where somebody else waits
    if not graph or not captured:

        def clock() -> float:
            start = time.perf_counter()
            results[:] = [run(*tensors)]
            return time.perf_counter() - start

        return Side(clock, outputs)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(*tensors)
    torch.cuda.synchronize()
    launches = torch.cuda.CUDAGraph()
    with torch.cuda.graph(launches):
        results[:] = [run(*tensors)]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def events() -> float:
        begin.record()
        launches.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    return Side(events, outputs, kept=(tensors, run))


def made(job: Job) -> Job:
    """The package, made."""
    return {"bytes": package_of(job).stat().st_size}


def check(job: Job) -> Job:
    """The model's results beside those of ONNX Runtime, or else PyTorch on the processor."""
    model, inputs = model_of(job)
    with turn_of(OURS, begins=True):
        side, _ = ours(job, inputs)
        side.seconds()
    try:
        import onnxruntime as ort
    except ImportError:
        file = Path(job["package"]).with_suffix(".onnx")
        reference = theirs(file, inputs, "fp32", graph=False)
        want, by = reference.outputs(), "torch"
    else:
        session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        want, by = dict(zip(names, session.run(names, inputs), strict=True)), "onnxruntime"
    error = largest_error(side.outputs(), want)
    if error > TOLERANCES[job["precision"]]:
        return {"error": f"results differ by {error:.1e} of the largest magnitude", "difference": error}
    return {"difference": error, "reference": by}


def peer(job: Job) -> Job:
    """The model compiled by PyTorch, whose cache then has it for whoever measures."""
    _, inputs = model_of(job)
    graph = job["target"].split()[0] == "cuda"
    file = Path(job["package"]).with_suffix(".onnx")
    compiler = _compiler(job["model"], graph=graph)
    with turn_of(COMPILED, begins=True):
        theirs(file, inputs, job["precision"], graph=graph, compiler=compiler, captured=False)
    return {}


def measure(job: Job) -> Job:
    """Times of ours and PyTorch's, in turns.

    Besides what the others need, a job may have ``variants``, lists of passes to be left out by what such a side is
    called; and ``peers``, who of PyTorch's is measured.
    """
    _, inputs = model_of(job)
    with turn_of(OURS, begins=True):
        mine, whole = ours(job, inputs)
        mine.seconds()
    file = Path(job["package"]).with_suffix(".onnx")
    graph = job["target"].split()[0] == "cuda"
    sides, said = {OURS: mine}, {}
    for number, (name, disabled) in enumerate(job.get("variants", {}).items()):
        package = file.with_name(f"{file.stem}-variant{number}.tar")
        with turn_of(name, begins=True):
            sides[name], _ = ours({**job, "package": str(package), "disabled": disabled}, inputs)
            sides[name].seconds()
    for name, compiler in (("torch", None), (COMPILED, _compiler(job["model"], graph=graph))):
        if name not in job.get("peers", (name,)):
            continue
        try:
            with turn_of(name, begins=True):
                sides[name] = theirs(file, inputs, job["precision"], graph=graph, compiler=compiler)
        except SideError as error:  # what a peer cannot do is no fault of ours: the row says so
            if error.lost:
                raise
            traceback.print_exc()
            said[name] = str(error).removeprefix(f"{name}: ")[:200]
    for name, side in sides.items():
        with turn_of(name):
            for _ in range(WARMUP):
                side.seconds()
    times: dict[str, list[float]] = {name: [] for name in sides}
    tell("all in turns")
    start = time.perf_counter()
    while len(times[OURS]) < 3 or (len(times[OURS]) < ROUNDS and time.perf_counter() - start < SECONDS):
        names = list(sides) if len(times[OURS]) % 2 == 0 else list(reversed(sides))
        for name in names:
            with turn_of(name):
                times[name].append(sides[name].seconds())
    wanted = next((sides[n].outputs() for n in sides if n != OURS), None)
    how, peers_how = "events" if whole else "the clock", "events" if graph else "the clock"
    peers = [name for name in SIDES[1:] if name in sides]
    found: Job = {
        "timed": how if how == peers_how or not peers else f"{how}, torch by {peers_how}",
        "failed": said,
        "seconds": {n: {"median": (s := Spread.of(t)).median, "mad": s.mad, "runs": s.count} for n, t in times.items()},
    }
    if wanted is not None:
        found["difference"] = largest_error(mine.outputs(), wanted)
        if found["difference"] > TOLERANCES[job["precision"]]:
            found["error"] = f"results differ by {found['difference']:.1e} of the largest magnitude"
    return found


def answer_of(job: Job) -> Job:
    """What comes of a job; of one that fails ``error``, and, where the device is lost with it, by whom."""
    what = f"{job['stage']} {job['model']} {job['precision']}"
    tell(what)
    try:
        return {"build": made, "check": check, "peer": peer, "measure": measure}[job["stage"]](job)
    except SideError as error:
        traceback.print_exc()
        tell(f"{what}: {'the device is lost by' if error.lost else 'failed on the side of'} {error}")
        return {"error": str(error), **({LOST: error.side} if error.lost else {})}
    except Exception as error:  # the boundary of a process: whatever went wrong is the job's answer
        traceback.print_exc()
        tell(f"{what}: failed")
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def main() -> None:
    """Does jobs until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries talk
    for line in sys.stdin:
        answers.write(json.dumps(answer_of(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
