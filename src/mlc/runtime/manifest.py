"""``module.json``: what a package says about itself, as frozen records that read and write JSON strictly.

Every record has ``to_json`` and ``from_json(value, where)``; ``where`` is the path that leads to the value, and comes
back in the message of a ``PackageError``. ``Manifest.check`` holds what no single field can: sizes and places agree.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from mlc.errors import PackageError
from mlc.fields import Fields, as_integer, as_list, as_object, as_text, told_as, wrong
from mlc.runtime.device_spec import DEVICE, DeviceCall, DeviceSpec, PlaceSpec
from mlc.runtime.dtypes import numpy_dtype
from mlc.runtime.tensor_spec import (
    ALIGNMENT,
    SPACES,
    ConstantSpec,
    ParamSpec,
    ResultSpec,
    TensorSpec,
    as_layout,
    as_precision,
)

FORMAT_VERSION = 3
"""Version 1 knew no devices; version 2 no symbols but ``mlc_run`` and its like, and no seeds. Both are still read."""

SYMBOLS = "mlc"
"""What the names of a model's calls begin with, unless its user says otherwise."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")


def _sum(value: object, where: str) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise wrong(where, "a SHA-256 of 64 hexadecimal digits", value)
    return value


def is_prefix(text: str) -> bool:
    """Whether identifiers of C may begin with this: a letter, then letters, digits and ``_``, 64 at most."""
    return _PREFIX.fullmatch(text) is not None


def _symbols(value: object, where: str) -> str:
    if not isinstance(value, str) or not is_prefix(value):
        raise wrong(where, "the beginning of a C identifier", value)
    return value


def _texts(value: object, where: str) -> tuple[str, ...]:
    return as_list(value, where, as_text)


@dataclass(frozen=True)
class StepSpec:
    """One call of one kernel, or one step of a device.

    Args:
        kernel: name of the kernel; several steps may share one.
        sources: names of the original model's nodes that it computes.
        flops: floating-point (or integer) operations.
        bytes: bytes that must be read and written at least once.
        results: what it leaves behind in the host's memory.
        device: what the device has to do; ``None`` is a step of the native code.
        parts: steps that this one repeats, of which those of all rounds count together; without results or parts.
        rounds: how often it repeats them.
    """

    kernel: str
    sources: tuple[str, ...]
    flops: int
    bytes: int
    results: tuple[ResultSpec, ...]
    device: DeviceCall | None = None
    parts: tuple[StepSpec, ...] = ()
    rounds: int = 1

    def to_json(self) -> dict[str, Any]:
        step: dict[str, Any] = {
            "kernel": self.kernel,
            "sources": list(self.sources),
            "flops": self.flops,
            "bytes": self.bytes,
            "results": [result.to_json() for result in self.results],
        }
        if self.device is not None:
            step["device"] = self.device.to_json()
        if self.parts:
            step["parts"] = [part.to_json() for part in self.parts]
            step["rounds"] = self.rounds
        return step

    @classmethod
    def from_json(cls, value: object, where: str) -> StepSpec:
        fields = Fields(value, where)
        parts = fields.maybe("parts", lambda items, place: as_list(items, place, cls._part)) or ()
        rounds = fields.take("rounds", as_integer) if parts else 1
        return cls._of(fields, fields.maybe("device", DeviceCall.from_json), parts, rounds)

    @classmethod
    def _part(cls, value: object, where: str) -> StepSpec:
        return cls._of(Fields(value, where))

    @classmethod
    def _of(
        cls, fields: Fields, device: DeviceCall | None = None, parts: tuple[StepSpec, ...] = (), rounds: int = 1
    ) -> StepSpec:
        spec = cls(
            fields.take("kernel", as_text),
            fields.take("sources", _texts),
            fields.take("flops", as_integer),
            fields.take("bytes", as_integer),
            fields.take("results", lambda items, place: as_list(items, place, ResultSpec.from_json)),
            device,
            parts,
            rounds,
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class TargetSpec:
    """What the code was generated for.

    Args:
        string: the target as the user wrote it, e.g. ``x86 -mcpu=skylake-avx512``.
        triple: LLVM triple.
        cpu: LLVM's name of the CPU.
        features: LLVM features the code needs, e.g. ``avx512f``; checked against the machine before running.
        details: anything else worth knowing, by name.
    """

    string: str
    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    details: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TargetSpec:
        """From what a target says of itself: ``string``, ``triple``, ``cpu``, ``features``, and details by any name."""
        details = {
            key: str(value) for key, value in facts.items() if key not in ("string", "triple", "cpu", "features")
        }
        return cls(facts["string"], facts["triple"], facts["cpu"], tuple(facts["features"]), details)

    def to_json(self) -> dict[str, Any]:
        return {
            "string": self.string,
            "triple": self.triple,
            "cpu": self.cpu,
            "features": list(self.features),
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> TargetSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("string", as_text),
            fields.take("triple", as_text),
            fields.take("cpu", as_text),
            fields.take("features", _texts),
            fields.take("details", lambda items, place: as_object(items, place, as_text)),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class ModelSpec:
    """Which model this is: its name, the SHA-256 of its file, where that came from (free text), and its format.

    ``layouts`` has the inputs, by name, that are taken in another order of axes than the model's own: ``NHWC->NCHW``.
    ``states`` has those for what a run leaves to the next one, with what they hold before the first; no data for zeros.
    Packages of earlier versions do not say the format.
    """

    name: str
    sha256: str
    source: str
    constants: tuple[ConstantSpec, ...] = ()
    format: str = ""
    layouts: Mapping[str, str] = field(default_factory=dict)
    states: tuple[ConstantSpec, ...] = ()

    def initial_states(self) -> dict[str, np.ndarray]:
        """What states hold before the first run, by name of the input."""
        zeros = {s.name: np.zeros(s.shape, numpy_dtype(s.dtype)) for s in self.states}
        return {s.name: zeros[s.name] if (array := s.array) is None else array for s in self.states}

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sha256": self.sha256,
            "source": self.source,
            "constants": [spec.to_json() for spec in self.constants],
            "format": self.format,
            "layouts": dict(self.layouts),
            "states": [spec.to_json() for spec in self.states],
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> ModelSpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("name", as_text),
            fields.take("sha256", _sum),
            fields.take("source", as_text),
            fields.maybe("constants", lambda items, place: as_list(items, place, ConstantSpec.from_json)) or (),
            fields.maybe("format", as_text) or "",
            fields.maybe("layouts", lambda items, place: as_object(items, place, as_layout)) or {},
            fields.maybe("states", lambda items, place: as_list(items, place, ConstantSpec.from_json)) or (),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class MemorySpec:
    """Bytes of the arena and of the parameters' data section, and the alignment of both."""

    workspace_bytes: int
    params_bytes: int
    alignment: int = ALIGNMENT

    def to_json(self) -> dict[str, Any]:
        return {
            "workspace_bytes": self.workspace_bytes,
            "params_bytes": self.params_bytes,
            "alignment": self.alignment,
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> MemorySpec:
        fields = Fields(value, where)
        spec = cls(
            fields.take("workspace_bytes", as_integer),
            fields.take("params_bytes", as_integer),
            fields.take("alignment", as_integer),
        )
        fields.end()
        return spec


@dataclass(frozen=True)
class MemberSpec:
    """Sum and size in bytes of one member of the tar file."""

    sha256: str
    size: int

    def to_json(self) -> dict[str, Any]:
        return {"sha256": self.sha256, "size": self.size}

    @classmethod
    def from_json(cls, value: object, where: str) -> MemberSpec:
        fields = Fields(value, where)
        spec = cls(fields.take("sha256", _sum), fields.take("size", as_integer))
        fields.end()
        return spec


@dataclass(frozen=True)
class Manifest:
    """Everything ``module.json`` says. Inputs, outputs and steps stand in the order of the native calls.

    ``members`` (every file in the package but this one) is filled in by the writer. ``module_so`` is the member that
    holds the shared library, where one was linked. ``device`` is what the package needs beside the host, if anything.
    ``symbols`` is what the names of its calls begin with: ``mlc`` for ``mlc_run``. ``seed`` names the input, a u64, by
    which the model draws random numbers, where it does. ``precision`` has the tensors, by name, that were computed less
    precisely than their type says, as one of ``PRECISIONS``. ``updates`` has outputs, by name, with the input whose
    next value each is: both may be given the same memory.
    """

    mlc_version: str
    target: TargetSpec
    model: ModelSpec
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[StepSpec, ...]
    memory: MemorySpec
    params: tuple[ParamSpec, ...] = ()
    members: Mapping[str, MemberSpec] = field(default_factory=dict)
    module_so: str | None = None
    device: DeviceSpec | None = None
    symbols: str = SYMBOLS
    seed: str | None = None
    precision: Mapping[str, str] = field(default_factory=dict)
    updates: Mapping[str, str] = field(default_factory=dict)

    format_version: ClassVar[int] = FORMAT_VERSION

    @property
    def calls(self) -> list[tuple[StepSpec, int]]:
        """What steps call, in order, and how often each does: in place of a step with parts, these."""
        return [(part, step.rounds) for step in self.steps for part in (step.parts or (step,))]

    def with_members(self, members: Mapping[str, MemberSpec]) -> Manifest:
        return replace(self, members=dict(members))

    def to_json(self) -> dict[str, Any]:
        device = {} if self.device is None else {"device": self.device.to_json()}
        updates = {"updates": dict(self.updates)} if self.updates else {}
        return {
            "format_version": self.format_version,
            "mlc_version": self.mlc_version,
            **device,
            **updates,
            "target": self.target.to_json(),
            "model": self.model.to_json(),
            "symbols": self.symbols,
            "seed": self.seed,
            "precision": dict(self.precision),
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "memory": self.memory.to_json(),
            "module_so": self.module_so,
            "members": {path: member.to_json() for path, member in self.members.items()},
            "params": [spec.to_json() for spec in self.params],
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, value: object) -> Manifest:
        """Reads and checks the parsed JSON.

        Raises:
            PackageError: another format version, or a field that is missing, unknown, or wrong.
        """
        with told_as(PackageError):
            manifest = cls._read(Fields(value, ""))
        manifest.check()
        return manifest

    @classmethod
    def _read(cls, fields: Fields) -> Manifest:
        _require_version(fields.take("format_version", as_integer))
        manifest = cls(
            mlc_version=fields.take("mlc_version", as_text),
            target=fields.take("target", TargetSpec.from_json),
            model=fields.take("model", ModelSpec.from_json),
            inputs=fields.take("inputs", lambda items, place: as_list(items, place, TensorSpec.from_json)),
            outputs=fields.take("outputs", lambda items, place: as_list(items, place, TensorSpec.from_json)),
            memory=fields.take("memory", MemorySpec.from_json),
            module_so=fields.maybe("module_so", as_text),
            members=fields.take("members", lambda items, place: as_object(items, place, MemberSpec.from_json)),
            params=fields.take("params", lambda items, place: as_list(items, place, ParamSpec.from_json)),
            steps=fields.take("steps", lambda items, place: as_list(items, place, StepSpec.from_json)),
            device=fields.maybe("device", DeviceSpec.from_json),
            symbols=fields.maybe("symbols", _symbols) or SYMBOLS,
            seed=fields.maybe("seed", as_text),
            precision=fields.maybe("precision", lambda items, place: as_object(items, place, as_precision)) or {},
            updates=fields.maybe("updates", lambda items, place: as_object(items, place, as_text)) or {},
        )
        fields.end()
        return manifest

    def to_text(self) -> bytes:
        """``module.json``: one line an item, and last a checksum over everything else."""
        body = self.to_json()
        return _pretty({**body, "checksum": _checksum(body)}).encode("ascii")

    @classmethod
    def from_text(cls, text: bytes) -> Manifest:
        """Reads ``module.json``.

        Raises:
            PackageError: not JSON, altered, of a newer format, or wrong in a field.
        """
        try:
            value = json.loads(text.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise PackageError(f"is not JSON: {error}") from None
        with told_as(PackageError):
            fields = Fields(value, "")
            # The version comes first: a newer format may well have another checksum.
            _require_version(fields.take("format_version", as_integer))
            checksum = fields.take("checksum", _sum)
        body = {key: item for key, item in value.items() if key != "checksum"}
        if _checksum(body) != checksum:
            raise PackageError("does not match its checksum", hint="the file was altered or damaged; compile it again")
        return cls.from_json(body)

    def check(self) -> None:
        """Checks that names are unique and that every size and place lies within its space.

        Raises:
            PackageError: naming the field.
        """
        with told_as(PackageError):
            self._check()

    def _check(self) -> None:
        for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs), ("params", self.params)):
            _require_unique(kind, specs)
            for i, spec in enumerate(specs):
                as_integer(spec.nbytes, f"{kind}[{i}].shape")
        if self.seed is not None and TensorSpec(self.seed, "u64", ()) not in self.inputs:
            raise wrong("seed", "the name of an input of type u64[]", self.seed)
        self._check_updates()
        if self.memory.alignment != ALIGNMENT:
            raise wrong("memory.alignment", str(ALIGNMENT), self.memory.alignment)
        if self.module_so is not None and self.module_so not in self.members:
            raise wrong("module_so", "the name of a member", self.module_so)
        for i, param in enumerate(self.params):
            _require_inside(f"params[{i}]", param.offset, param.nbytes, self.memory.params_bytes)
            if param.offset % ALIGNMENT:
                raise wrong(f"params[{i}].offset", f"a multiple of {ALIGNMENT}", param.offset)
        for i, step in enumerate(self.steps):
            for j, result in enumerate(step.results):
                self._check_result(result, f"steps[{i}].results[{j}]")
            if step.device is not None:
                self._check_device(step.device, f"steps[{i}].device")

    def _check_updates(self) -> None:
        """Outputs that are inputs' next values are of their types, and each of another one's."""
        inputs = {spec.name: spec for spec in self.inputs}
        outputs = {spec.name: spec for spec in self.outputs}
        for new, old in self.updates.items():
            if new not in outputs or old not in inputs:
                raise wrong("updates", "names of outputs and inputs", f"{new}: {old}")
            if (outputs[new].dtype, outputs[new].shape) != (inputs[old].dtype, inputs[old].shape):
                raise wrong(f"updates.{new}", f"an input that is {outputs[new]}", old)
        if len(set(self.updates.values())) < len(self.updates):
            raise wrong("updates", "an input at most once", list(self.updates.values()))

    def _check_device(self, call: DeviceCall, where: str) -> None:
        if self.device is None:
            raise wrong(where, "no step of a device, since the package names none", call.action)
        call.check(where)
        for j, place in enumerate(call.places):
            if place.space == DEVICE:
                _require_inside(f"{where}.places[{j}]", place.offset, place.nbytes, self.device.memory_bytes)
            else:
                self._check_place(place, f"{where}.places[{j}]")
        if call.action == "run" and call.program not in self.members:
            raise wrong(f"{where}.program", "the name of a member", call.program)

    def _check_place(self, at: PlaceSpec | ResultSpec, where: str) -> None:
        arenas = {"workspace": self.memory.workspace_bytes, "params": self.memory.params_bytes}
        tensors = {"output": self.outputs, "input": self.inputs}
        if at.space not in arenas and at.space not in tensors:
            raise wrong(f"{where}.space", "one of " + " ".join(SPACES), at.space)
        count = 1 if at.space in arenas else len(tensors[at.space])
        if at.index >= count:
            raise wrong(f"{where}.index", f"less than {count}", at.index)
        size = arenas[at.space] if at.space in arenas else tensors[at.space][at.index].nbytes
        _require_inside(where, at.offset, at.nbytes, size)

    def _check_result(self, result: ResultSpec, where: str) -> None:
        self._check_place(result, where)
        if result.physical:
            shape = result.physical.logical_shape(f"{where}.physical.unpack")
            if shape != result.shape:
                raise wrong(f"{where}.physical.unpack", f"steps that lead to shape {list(result.shape)}", list(shape))


def _require_version(version: int) -> None:
    if version > FORMAT_VERSION:
        raise PackageError(
            f"format version {version} is newer than the {FORMAT_VERSION} that this mlc reads",
            hint="upgrade mlc, or compile the model again with this one",
        )
    if version < 1:
        raise wrong("format_version", "at least 1", version)


def _require_unique(kind: str, specs: Iterable[TensorSpec]) -> None:
    seen: set[str] = set()
    for i, spec in enumerate(specs):
        if spec.name in seen:
            raise PackageError(f"{kind}[{i}].name: {spec.name!r} occurs twice")
        seen.add(spec.name)


def _require_inside(where: str, offset: int, nbytes: int, size: int) -> None:
    if offset + nbytes > size:
        raise PackageError(f"{where}: bytes {offset} to {offset + nbytes} lie outside a space of {size} bytes")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not allowed")


def _checksum(body: Mapping[str, Any]) -> str:
    """SHA-256 of the values, so that a pretty-printer in between does no harm."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _pretty(body: Mapping[str, Any]) -> str:
    """JSON with one line for each item of the top level's lists and objects: short enough to read, easy to compare."""
    lines = []
    for key, value in body.items():
        if isinstance(value, list) and value:
            inner = ",\n".join(f"    {json.dumps(item)}" for item in value)
            text = f"[\n{inner}\n  ]"
        elif isinstance(value, dict) and value:
            inner = ",\n".join(f"    {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
            text = f"{{\n{inner}\n  }}"
        else:
            text = json.dumps(value)
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
