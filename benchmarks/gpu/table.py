"""Rows of a run as a document."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.gpu.state import Row
from benchmarks.stats import geometric_mean
from benchmarks.zoo import MODELS

OURS, COMPILED = "mlc", "torch.compile"
SIDES = (OURS, "torch", COMPILED)


def gain(row: Row) -> float | None:
    """How many times as fast as the better peer ours is; nothing where no peer ran it or ours is wrong."""
    seconds = row.get("seconds", {})
    peers = [seconds[n]["median"] for n in SIDES[1:] if n in seconds]
    return min(peers) / seconds["mlc"]["median"] if peers and "mlc" in seconds and not row.get("error") else None


def document(title: str, facts: Sequence[str], rows: Iterable[Row]) -> str:
    """Markdown: what was measured and where, checks that failed, and a table of times."""
    rows = [r for r in rows if not r.get("unfinished")]
    lines = [f"# {title}", "", *(f"* {fact}" for fact in facts), ""]
    checks = [r for r in rows if r["stage"] == "check"]
    failed = [r for r in checks if r.get("error")]
    lines += [f"{len(checks) - len(failed)} of {len(checks)} results agree with the reference."] if checks else []
    lines += [f"* {r['model']} ({r['precision']}): {r['error']}" for r in failed]
    measured = [r for r in rows if r["stage"] == "measure"]
    lines += ["", "| model | precision | tuned | mlc ms | torch ms | torch.compile ms | x the better | timed by |"]
    lines += ["|---|---|---|---:|---:|---:|---:|---|"]
    for r in measured:
        seconds, said = r.get("seconds", {}), r.get("failed", {})
        cells = [f"{seconds[n]['median'] * 1e3:.4f}" if n in seconds else said.get(n, "-") for n in SIDES]
        ratio = gain(r)
        last = f"{ratio:.2f}" if ratio is not None else r.get("error", "-")
        tuned = "yes" if r["tuned"] else "no"
        lines.append("| " + " | ".join([r["model"], r["precision"], tuned, *cells, last, r.get("timed", "")]) + " |")
    lines.append("")
    for kind in ("operator", "network"):
        for precision in ("fp32", "fp16"):
            for tuned in (False, True):
                some = [r for r in measured if (r["precision"], r["tuned"]) == (precision, tuned)]
                found = [g for r in some if MODELS[r["model"]].kind == kind and (g := gain(r)) is not None]
                if found:
                    how = "tuned" if tuned else "untuned"
                    lines.append(
                        f"* {kind}s, {precision}, {how}: {geometric_mean(found):.2f} x the better peer "
                        f"(geometric mean of {len(found)})"
                    )
    return "\n".join(lines) + "\n"
