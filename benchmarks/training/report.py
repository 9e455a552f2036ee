"""The page of the benchmark of training: tables of all cases, and geometric means by what a goal is set for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.report import table
from benchmarks.stats import geometric_mean

NOVEL = ("capsule_net", "mi_lstm", "sc_rnn", "sub_lstm", "lltm")
LIGHT = ("shufflenet", "mobilenet")
HEAVY = ("resnet18", "resnet50", "bert_encoder")
KNOWN = (*LIGHT, *HEAVY)
OURS, EAGER, COMPILED = "mlc", "eager", "torch.compile"
BEST = "the better of both"


@dataclass(frozen=True)
class Case:
    """What was measured of a network.

    Args:
        kind: ``step`` or ``inference``.
        times: milliseconds by engine.
        agrees: whether the engines' losses do.
        date: when that was; a run may go on another day, and the compiler be another one by then.
    """

    kind: str
    name: str
    batch: int
    threads: int
    times: Mapping[str, float]
    agrees: bool
    date: str

    def over(self, peer: str) -> float | None:
        """How many times as long a peer takes as we do."""
        theirs = [self.times[e] for e in ((EAGER, COMPILED) if peer == BEST else (peer,)) if e in self.times]
        return min(theirs) / self.times[OURS] if theirs and OURS in self.times else None


def cases(found: Mapping[str, Any]) -> list[Case]:
    """Those of a file of results."""
    result = []
    for key, case in found["cases"].items():
        kind, name, batch, threads = key.split()
        date = case.get("date", found["machine"].get("date", ""))
        result.append(Case(kind, name, int(batch), int(threads), case.get("times", {}), case["agrees"], date))
    return result


# what a geometric mean is over, the peer, and which cases
MEANS: tuple[tuple[str, str, Callable[[Case], bool]], ...] = (
    ("step, novel networks, batch 1 to 16", EAGER, lambda c: _step(c, NOVEL) and c.batch <= 16),
    ("step, novel networks, batch 1 to 16", COMPILED, lambda c: _step(c, NOVEL) and c.batch <= 16),
    ("step, novel networks, batch 64", EAGER, lambda c: _step(c, NOVEL) and c.batch == 64),
    ("step, novel networks, batch 64", COMPILED, lambda c: _step(c, NOVEL) and c.batch == 64),
    ("step, ShuffleNet and MobileNet", EAGER, lambda c: _step(c, LIGHT)),
    ("step, ShuffleNet and MobileNet", COMPILED, lambda c: _step(c, LIGHT)),
    ("step, ResNets and BERT", EAGER, lambda c: _step(c, HEAVY)),
    ("step, ResNets and BERT", COMPILED, lambda c: _step(c, HEAVY)),
    ("inference, novel networks", BEST, lambda c: c.kind == "inference" and c.name in NOVEL),
    ("inference, known networks", BEST, lambda c: c.kind == "inference" and c.name in KNOWN),
    ("inference, all networks", BEST, lambda c: c.kind == "inference"),
)


def _step(case: Case, names: tuple[str, ...]) -> bool:
    return case.kind == "step" and case.name in names


def means(found: Mapping[str, Any]) -> list[tuple[str, str, int, float, float]]:
    """What each mean is over, the peer, of how many cases, the mean, and the least of them."""
    result = []
    for what, peer, wanted in MEANS:
        values = [r for c in cases(found) if wanted(c) and (r := c.over(peer)) is not None]
        if values:
            result.append((what, peer, len(values), geometric_mean(values), min(values)))
    return result


def report(found: Mapping[str, Any]) -> str:
    """The page."""
    lines = ["# Training steps and inference", "", *(f"- {k}: {v}" for k, v in found["machine"].items()), ""]
    heads = ("geometric means of", "time of", "cases", "over mlc's", "least")
    rows = [(what, peer, str(n), f"{mean:.2f}", f"{least:.2f}") for what, peer, n, mean, least in means(found)]
    lines += [*table(heads, rows, left=2), ""]
    for kind, title in (("step", "Training step"), ("inference", "Inference")):
        chosen = sorted((c for c in cases(found) if c.kind == kind), key=_place)
        if not chosen:
            continue
        heads = ("network", "batch", "threads", "mlc, ms", "eager, ms", "torch.compile, ms",
                 "eager / mlc", "compiled / mlc", "losses agree", "measured")  # fmt: skip
        lines += [f"## {title}", "", *table(heads, [_row(c) for c in chosen]), ""]
    lines.append("Medians of calls taken in turns; `python -m benchmarks.training --out FILE.json` measures them.")
    failures = [f"- {key}, {e}: {text}" for key, c in found["cases"].items() for e, text in c["failures"].items()]
    return "\n".join([*lines, *(["", *failures] if failures else []), ""])


def _place(case: Case) -> tuple[int, int, int]:
    return (*NOVEL, *KNOWN).index(case.name), case.threads, case.batch


def _row(case: Case) -> tuple[str, ...]:
    times = [f"{case.times[e]:.3f}" if e in case.times else "-" for e in (OURS, EAGER, COMPILED)]
    over = ["-" if (r := case.over(e)) is None else f"{r:.2f}" for e in (EAGER, COMPILED)]
    return case.name, str(case.batch), str(case.threads), *times, *over, "yes" if case.agrees else "**no**", case.date
