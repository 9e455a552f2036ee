"""What the scripts need beside the compiler, said in one line before hours of work."""

from __future__ import annotations

from importlib.util import find_spec


def require(script: str, *modules: str) -> None:
    """Ends the program where a library is missing.

    Args:
        script: name of its module.
        modules: that it imports at some time.
    Raises:
        SystemExit: one is not installed; the message is one line, and the exit code 1.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise SystemExit(
            f"python -m benchmarks.papers.{script} needs {' and '.join(missing)}: pip install --editable '.[bench,dev]'"
        )
