"""``python -m tests.conformance``: run the ONNX backend test suite and compare with the reviewed list of failures.

Exit code 0: every case ended as expected. 1: a case failed that should pass, or passed that was expected to fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.emulated import PROCESSOR

from . import expected
from .cases import KINDS, CaseFile, archive
from .check import Result, run_case
from .engines import interpret
from .pool import run_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; gives the exit code."""
    options = _parser().parse_args(arguments)
    engine = "interpreter" if options.interpreter else "compiled"
    if options.processor:
        os.environ[PROCESSOR] = options.processor
    path = archive()
    cases = CaseFile(path)
    names = [n for n in cases.names() if _chosen(n, cases.index[n]["kind"], options)]
    results: list[Result] = []
    for result in run_all(path, names, engine, jobs=options.jobs, timeout=options.timeout):
        results.append(result)
        if options.verbose or (sys.stderr.isatty() and len(results) % 20 == 0):
            word = "ok" if result.passed else result.reason
            print(f"{len(results)}/{len(names)} {result.name}: {word}", file=sys.stderr)
    results.sort(key=lambda r: (KINDS.index(r.kind), r.name))
    if options.update:
        expected.update(results, engine, lambda name: run_case(cases.read(name), interpret))
    verdict = expected.judge(results, engine, cases.names())
    print(report(results, verdict, engine))
    if options.json:
        document = {"engine": engine, "counts": _counts(results), "results": [r.to_json() for r in results]}
        Path(options.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if verdict.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description="Run the ONNX backend test suite.")
    parser.add_argument("--interpreter", action="store_true", help="run the imported graph as numpy, uncompiled")
    parser.add_argument("--processor", help="compile for this ARM processor, and run under qemu")
    parser.add_argument("--filter", metavar="REGEX", default="", help="only cases whose name contains this")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only this part of the suite; repeatable")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a case may take (default: 60)")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--update", action="store_true", help="rewrite the list of expected failures; read the diff")
    parser.add_argument("--verbose", action="store_true", help="a line for every case")
    return parser


def _chosen(name: str, kind: str, options: argparse.Namespace) -> bool:
    return re.search(options.filter, name) is not None and kind in (options.kind or KINDS)


def _counts(results: Sequence[Result]) -> dict[str, dict[str, int]]:
    total, passed = Counter(r.kind for r in results), Counter(r.kind for r in results if r.passed)
    return {kind: {"passed": passed[kind], "total": total[kind]} for kind in KINDS if total[kind]}


def report(results: Sequence[Result], verdict: expected.Verdict, engine: str) -> str:
    """What happened, as text: failures by operator and reason, counts, and what was not expected."""
    lines: list[str] = []
    groups = Counter((r.operator, _shortened(r.reason)) for r in results if not r.passed)
    if groups:
        lines.append("failures by operator and reason:")
        lines += [f"  {count:4}  {operator:28} {reason}" for (operator, reason), count in sorted(groups.items())]
    for kind, count in _counts(results).items():
        lines.append(f"{kind}: {count['passed']} / {count['total']} passed")
    fixed = sum(1 for r in results if r.passed and r.constants)
    passed = sum(1 for r in results if r.passed)
    lines.append(f"all, {engine}: {passed} / {len(results)} passed ({fixed} of them with inputs given as constants)")
    lines += [f"UNEXPECTED FAILURE {r.name}: {r.reason[:160]}" for r in verdict.fails]
    lines += [f"UNEXPECTED PASS {name}" for name in verdict.passes]
    lines += [f"no such case, but on the list: {name}" for name in verdict.strange]
    return "\n".join(lines)


def _shortened(reason: str) -> str:
    """A reason without the numbers that differ from case to case."""
    for start in ("output ",):
        if reason.startswith(start):
            return re.sub(r"\(.*?\)|\d+", "…", reason.partition(", first at")[0])[:110]
    return reason[:110]


if __name__ == "__main__":
    sys.exit(main())
