"""The native side of a loaded model: the code in this process, its thread pool, and the end of both."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Mapping

from mlc.errors import DeviceError, PackageError, UsageError
from mlc.runtime.manifest import SYMBOLS, TargetSpec
from mlc.runtime.matrices import has_matrices

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64
_CALL = (_POINTER,) * 5  # inputs, outputs, params, workspace, pool

# The model's calls, without what its symbols begin with; docs and argument names stand in the C header (see
# ``cheader.py``).
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "run": (ctypes.c_int32, _CALL),
    "profile": (None, (*_CALL, _POINTER)),
    "step": (None, (*_CALL, _I64)),
    "parts": (None, (*_CALL, _I64, _POINTER)),
    "pool_create": (_POINTER, (ctypes.c_int32,)),
    "pool_destroy": (None, (_POINTER,)),
}

MAX_THREADS = 1024


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def check_device(target: TargetSpec) -> None:
    """Checks that this machine can run code for a target.

    Raises:
        DeviceError: another architecture, or a CPU without some feature that the code uses.
    """
    from llvmlite import binding as llvm

    here, there = (triple.split("-", 1)[0] for triple in (llvm.get_process_triple(), target.triple))
    if here != there:
        hint = "run it there, or here under qemu: mlc run --emulate"
        raise DeviceError(f"the module was compiled for {there}, and this machine is {here}", hint=hint)
    present = llvm.get_host_cpu_features()
    missing = [feature for feature in target.features if not present.get(feature, False)]
    if missing:
        raise DeviceError(
            f"this CPU ({llvm.get_host_cpu_name()}) lacks {', '.join(missing)}, which the module uses",
            hint=f"it was compiled for {target.string!r}; compile it for this CPU, or for the least of its family",
        )
    if "amx-tile" in target.features and not has_matrices():
        raise DeviceError("Linux refuses AMX, which the module uses", hint="compile it with -mattr=-amx-tile")


class NativeModel:
    """A model's object code, linked into this process, with a pool of threads.

    The calls (``run``, ``profile``, ``step``, ``parts``) take addresses and release the interpreter's lock. They must
    be made with ``lock`` held and after ``require_open``.

    Args:
        code: a relocatable object that exports the model's calls.
        threads: threads of the pool, the caller included, 1 .. 1024.
        symbols: what the names of its calls begin with.
        parts: whether some of its steps have parts.
    Raises:
        PackageError: the object cannot be linked.
        DeviceError: the threads cannot be started.
    """

    def __init__(self, code: bytes, threads: int, symbols: str = SYMBOLS, *, parts: bool = False) -> None:
        self.lock = threading.Lock()
        self._process = os.getpid()
        names = [name for name in _SIGNATURES if parts or name != "parts"]
        self._jit, self._code = link(code, [f"{symbols}_{name}" for name in names])
        calls = {
            name: ctypes.CFUNCTYPE(result, *arguments)(self._code[f"{symbols}_{name}"])
            for name, (result, arguments) in _SIGNATURES.items()
            if name in names
        }
        self.run, self.profile, self.step = calls["run"], calls["profile"], calls["step"]
        self.parts = calls.get("parts")
        self._destroy = calls["pool_destroy"]
        self.pool: int | None = calls["pool_create"](threads)
        if self.pool is None:
            self._unload()
            raise DeviceError(f"cannot start a pool of {threads} threads", hint="run with fewer threads")

    def require_open(self) -> None:
        """Refuses to go on after ``close``, or in a child process, which has none of the threads.

        Raises:
            UsageError: either of those.
        """
        if self.pool is None:
            raise UsageError("the module was closed")
        if os.getpid() != self._process:
            raise UsageError("the module was loaded in another process", hint="load it after the fork")

    def close(self) -> None:
        """Joins the threads and unloads the code; twice is fine. Waits for a call that is still running."""
        # In a forked child there is nothing to join, and the lock may be held by a thread that does not exist here.
        if os.getpid() != self._process:
            return
        with self.lock:
            if self.pool is not None:
                # Workers run the code: they must be gone before it is.
                self._destroy(self.pool)
                self.pool = None
                self._unload()

    def _unload(self) -> None:
        self._code.close()
        self._jit.close()


_ELF_RELOCATABLE = 1


def _elf_kind(head: bytes) -> tuple[bytes, int, int]:
    """Class and byte order, type and machine of an ELF file, from its first 20 bytes."""
    return head[:6], int.from_bytes(head[16:18], "little"), int.from_bytes(head[18:20], "little")


def _require_own_object(code: bytes) -> None:
    """LLVM ends the process on an object of another architecture, so it must not get one.

    Raises:
        PackageError: it is no object, or not for this machine.
    """
    with open("/proc/self/exe", "rb") as own:
        order, _, machine = _elf_kind(own.read(20))
    found = _elf_kind(code[:20])
    if len(code) < 64 or found[0][:4] != b"\x7fELF":
        raise PackageError("cannot be linked: it is no ELF object")
    if found != (order, _ELF_RELOCATABLE, machine):
        raise PackageError(
            f"cannot be linked: it is an ELF file of machine {found[2]} and type {found[1]}, "
            f"not an object for this machine, {machine}"
        )


def link(code: bytes, symbols: Iterable[str], imports: Mapping[str, int] | None = None) -> tuple:
    """Links an object against this process (libm, pthread).

    Args:
        code: the object.
        symbols: what it exports.
        imports: addresses of what it calls and this process does not export, by name.
    Returns:
        the JIT and the tracker of the code, which maps symbols to addresses; close the tracker first.
    Raises:
        PackageError: something it calls is nowhere to be found, or it is no object for this machine.
    """
    from llvmlite import binding as llvm

    _require_own_object(code)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # A JIT of its own for each model: a shared one keeps some memory of every model that ever was in it. JITLink puts
    # all sections of an object in one block; LLVM's older linker maps each where there is room, and ends the process
    # when one is more than 2 GiB from another.
    jit = llvm.create_lljit_compiler(suppress_errors=True, use_jit_link=True)
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for symbol in symbols:
        builder.export_symbol(symbol)
    for symbol, where in (imports or {}).items():
        builder.import_symbol(symbol, where)
    try:
        return jit, builder.link(jit, "model")
    except RuntimeError as error:
        jit.close()
        raise PackageError(f"cannot be linked: {error}") from None
