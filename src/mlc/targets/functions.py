"""Kernels that were compiled on their own, and a folder of them: what was compiled once is used again.

NeoFlow, section 6.2, calls it the function cache. A function is found by what it is made of: expression, layouts,
schedule, target and options. Which of several schedules of an expression is the best is not decided here, but by
records of measurements.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mlc.errors import OutputError
from mlc.ir.loop import Function
from mlc.runtime.atomic import atomic_write
from mlc.settings import MAX_OPT_LEVEL
from mlc.targets.base import Target

Watch = Callable[[str, str], None]

MARK = 16  # hexadecimal digits of a key that a function's name ends with
_DIGEST = 64


@dataclass(frozen=True)
class CompiledFunction:
    """A kernel, compiled on its own.

    Args:
        scratch: bytes of working memory that it needs.
        parts: its text in the target's own form, as the target wants it back.
        obj: a relocatable object with it; empty where this machine has nothing that puts such together.
        stages: what every stage of the compiler made of it: names and texts.
    """

    scratch: int
    parts: Mapping[str, Any]
    obj: bytes
    stages: tuple[tuple[str, str], ...] = ()


@runtime_checkable
class Separate(Protocol):
    """What a target is, too, if it compiles kernels on their own; its ``emit`` then takes such, too."""

    def alone(self, fn: Function, *, contract: bool, opt_level: int, symbols: str) -> CompiledFunction | None:
        """A kernel, compiled on its own; nothing where that is not to be kept.

        Args:
            fn: the kernel; its name is unique among all that it is ever put together with.
            contract, opt_level, symbols: as for ``emit`` and ``codegen``.
        Raises:
            CodegenError: something that the target cannot express.
        """
        ...


class FunctionCache:
    """A folder of compiled functions, which several processes may share.

    Files that are damaged count as none. Their names depend on the compiler's own files, too.

    Args:
        folder: is made if it is not there.
        target: what it says of itself.
        updates: whether outputs may lie over inputs.
        contract, opt_level, symbols: how functions are compiled, see :class:`Separate`.
    Attributes:
        found, made: how many functions were there, and how many were not.
    Raises:
        OutputError: the folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        target: Mapping[str, object],
        *,
        updates: bool = False,
        contract: bool = True,
        opt_level: int = MAX_OPT_LEVEL,
        symbols: str = "mlc",
    ) -> None:
        self._folder = folder
        self._how = _How(contract, opt_level, symbols)
        context = [_compiler(), target, updates, asdict(self._how)]
        self._context = hashlib.sha256(json.dumps(context, sort_keys=True).encode()).hexdigest()
        self.found = self.made = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"{folder}: cannot be made: {error.strerror}") from None

    def mark(self, key: str) -> str:
        """What tells the function of a key from all others, for its name."""
        return hashlib.sha256(f"{self._context}\n{key}".encode()).hexdigest()[:MARK]

    def compiled(self, target: Target, name: str, loops: Callable[[Watch], Function]) -> CompiledFunction | Function:
        """The function of a name, which ends with its mark; made, and kept, if it is not there.

        Args:
            target: compiles it.
            name: ends with its mark.
            loops: makes the kernel; tells what every stage makes of it.
        Returns:
            the kernel itself where the target compiles none on its own.
        Raises:
            OutputError: it cannot be written.
        """
        path = self._folder / f"{name}.json"
        kept = _read(path)
        if kept is not None:
            self.found += 1
            return kept
        stages: list[tuple[str, str]] = []
        fn = loops(lambda stage, text: stages.append((stage, text)))
        how = self._how
        alone = (
            target.alone(fn, contract=how.contract, opt_level=how.opt_level, symbols=how.symbols)
            if isinstance(target, Separate)
            else None
        )
        if alone is None:
            return fn
        self.made += 1
        made = replace(alone, stages=tuple(stages))
        text = json.dumps({**asdict(made), "obj": base64.b64encode(made.obj).decode()}).encode()
        with atomic_write(path) as file:
            file.write(hashlib.sha256(text).hexdigest().encode() + text)
        return made


@dataclass(frozen=True)
class _How:
    contract: bool
    opt_level: int
    symbols: str


def _read(path: Path) -> CompiledFunction | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, text = data[:_DIGEST], data[_DIGEST:]
    if hashlib.sha256(text).hexdigest().encode() != digest:
        return None
    given = json.loads(text)
    stages: Sequence[Sequence[str]] = given["stages"]
    return CompiledFunction(
        given["scratch"], given["parts"], base64.b64decode(given["obj"]), tuple((name, said) for name, said in stages)
    )


def _compiler() -> list[object]:
    """What this compiler is: its files' names, sizes and times."""
    root = Path(__file__).parents[1]
    files = sorted((*root.rglob("*.py"), *root.rglob("*.ll")))
    return [[str(f.relative_to(root)), (s := f.stat()).st_size, s.st_mtime_ns] for f in files]
