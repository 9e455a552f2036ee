"""Networks of :mod:`mlc.define.network` as models: live ones, and Python files that build one."""

from __future__ import annotations

import inspect
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.define.files import run_file
from mlc.define.foreign import ask
from mlc.define.network import Network
from mlc.errors import UsageError
from mlc.frontend.base import ImportedModel, ModelSource, OperatorInfo
from mlc.frontend.common.importing import finish, tensor_info
from mlc.frontend.limits import DEFAULT_LIMITS, Limits
from mlc.frontend.survey import Survey, by_count
from mlc.ir.graph import Builder
from mlc.ops import operators

FUNCTION = "network"
CONSTANTS = "constants"  # what a model says of its constants that are not learned, a list as JSON


class PythonFrontend:
    """The front end for :class:`~mlc.define.network.Network` and for ``.py`` files with a function ``network``.

    Such a file is run. Its function takes symbolic dimensions by name (``--dim batch=16``) and gives the network.
    """

    name = "python"
    suffixes = (".py",)

    def matches(self, head: bytes, path: Path) -> bool:
        """Whether the file is called ``.py``: what Python is cannot be told from its first bytes."""
        return path.suffix == ".py"

    def accepts(self, model: object) -> bool:
        """Whether ``model`` is a network."""
        return isinstance(model, Network)

    def load(
        self,
        path: Any,
        *,
        shapes: Mapping[str, Sequence[int]] | None = None,
        dims: Mapping[str, int] | None = None,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> ImportedModel:
        """The graph of a network.

        Args:
            path: the network, or a file that builds it.
            shapes, constants: must be empty: the function itself says what its inputs are.
            dims: by name of the function's parameters.
            limits: budgets.
        Raises:
            UsageError: the file cannot be run, or its function does not take the dimensions.
        """
        label = "a network" if isinstance(path, Network) else os.fspath(path)
        for option, given in (("--shape", shapes), ("--const", constants)):
            if given:
                raise UsageError(f"{label}: a network in Python takes no {option}", hint="--dim NAME=N is an argument")
        if isinstance(path, Network):
            return _imported(path, "", dims or {}, limits)
        return _imported(_built(path, dims or {}), label, {}, limits)

    def survey(self, path: str | os.PathLike[str], limits: Limits = DEFAULT_LIMITS) -> Survey:
        """What is in the network that a file builds; the first parameters of inputs are named as the function does."""
        model = self.load(path, limits=limits)
        graph, source = model.graph, model.source
        open_ = list(_parameters(run_file(path), path))

        def text(info: Any) -> str:
            first = [open_[0]] if open_ else [str(n) for n in info.shape[:1]]
            return f"{info.dtype}[{','.join([*first, *map(str, info.shape[1:])])}]"

        return Survey(
            format=self.name,
            name=source.name,
            producer=source.producer,
            inputs=tuple((info.name, text(info)) for info in source.inputs),
            outputs=tuple((info.name, text(info)) for info in source.outputs),
            operators=by_count(Counter(node.op.name for node in graph.nodes)),
            parameters=sum(a.size for a in graph.constants.values()),
            parameter_bytes=sum(a.nbytes for a in graph.constants.values()),
        )

    def supported_operators(self) -> list[OperatorInfo]:
        """The core operators: a network may apply any of them, besides its own."""
        return [OperatorInfo(op.name) for op in operators()]


def _parameters(module: Any, path: str | os.PathLike[str]) -> Mapping[str, inspect.Parameter]:
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise UsageError(
            f"{os.fspath(path)}: has no function {FUNCTION!r}",
            hint=f"def {FUNCTION}(batch=64): … return mlc.graph(…)",
        )
    return inspect.signature(function).parameters


def _built(path: str | os.PathLike[str], dims: Mapping[str, int]) -> Network:
    """The network that a file builds.

    Raises:
        UsageError: it does not.
    """
    module = run_file(path)
    known = _parameters(module, path)
    for name in dims:
        if name not in known:
            told = ", ".join(known) or "nothing"
            raise UsageError(f"{os.fspath(path)}: {FUNCTION}() takes no {name!r}", hint=f"it takes {told}")
    missing = [n for n, p in known.items() if p.default is inspect.Parameter.empty and n not in dims]
    if missing:
        raise UsageError(f"{os.fspath(path)}: {FUNCTION}() needs {', '.join(missing)}", hint=f"--dim {missing[0]}=N")
    found = ask(lambda: getattr(module, FUNCTION)(**dims), lambda error: f"{os.fspath(path)}: {FUNCTION}()")
    if not isinstance(found, Network):
        raise UsageError(f"{os.fspath(path)}: {FUNCTION}() gives a {type(found).__name__}, not what mlc.graph makes")
    return found


def _imported(network: Network, path: str, dims: Mapping[str, int], limits: Limits) -> ImportedModel:
    if dims:
        raise UsageError("a live network has no symbolic dimensions", hint="build it with other shapes")
    whole = network.graph()
    limits.check("nodes", len(whole.nodes), "nodes of the network")
    g = Builder(whole.name)
    g.inputs, g.nodes, g.constants = list(whole.inputs), list(whole.nodes), dict(whole.constants)
    graph = finish(g, whole.outputs, whole.output_names)
    learned = set(network.parameters)
    kept = [
        v.name for v, a in graph.constants.items() if v.name not in learned and a.dtype == np.float32 and a.size > 1
    ]
    info = ModelSource(
        format="python",
        path=path,
        name=whole.name,
        producer="mlc.graph",
        sha256=_digest(path),
        inputs=tuple(tensor_info(v.name, v) for v in graph.inputs),
        outputs=tuple(tensor_info(n, v) for n, v in zip(graph.output_names, graph.outputs, strict=True)),
        metadata={CONSTANTS: json.dumps(kept)} if kept else {},
    )
    return ImportedModel(graph, info)


def kept_constants(source: ModelSource) -> list[str]:
    """Names of a network's constants that are not learned."""
    found: list[str] = json.loads(source.metadata.get(CONSTANTS, "[]"))
    return found


def _digest(path: str) -> str:
    import hashlib

    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else "0" * 64
