"""Python files of users: those with operators, and those that are a network. They are run, by design.

Nothing finds such a file by itself: it is named on the command line, or given to a function.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from functools import partial
from pathlib import Path
from types import ModuleType

from mlc.define.foreign import ask
from mlc.define.operator import OwnOperator
from mlc.errors import UsageError


def run_file(path: str | os.PathLike[str]) -> ModuleType:
    """Runs a Python file, with its folder to import from.

    Raises:
        UsageError: there is none, it is no Python, or it raises something; says in which line.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"{os.fspath(path)}: there is no such file")
    name = f"_mlc_file_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file.absolute())
    if spec is None or spec.loader is None:
        raise UsageError(f"{os.fspath(path)}: is no Python file", hint="its name has to end with .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[name] = module  # for dataclasses and the like, which look their module up
    run = partial(spec.loader.exec_module, module)
    try:
        ask(run, lambda error: _place(error, file))
    finally:
        sys.path.remove(folder)
        del sys.modules[name]
    return module


def _place(error: BaseException, file: Path) -> str:
    """The file, and the line of it that an error comes from."""
    own = str(file.absolute())
    if isinstance(error, SyntaxError) and error.filename == own:
        return f"{file}, line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == own]
    return f"{file}, line {lines[-1]}" if lines else str(file)


def operators_in(path: str | os.PathLike[str]) -> list[OwnOperator]:
    """The operators that a Python file defines.

    Raises:
        UsageError: it cannot be run, defines none, or two of one name and domain.
    """
    module = run_file(path)
    found = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, OwnOperator)))
    if not found:
        raise UsageError(
            f"{os.fspath(path)}: defines no operators", hint="put @mlc.operator above a function of tensor expressions"
        )
    names: set[tuple[str, str]] = set()
    for op in found:
        if (op.domain, op.name) in names:
            raise UsageError(f"{os.fspath(path)}: two operators are called {op.name!r}")
        names.add((op.domain, op.name))
    return found
