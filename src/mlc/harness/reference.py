"""The original model, run on the same inputs by another program: which programs there are, and onnxruntime."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mlc.errors import ImportModelError, MissingDependencyError, UnsupportedError, UsageError
from mlc.runtime.manifest import ModelSpec

# Name that users type -> (format of the models that it runs, ``module:class``).
REFERENCES = {
    "keras": ("keras", "mlc.harness.keras:KerasReference"),
    "onnxruntime": ("onnx", "mlc.harness.reference:OnnxReference"),
    "tflite": ("tflite", "mlc.harness.litert:LitertReference"),
}

# Tensors of a batch of intermediate results, together, in bytes; one of them may be larger by itself.
BATCH_BYTES = 256 << 20

# onnxruntime's names of element types where numpy has another
_NUMPY_NAMES = {"float": "float32", "double": "float64"} | {
    name: name for name in ("float16", "bool", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)))
}
_PRODUCTS_OF_BYTES = {
    *("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat"),
    *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"),
}
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Tap:
    """An intermediate tensor to look at: its name in the model, and its size in bytes."""

    name: str
    nbytes: int


class Reference(Protocol):
    """A program that runs original models.

    Attributes:
        note: what is special about how it runs this one, for users to read; most often nothing.
    """

    @property
    def note(self) -> str: ...

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""
        ...

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Intermediate tensors, in batches, in the order of ``taps``."""
        ...

    def tensor_names(self) -> set[str]:
        """The tensors that may be asked for."""
        ...


def reference_of(format: str) -> str:
    """Name of the program that runs models of a format; modules that do not say theirs are of ONNX.

    Raises:
        UsageError: there is none.
    """
    for name, (runs, _) in REFERENCES.items():
        if runs == (format or "onnx"):
            return name
    raise UsageError(
        f"nothing here runs {format} models, to compare with", hint="compare with your own results: --verify FILE.npz"
    )


def open_reference(
    name: str,
    format: str,
    path: str | os.PathLike[str],
    *,
    constants: Mapping[str, npt.ArrayLike] | None = None,
    threads: int | None = None,
) -> Reference:
    """The original model in the program called ``name``.

    Args:
        name: of :data:`REFERENCES`.
        format: of the model, as the module recorded it.
        path: the model.
        constants: values for inputs that were made constants when the model was compiled.
        threads: as many as there are cores unless given.
    Raises:
        UsageError: the program does not run models of this format.
        MissingDependencyError: it is not installed.
        UnsupportedError: it cannot run the model.
    """
    runs, place = REFERENCES[name]
    if runs != (format or "onnx"):
        raise UsageError(
            f"{name} does not run {format or 'onnx'} models, of which this is one",
            hint=f"--verify {reference_of(format)}, or --verify model, which finds it by itself",
        )
    module, _, attribute = place.partition(":")
    made: Reference = getattr(import_module(module), attribute)(path, constants=constants, threads=threads)
    return made


class OnnxReference:
    """An ``.onnx`` file run by onnxruntime on the CPU.

    A model of floats with ``QuantizeLinear`` in it is run as it stands: onnxruntime's optimisations would compute it in
    integers, which is faster and not what the model says. Products that the model has in bytes are exact: on processors
    without VNNI onnxruntime adds up pairs of them in 16 bits, which saturates, unless it is told otherwise.

    Args:
        path: the file; data beside it is found.
        constants: values for inputs that were made constants when the model was compiled.
        threads: as many as there are cores unless given.
    Raises:
        MissingDependencyError: onnxruntime is not installed.
        UnsupportedError: onnxruntime cannot run the model.
    """

    note = ""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        constants: Mapping[str, npt.ArrayLike] | None = None,
        threads: int | None = None,
    ) -> None:
        self.path = Path(path)
        self._ort = _onnxruntime()
        self._constants = dict(constants or {})
        self._threads = threads
        self._session = self._open(os.fspath(path), optimise=not self._has({"QuantizeLinear"}))

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises:
            UsageError: the model has an input for which there is no value.
            UnsupportedError: onnxruntime fails.
        """
        return self._run(self._session, self._feeds(inputs), [output.name for output in self._session.get_outputs()])

    def intermediates(self, inputs: Mapping[str, np.ndarray], taps: Sequence[Tap]) -> Iterator[dict[str, np.ndarray]]:
        """Intermediate tensors, in batches that stay below ``BATCH_BYTES``.

        The graph is run as it stands, without onnxruntime's own optimisations, once for each batch.

        Args:
            inputs: as for ``run``.
            taps: tensors of the model, see ``tensor_names``.
        Returns:
            an iterator of batches, in the order of ``taps``.
        """
        import onnx

        feeds = self._feeds(inputs)
        model = self._parse()
        own = [output.name for output in model.graph.output]
        for batch in batches(taps):
            del model.graph.output[len(own) :]
            model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in batch if name not in own)
            session = self._open(model.SerializeToString(), optimise=False)
            yield self._run(session, feeds, batch)

    def tensor_names(self) -> set[str]:
        """The tensors that nodes of the model's graph compute."""
        return {name for node in self._parse().graph.node for name in node.output if name}

    def _has(self, operators: Collection[str]) -> bool:
        try:
            return any(node.op_type in operators for node in self._parse().graph.node)
        except ImportModelError:
            return False  # onnxruntime may read what onnx cannot, and says itself what is wrong

    def _parse(self) -> Any:
        import onnx
        from google.protobuf.message import DecodeError

        try:
            return onnx.load(os.fspath(self.path), load_external_data=False)
        except (OSError, DecodeError) as error:
            raise ImportModelError(f"{self.path}: cannot be read as ONNX: {error}") from error

    def _feeds(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        feeds = {}
        for wanted in self._session.get_inputs():
            if wanted.name in inputs:
                feeds[wanted.name] = np.asarray(inputs[wanted.name])
            elif wanted.name in self._constants:
                # Plain numbers have no element type of their own.
                kind = _NUMPY_NAMES.get(wanted.type.removeprefix("tensor(").removesuffix(")"))
                feeds[wanted.name] = np.asarray(self._constants[wanted.name], kind)
            else:
                raise missing_input(self.path, "onnxruntime", wanted.name)
        return feeds

    def _open(self, model: str | bytes, *, optimise: bool = True) -> Any:
        with _failing_as_unsupported(self.path):
            if self._has(_PRODUCTS_OF_BYTES):
                try:
                    return self._session_of(model, optimise, exact=True)
                except self._ort.capi.onnxruntime_pybind11_state.NotImplemented:
                    pass  # of signed data, whose products do not saturate, it has no other kernels
            return self._session_of(model, optimise)

    def _session_of(self, model: str | bytes, optimise: bool, *, exact: bool = False) -> Any:
        ort = self._ort
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._threads or 0
        options.add_session_config_entry(_EXTERNAL_FOLDER, os.fspath(self.path.resolve().parent))
        if exact:
            options.add_session_config_entry("session.x64quantprecision", "1")
        if not optimise and exact:  # which is one of its optimisations
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        elif not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def _run(self, session: Any, feeds: Mapping[str, np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
        with _failing_as_unsupported(self.path):
            return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))


def find_source(module: str | os.PathLike[str], model: ModelSpec) -> Path:
    """The file that a module was compiled from.

    It is looked for where it was then, and beside the module; it counts only when it is the very same file.

    Raises:
        UsageError: it is not there, or was changed.
    """
    hint = "name the original model: --model MODEL"
    if not model.source:
        raise UsageError(f"{os.fspath(module)}: does not say which file it was compiled from", hint=hint)
    recorded = Path(model.source)
    changed = False
    for candidate in (recorded, Path(module).parent / recorded.name):
        if candidate.is_file():
            if file_sha256(candidate) == model.sha256:
                return candidate
            changed = True
    reason = "was changed since" if changed else "is not there any more"
    raise UsageError(f"{os.fspath(module)}: was compiled from {model.source}, which {reason}", hint=hint)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def batches(taps: Iterable[Tap]) -> Iterator[list[str]]:
    """Names in the order given, cut where a batch would exceed ``BATCH_BYTES``."""
    batch: list[str] = []
    size = 0
    for tap in taps:
        if batch and size + tap.nbytes > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(tap.name)
        size += tap.nbytes
    if batch:
        yield batch


def missing_input(path: Path, program: str, name: str) -> UsageError:
    """The complaint about an input of the model that the module does not have.

    Args:
        path: the model.
        program: that runs it.
        name: of the input.
    """
    return UsageError(
        f"{path}: {program} needs input {name!r}, which the module does not have",
        hint=f"if it was fixed when the model was compiled, give it again: --const {name}=VALUE",
    )


def cannot_run(path: Path, program: str, error: BaseException) -> UnsupportedError:
    """What a program that runs models raised, as an error of ours: the first line of it."""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    return UnsupportedError(f"{path}: {program} cannot run it: {reason}")


class _failing_as_unsupported:
    """Turns what onnxruntime raises, which has no base class of its own, into one error of ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # Only what comes from onnxruntime itself, and the mistyped feeds that it reports as RuntimeError or ValueError.
        if error is None or not (
            type(error).__module__.startswith("onnxruntime") or isinstance(error, (RuntimeError, ValueError, TypeError))
        ):
            return
        raise cannot_run(self._path, "onnxruntime", error) from error


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            "onnxruntime, the reference to compare with, is not installed",
            hint="pip install onnxruntime, or compare with your own results: --verify reference.npz",
        ) from error
    return onnxruntime
