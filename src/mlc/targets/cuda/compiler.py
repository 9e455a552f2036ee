"""CUDA C++ to machine code, by NVRTC: a library of NVIDIA's, which needs neither a toolkit nor a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlc.errors import MissingDependencyError, ToolchainError
from mlc.targets.gpu.program import Image, Resources

INSTALL = "pip install 'mlc[cuda]'"
_LINES_SHOWN = 6
_PROPERTIES = re.compile(
    r"Compiling entry function '(?P<kernel>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads.*?"
    r"Used (?P<registers>\d+) registers(?:(?!Compiling)[^\n]*?(?P<shared>\d+) bytes smem)?",
    re.DOTALL,
)


@dataclass(frozen=True)
class Nvrtc:
    """The compiler, as it is installed.

    Args:
        api: ``cuda.bindings.nvrtc``.
        version: of the compiler: ``13.5``.
        archs: that it knows.
    """

    api: Any
    version: str
    archs: tuple[str, ...]

    @classmethod
    def find(cls) -> Nvrtc:
        """The compiler.

        Raises:
            MissingDependencyError: it is not installed.
        """
        try:
            from cuda.bindings import nvrtc

            _, major, minor = nvrtc.nvrtcVersion()
        except (ImportError, RuntimeError) as error:  # the bindings, or the library that they load
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MissingDependencyError(f"compiling for cuda needs NVRTC: {reason}", hint=INSTALL) from error
        _, numbers = nvrtc.nvrtcGetSupportedArchs()
        return cls(nvrtc, f"{major}.{minor}", tuple(f"sm_{n}" for n in numbers))

    def compile(self, source: str, arch: str) -> Image:
        """A text for one architecture.

        Raises:
            ToolchainError: the compiler does not know the architecture, or refuses the text.
        """
        if arch not in self.archs:
            raise ToolchainError(
                f"NVRTC {self.version} does not compile for {arch}", hint=f"it knows {', '.join(self.archs)}"
            )
        api = self.api
        error, program = api.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
        self._require(error, "create a program")
        try:
            options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", b"--ptxas-options=-v"]
            (error,) = api.nvrtcCompileProgram(program, len(options), options)
            log = self._text(program, "ProgramLog").decode("utf-8", "replace")
            if error != api.nvrtcResult.NVRTC_SUCCESS:
                lines = [line for line in log.splitlines() if line.strip()]
                first = next((k for k, line in enumerate(lines) if ": error: " in line), 0)  # after warnings
                lines = lines[first:]
                raise ToolchainError(f"NVRTC refuses the kernels for {arch}: {' | '.join(lines[:_LINES_SHOWN])}")
            return Image(arch, self._text(program, "CUBIN"), self._text(program, "PTX"), resources_of(log))
        finally:
            api.nvrtcDestroyProgram(program)

    def compile_without_spills(self, source: str, arch: str) -> Image:
        """A text for one architecture, with kernels that spill compiled once more, or twice.

        Left to itself the assembler spills a few bytes where that lets a multiprocessor hold one more block. Where it
        is told that one block is enough, it takes the registers that there are. If these do not suffice, either, loops
        stay loops that nobody asked to have written out: the addresses of all their iterations are what is too much.

        Raises:
            ToolchainError: the compiler does not know the architecture, or refuses the text.
        """
        image = self.compile(source, arch)
        for change in (_alone, _rolled):
            spilling = [name for name, r in image.resources.items() if r.spill_stores or r.spill_loads]
            if not spilling:
                break
            source = change(source, spilling)
            image = min(image, self.compile(source, arch), key=_spilled)
        return image

    def _text(self, program: Any, what: str) -> bytes:
        """The log, the machine code or the assembly of a program."""
        error, size = getattr(self.api, f"nvrtcGet{what}Size")(program)
        self._require(error, f"tell the size of its {what}")
        data: bytes = b" " * size
        (error,) = getattr(self.api, f"nvrtcGet{what}")(program, data)
        self._require(error, f"give its {what}")
        return data if what == "CUBIN" else data.rstrip(b"\0")

    def _require(self, error: Any, what: str) -> None:
        if error != self.api.nvrtcResult.NVRTC_SUCCESS:
            raise ToolchainError(f"NVRTC {self.version} cannot {what}: {error.name}")


def _alone(source: str, kernels: Sequence[str]) -> str:
    """A text in which a multiprocessor need not hold more than one block of some kernels."""
    names = "|".join(map(re.escape, kernels))
    return re.sub(rf"__launch_bounds__\((\d+)\) (?=(?:{names})\()", r"__launch_bounds__(\1, 1) ", source)


def _rolled(source: str, kernels: Sequence[str]) -> str:
    """A text in which loops of some kernels are not written out, unless it says that they are."""
    names = "|".join(map(re.escape, kernels))
    a_loop = re.compile(r"^( *#pragma unroll[^\n]*\n)?( *)for \(", re.MULTILINE)

    def kept(kernel: re.Match[str]) -> str:
        return a_loop.sub(lambda m: m[0] if m[1] else f"{m[2]}#pragma unroll 1\n{m[0]}", kernel[0])

    return re.sub(rf'^extern "C" [^\n]* (?:{names})\(.*?^}}$', kept, source, flags=re.MULTILINE | re.DOTALL)


def _spilled(image: Image) -> int:
    """Bytes that kernels store and load for want of registers."""
    return sum(r.spill_stores + r.spill_loads for r in image.resources.values())


def compile_sources(texts: Mapping[str, str]) -> dict[str, Image]:
    """A text for each architecture.

    Raises:
        MissingDependencyError: there is no compiler.
        ToolchainError: it refuses.
    """
    nvrtc = Nvrtc.find()
    with ThreadPoolExecutor(len(texts)) as pool:
        images = pool.map(lambda arch: nvrtc.compile_without_spills(texts[arch], arch), texts)
        return dict(zip(texts, images, strict=True))


def resources_of(log: str) -> dict[str, Resources]:
    """What kernels take, by name, as the assembler's report says.

    >>> resources_of('''ptxas info    : Compiling entry function 'k' for 'sm_90'
    ... ptxas info    : Function properties for k
    ... ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
    ... ptxas info    : Used 40 registers, used 1 barriers, 512 bytes smem''')
    {'k': Resources(registers=40, stack=8, spill_stores=4, spill_loads=12, shared=512)}
    """
    return {
        m["kernel"]: Resources(
            int(m["registers"]), int(m["stack"]), int(m["stores"]), int(m["loads"]), int(m["shared"] or 0)
        )
        for m in _PROPERTIES.finditer(log)
    }


def disassembly(cubin: bytes) -> str:
    """Machine code as text.

    Raises:
        MissingDependencyError: there is no disassembler.
        ToolchainError: it refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([_nvdisasm(), "--print-code", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"nvdisasm failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _nvdisasm() -> str:
    """The disassembler: of a wheel, of a toolkit, or on the path."""
    try:
        import nvidia

        places = [Path(p) / "cu13" / "bin" / "nvdisasm" for p in nvidia.__path__]
    except ImportError:
        places = []
    places += [Path(home) / "bin" / "nvdisasm" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home]
    found = next((str(p) for p in places if p.is_file()), None) or shutil.which("nvdisasm")
    if found is None:
        raise MissingDependencyError("reading machine code needs nvdisasm, which is not here", hint=INSTALL)
    return found
