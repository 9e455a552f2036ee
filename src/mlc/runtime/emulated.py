"""A package for another processor family, run here under an emulator: its C example, linked with its code.

What comes out is right or wrong as on the machine itself; how long it takes says nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlc.errors import DeviceError, MissingDependencyError, PackageError, UsageError
from mlc.runtime.cheader import header_name
from mlc.runtime.manifest import Manifest
from mlc.runtime.outside import OutsideModule
from mlc.runtime.package import OBJECT, Package, open_package
from mlc.runtime.toolchain import compiler_for, emulator_for, is_here, machine_of, run_tool

RUN_SECONDS = 3600.0


class EmulatedModule(OutsideModule):
    """A model of another machine, ready to run. Made by ``emulate_module``."""

    def __init__(self, package: Package, threads: int) -> None:
        manifest = package.manifest
        super().__init__(manifest, threads)
        self._folder = tempfile.TemporaryDirectory(prefix="mlc-emulated-")
        self._emulator, self._program = _tools(manifest), Path(self._folder.name) / "model"
        try:
            self._build(package)
        except BaseException:
            self.close()
            raise

    def _build(self, package: Package) -> None:
        folder = Path(self._folder.name)
        for name in package.names():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(package.read(name))
        compiler = compiler_for(self.manifest.target.triple, static=True)
        assert compiler is not None  # _tools has seen to it
        source, header = folder / "examples" / "main.c", folder / header_name(self.manifest.symbols)
        if not source.is_file() or not header.is_file():
            raise DeviceError("a package that takes a device cannot be emulated")
        command = (*compiler, "-O2", f"-I{header.parent}", str(source), str(folder / OBJECT), "-o", str(self._program))
        try:
            status, said = run_tool((*command, "-lm", "-lpthread"))
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"cannot be linked for {machine_of(self.manifest.target.triple)}: {error}") from None
        if status != 0:
            raise PackageError(f"cannot be linked for {machine_of(self.manifest.target.triple)}: {said}")

    def run(self, inputs: Mapping[str, np.ndarray], *, seed: int | None = None) -> dict[str, np.ndarray]:
        """Runs the model once, in a process of its own; see :meth:`OutsideModule.run`.

        Raises:
            UsageError: as there.
            DeviceError: the program failed.
        """
        given, drawn = self._given(inputs, seed)
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            files = []
            for i, spec in enumerate(self.manifest.inputs):
                files.append(f"{folder}/input{i}.bin")
                array = given.get(spec.name, np.array(drawn, np.uint64))
                Path(files[-1]).write_bytes(np.ascontiguousarray(array).tobytes())
            params = f"{self._folder.name}/params.safetensors"
            command = (*self._emulator, str(self._program), params, "-t", str(self.threads), *files)
            try:
                status, said = run_tool(command, folder, RUN_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise DeviceError(f"the emulated program failed: {error}") from None
            if status != 0:
                raise DeviceError(f"the emulated program failed: {said}")
            results = self._output_ports.empty()
            for i, array in enumerate(results):
                raw = np.fromfile(f"{folder}/output{i}.bin", np.uint8)
                array.reshape(-1).view(np.uint8)[...] = raw
        return {spec.name: array for spec, array in zip(self.outputs, results, strict=True)}

    def close(self) -> None:
        """Removes the program. Twice is fine."""
        self._folder.cleanup()


def _tools(manifest: Manifest) -> tuple[str, ...]:
    """The emulator's command, after a look at whether all is there that it takes."""
    triple, machine = manifest.target.triple, machine_of(manifest.target.triple)
    if is_here(triple):
        raise UsageError(f"the module was compiled for {machine}, which this machine is", hint="leave --emulate out")
    emulator = emulator_for(triple, manifest.target.cpu)
    if emulator is None:
        raise MissingDependencyError(f"there is no emulator of {machine} here", hint="install qemu-user-static")
    if compiler_for(triple, static=True) is None:
        hint = f"install gcc-{machine}-linux-gnu and its C library, or: pip install ziglang"
        raise MissingDependencyError(f"nothing here links programs for {machine}", hint=hint)
    return emulator


def emulate_module(path: str | os.PathLike[str], threads: int | None = None) -> EmulatedModule:
    """Makes a program of a ``module.tar`` for another processor family, to be run under an emulator.

    Args:
        path: the package.
        threads: threads to run on; one unless given, which emulators do best.
    Raises:
        UsageError: the file cannot be opened, or this machine can run it itself.
        PackageError: the package is unsound.
        MissingDependencyError: there is no emulator, or no C compiler for that family.
        DeviceError: it cannot be run this way.
    """
    with open_package(path) as package:
        return EmulatedModule(package, threads or 1)
