"""The generated code of one kernel, cut out of the readable texts in a package."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Cut = Callable[[str, str], str]


def kernels(sources: Mapping[str, str]) -> list[str]:
    """Names of the kernels that have a section of their own, those in recurrences included."""
    return [m[1] for text in sources.values() for m in re.finditer(r"^### (\S+)$", text, re.MULTILINE)]


def assembly(sources: Mapping[str, str], kernel: str) -> str:
    """The assembly of a kernel, from its label to its ``.size``; empty when there is none.

    Args:
        sources: texts by member name.
        kernel: symbol.
    """
    return _first(sources, (".s", ".asm"), kernel, _cut_assembly)


def source(sources: Mapping[str, str], kernel: str) -> str:
    """How a kernel came about (expressions, schedule, loops), or else its LLVM IR; empty when there is neither."""
    return _first(sources, (".txt",), kernel, _cut_section) or _first(sources, (".ll",), kernel, _cut_llvm)


def _first(sources: Mapping[str, str], endings: tuple[str, ...], kernel: str, cut: Cut) -> str:
    found = (cut(text, kernel) for name, text in sources.items() if name.endswith(endings))
    return next(filter(None, found), "")


def _cut_assembly(text: str, kernel: str) -> str:
    """The kernel's own function and its parallel regions (``kernel.r1`` …), where the hot loops are."""
    name = rf"{re.escape(kernel)}(?:\.r\d+)?"
    found = re.finditer(rf"^(?P<name>{name}):.*?(?=^\s*\.size\s+(?P=name),|\Z)", text, re.MULTILINE | re.DOTALL)
    return "\n".join(match[0] for match in found)


def _cut_section(text: str, kernel: str) -> str:
    """From ``### kernel`` to the next such line."""
    match = re.search(rf"^### {re.escape(kernel)}\n.*?(?=^### |\Z)", text, re.MULTILINE | re.DOTALL)
    return match[0].rstrip() + "\n" if match else ""


def _cut_llvm(text: str, kernel: str) -> str:
    name = rf'"?{re.escape(kernel)}(?:\.r\d+)?"?'
    return "\n".join(m[0] for m in re.finditer(rf"^define [^\n]*@{name}\(.*?^}}\n?", text, re.MULTILINE | re.DOTALL))
