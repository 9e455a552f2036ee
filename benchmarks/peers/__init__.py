"""The engines that a benchmark knows, this compiler among them, and how a user names one with options.

Each engine has a module in this package with

    def compile(model: Path, folder: Path, options: Options) -> Path      # if ``ahead``
    def load(file: Path, threads: int, inputs: Arrays, options: Options) -> Session

The module is imported in the engine's own process only, so it may import its library at the top.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata

import numpy as np
import numpy.typing as npt

from benchmarks.stats import Arrays

Options = Mapping[str, str]


class EngineError(Exception):
    """An engine cannot be named, loaded or run, or its process ended; the message has the reason."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """One kernel call of a run.

    Args:
        flops: operations, a multiply-add counted as two.
        bytes: least that it must move.
    """

    name: str
    milliseconds: float
    flops: float
    bytes: float


@dataclass(frozen=True)
class Session:
    """A loaded model with its inputs bound.

    Args:
        run: runs it once; what it returns does not matter.
        outputs: the results of the last run, by the model's names.
        profile: times every kernel, where an engine can tell.
    """

    run: Callable[[], object]
    outputs: Callable[[], Arrays]
    profile: Callable[[], list[KernelTime]] = list


@dataclass(frozen=True, slots=True)
class Peer:
    """One engine.

    Args:
        name: as users type it.
        module: its module in this package.
        packages: distributions it needs; the first is the one whose version is shown.
        what: one line for the documents and reports: how it is set up.
        ahead: it compiles ahead of time, into a file that it loads.
        keys: options it takes; ``None`` takes any.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    what: str
    ahead: bool = False
    keys: frozenset[str] | None = frozenset()

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if not version(name)]


# The name of this compiler in the table below: everything else is a peer to be compared with.
OURS = "mlc"

PEERS = {
    peer.name: peer
    for peer in (
        Peer(OURS, "ours", ("mlc",), "compiled without tuning for the host", ahead=True, keys=None),
        Peer("onnxruntime", "ort", ("onnxruntime",), "CPU provider, all optimisations, inputs and outputs bound"),
        Peer("openvino", "openvino", ("openvino",), "CPU, latency hint, f32, one stream, tensors bound"),
        Peer(
            "torch",
            "inductor",
            ("torch",),
            "torch.compile of the graph in functional operators, weights frozen, C++ wrapper",
            keys=frozenset({"eager"}),
        ),
        Peer(
            "iree",
            "iree",
            ("iree-base-compiler", "iree-base-runtime"),
            "llvm-cpu for the host, O3, data tiling, microkernels, convolutions as matrix products",
            ahead=True,
        ),
        Peer("tvm", "tvm", ("apache-tvm", "llvmlite"), "Relax, default CPU pipeline, not tuned", ahead=True),
    )
}


@dataclass(frozen=True)
class EngineSpec:
    """An engine with options, such as ``mlc[opt_level=1]``.

    Args:
        peer: which engine.
        options: for its module, as typed.
        label: how reports call it: the text it was parsed from.
        original: given the model before it was quantised.
    """

    peer: Peer
    options: Options = field(default_factory=dict)
    label: str = ""
    original: bool = False

    @property
    def ours(self) -> bool:
        return self.peer.name == OURS


def parse_engine(text: str) -> EngineSpec:
    """``NAME`` or ``NAME[KEY=VALUE,...]``.

    Raises:
        EngineError: there is no such engine, or it does not take such an option.
    """
    match = re.fullmatch(r"(?P<name>[\w.-]+)(?:\[(?P<options>[^\[\]]*)\])?", text.strip())
    if match is None:
        raise EngineError(f"{text!r} is not an engine; write NAME or NAME[KEY=VALUE,...]")
    if match["name"] not in PEERS:
        raise EngineError(f"no engine is called {match['name']!r}; there are {', '.join(PEERS)}")
    peer = PEERS[match["name"]]
    options: dict[str, str] = {}
    for part in (match["options"] or "").split(",") if match["options"] else ():
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or key.strip() in options:
            raise EngineError(f"{text!r}: {part!r} is not KEY=VALUE, or comes twice")
        options[key.strip()] = value.strip()
    unknown = [] if peer.keys is None else [key for key in options if key not in peer.keys]
    if unknown:
        known = ", ".join(sorted(peer.keys or ())) or "none"
        raise EngineError(f"{peer.name} has no option {', '.join(unknown)}; options: {known}")
    return EngineSpec(peer, options, text.strip())


def parse_engines(text: str) -> list[EngineSpec]:
    """Several, separated by commas outside brackets.

    Raises:
        EngineError: as above, or one is named twice.
    """
    specs = [parse_engine(part) for part in re.split(r",(?![^\[]*\])", text)]
    labels = [spec.label for spec in specs]
    if len(set(labels)) < len(labels):
        raise EngineError(f"an engine is named twice in {text!r}")
    return specs


def require_installed(specs: list[EngineSpec]) -> None:
    """Refuses engines whose packages are absent.

    Raises:
        EngineError: names them and how to get them.
    """
    for spec in specs:
        if missing := spec.peer.missing():
            raise EngineError(
                f"{spec.peer.name} needs {', '.join(missing)}, which is not installed; "
                "get the peers with: pip install '.[bench]'"
            )


def version(package: str) -> str:
    """Its installed version; empty without one."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def aligned(array: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """A copy that begins at a multiple of 64 bytes, so that no engine's time depends on where numpy puts arrays."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    copy = raw[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
