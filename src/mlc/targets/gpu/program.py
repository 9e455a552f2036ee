"""A region of a model as a file that a driver loads: texts of kernels, constants, and the launches in order.

Devices that differ enough to want schedules of their own have a program each, with launches of its own; what these
compute, with which constants and operands, is the same. The file is a safetensors archive of bytes: ``program`` (JSON),
a tensor a constant, for program ``k`` its ``source.<k>``, and for each architecture that machine code was made for,
two with code and assembly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from mlc.errors import PackageError
from mlc.fields import Fields, as_integer, as_list, as_object, as_text, wrong

SPACES = ("input", "output", "param", "workspace", "scratch")
VERSION = 7


@dataclass(frozen=True)
class Operand:
    """Where an operand lies.

    Args:
        space: ``input`` and ``output`` of the region, ``param`` (a constant), ``workspace`` (what the region's steps
            leave for each other) or ``scratch`` (what one step needs while it runs).
        at: which input, output or constant; else bytes from the begin.
        nbytes: its size.
        offset: bytes from the begin of that input, output or constant.
    """

    space: str
    at: int
    nbytes: int
    offset: int = 0

    def moved(self, nbytes: int) -> Operand:
        """What lies so many bytes further."""
        if self.space in ("workspace", "scratch"):
            return replace(self, at=self.at + nbytes)
        return replace(self, offset=self.offset + nbytes)

    def to_json(self) -> list[object]:
        return [self.space, self.at, self.nbytes, self.offset]

    @classmethod
    def from_json(cls, value: object, where: str) -> Operand:
        if not isinstance(value, list) or len(value) != 4:
            raise wrong(where, "a space and three integers", value)
        space = as_text(value[0], f"{where}[0]")
        if space not in SPACES:
            raise wrong(f"{where}[0]", " or ".join(SPACES), space)
        return cls(space, *(as_integer(value[k], f"{where}[{k}]") for k in (1, 2, 3)))


@dataclass(frozen=True)
class Step:
    """One node of the model, which takes a few commands.

    Args:
        kernel: its name.
        sources: names of the original model's nodes that it computes.
        flops: operations.
        bytes: that must be read and written at least once.
    """

    kernel: str
    sources: tuple[str, ...]
    flops: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "sources": list(self.sources), "flops": self.flops, "bytes": self.bytes}

    @classmethod
    def from_json(cls, value: object, where: str) -> Step:
        fields = Fields(value, where)
        step = cls(
            fields.take("kernel", as_text),
            fields.take("sources", lambda items, place: as_list(items, place, as_text)),
            fields.take("flops", as_integer),
            fields.take("bytes", as_integer),
        )
        fields.end()
        return step


@dataclass(frozen=True)
class Command:
    """A launch, or, without a kernel, a copy of the first operand to the second.

    Args:
        step: which one it is of.
        kernel: name of a function in the source.
        operands: its parameters.
        grid, block: how many blocks, and threads of each, along x, y and z.
        shared: bytes of shared memory that a block gets, besides
        declared: those that the function declares.
    """

    step: int
    kernel: str
    operands: tuple[Operand, ...]
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    declared: int = 0

    def to_json(self) -> dict[str, Any]:
        operands = [o.to_json() for o in self.operands]
        extents = {"grid": list(self.grid), "block": list(self.block)}
        shared = {"shared": self.shared, "declared": self.declared}
        return {"step": self.step, "kernel": self.kernel, "operands": operands, **extents, **shared}

    @classmethod
    def from_json(cls, value: object, where: str) -> Command:
        fields = Fields(value, where)
        command = cls(
            fields.take("step", as_integer),
            fields.take("kernel", as_text),
            fields.take("operands", lambda items, place: as_list(items, place, Operand.from_json)),
            fields.take("grid", lambda items, place: as_list(items, place, as_integer)),
            fields.take("block", lambda items, place: as_list(items, place, as_integer)),
            fields.take("shared", as_integer),
            fields.take("declared", as_integer),
        )
        fields.end()
        wanted = 3 if command.kernel else 0
        if len(command.grid) != wanted or len(command.block) != wanted:
            raise wrong(where, f"{wanted} extents of a grid and of its blocks", [command.grid, command.block])
        return command


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, as its compiler says.

    Args:
        registers: of 32 bits, of a thread.
        stack: bytes of memory of a thread.
        spill_stores, spill_loads: bytes that a thread moves because registers are too few.
        shared: bytes of shared memory of a block.
    """

    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int

    @classmethod
    def from_json(cls, value: object, where: str) -> Resources:
        items = as_list(value, where, as_integer)
        if len(items) != 5:
            raise wrong(where, "5 integers", value)
        return cls(*items)


@dataclass(frozen=True, eq=False)
class Image:
    """Kernels as machine code.

    Args:
        arch: what for.
        code: that the driver loads.
        assembly: text that drivers of later devices compile.
        resources: of each kernel, by its name.
    """

    arch: str
    code: bytes
    assembly: bytes
    resources: Mapping[str, Resources]


@dataclass(frozen=True, eq=False)
class GpuProgram:
    """What a driver runs on a device.

    Args:
        source: functions in the device's language.
        steps: nodes of the model, in order.
        commands: what they take, in order.
        params: constants, u8[n] each.
        inputs, outputs: how many there are.
        workspace_bytes, scratch_bytes: memory that it needs besides its operands.
        images: machine code of the source.
    """

    source: str
    steps: tuple[Step, ...]
    commands: tuple[Command, ...]
    params: Sequence[np.ndarray]
    inputs: int
    outputs: int
    workspace_bytes: int
    scratch_bytes: int
    images: Sequence[Image] = ()

    def check(self) -> None:
        """Every operand lies within what there is, and every command is a step's.

        Raises:
            PackageError: one does not.
        """
        bytes_of = {"workspace": self.workspace_bytes, "scratch": self.scratch_bytes}
        count = {"input": self.inputs, "output": self.outputs, "param": len(self.params)}
        for k, command in enumerate(self.commands):
            if not 0 <= command.step < len(self.steps):
                raise PackageError(f"the device's program is damaged: command {k} is of no step")
            for o in command.operands:
                end = o.at + o.nbytes if o.space in bytes_of else o.at + 1
                fits = min(o.at, o.nbytes, o.offset) >= 0 and end <= bytes_of.get(o.space, count.get(o.space, 0))
                fits = fits and (o.offset == 0 or o.space not in bytes_of)
                if not fits or (o.space == "param" and o.offset + o.nbytes > self.params[o.at].nbytes):
                    raise PackageError(f"the device's program is damaged: command {k} has an operand outside {o.space}")


def pack(programs: Sequence[GpuProgram]) -> bytes:
    """A region's file.

    Args:
        programs: one or more, for devices that differ; alike in all but text, launches, scratch memory and images.
    """
    from safetensors.numpy import save

    first = programs[0]
    document = {
        "version": VERSION,
        "inputs": first.inputs,
        "outputs": first.outputs,
        "workspace": first.workspace_bytes,
        "steps": [s.to_json() for s in first.steps],
        "programs": [
            {
                "scratch": p.scratch_bytes,
                "commands": [c.to_json() for c in p.commands],
                "images": {i.arch: {k: list(astuple(r)) for k, r in i.resources.items()} for i in p.images},
            }
            for p in programs
        ],
    }
    tensors = {f"param.{k}": a for k, a in enumerate(first.params)}
    tensors["program"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
    for k, p in enumerate(programs):
        tensors[f"source.{k}"] = np.frombuffer(p.source.encode(), np.uint8)
        for i in p.images:
            tensors[f"code.{i.arch}"] = np.frombuffer(i.code, np.uint8)
            tensors[f"assembly.{i.arch}"] = np.frombuffer(i.assembly, np.uint8)
    return save(tensors)


def unpack(data: bytes) -> tuple[GpuProgram, ...]:
    """The programs of a region's file.

    Raises:
        PackageError: it is no such file, or damaged; says where.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        document = json.loads(tensors.pop("program").tobytes())
    except (SafetensorError, KeyError, ValueError) as error:
        raise PackageError(f"the device's program cannot be read: {error}") from error
    fields = Fields(document, "program")
    version = fields.take("version", as_integer)
    if version != VERSION:
        raise wrong("program.version", str(VERSION), version)
    params = [tensors[name] for k in range(len(tensors)) if (name := f"param.{k}") in tensors]
    inputs, outputs = fields.take("inputs", as_integer), fields.take("outputs", as_integer)
    workspace = fields.take("workspace", as_integer)
    steps = fields.take("steps", lambda items, place: as_list(items, place, Step.from_json))
    own = fields.take("programs", lambda items, place: as_list(items, place, lambda one, at: _own(one, at, tensors)))
    fields.end()
    programs = []
    for k, (commands, scratch, images) in enumerate(own):
        try:
            source = tensors[f"source.{k}"].tobytes().decode()
        except (KeyError, ValueError) as error:
            raise PackageError(f"the device's program is damaged: it has no text {k}") from error
        programs.append(GpuProgram(source, steps, commands, params, inputs, outputs, workspace, scratch, images))
        programs[-1].check()
    if not programs:
        raise PackageError("the device's program is damaged: it is for no device")
    return tuple(programs)


def _own(
    value: object, where: str, tensors: Mapping[str, np.ndarray]
) -> tuple[tuple[Command, ...], int, tuple[Image, ...]]:
    """What a program does not share with the others of its file: commands, bytes of scratch, and images."""
    fields = Fields(value, where)
    found = (
        fields.take("commands", lambda items, place: as_list(items, place, Command.from_json)),
        fields.take("scratch", as_integer),
        fields.take("images", lambda images, place: _images(images, place, tensors)),
    )
    fields.end()
    return found


def _images(value: object, where: str, tensors: Mapping[str, np.ndarray]) -> tuple[Image, ...]:
    tables = as_object(value, where, lambda kernels, at: as_object(kernels, at, Resources.from_json))
    found = []
    for arch, resources in tables.items():
        code, assembly = (tensors.get(f"{what}.{arch}") for what in ("code", "assembly"))
        if code is None or assembly is None:
            raise PackageError(f"the device's program is damaged: it has no code for {arch}")
        found.append(Image(arch, code.tobytes(), assembly.tobytes(), resources))
    return tuple(found)
