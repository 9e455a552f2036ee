"""ALT, figure 10: networks, with layouts and loops searched together, loops alone, and without fusion across layouts.

    python -m benchmarks.papers.alt_fig10 --networks resnet18 --batches 1 --trials 200 --seconds 240

``--variants`` names some of ``ALT-OL`` (loops only), ``ALT-WP`` (layouts propagate so that nothing is converted
between operators, but what follows an operator is not computed with it) and ``ALT``. Trials are kept, and a run that
was stopped goes on with what the records of its search have. ``--again`` times what is kept once more, and other
engines beside it, so that only these seconds need a machine at rest. Times of a row are of one comparison, with every
variant that was searched for it and whose records are here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlc
from benchmarks.papers.alt import arguments, go_on, names_of, row_kept, write
from benchmarks.papers.alt_limits import Transforms, kernel_seconds, layer_seconds, multiply_adds
from benchmarks.papers.alt_peers import NAMES, seconds_of_model
from benchmarks.papers.keep import require_records
from benchmarks.stats import geometric_mean
from benchmarks.zoo import build
from mlc.harness.feeds import Fill, make_feeds
from mlc.targets.base import get_target
from mlc.tuning.joint import JOINT_OF_NETWORKS
from mlc.tuning.options import TuneOptions

NETWORKS = ("resnet18", "mobilenet_v2", "bert_base", "bert_tiny", "resnet3d18")
SHIPPED = "as shipped"  # compiled as users do, with every pass and the records that come along
TURNS = 5  # of the last comparison


@dataclass(frozen=True)
class Variant:
    """How a network is tuned.

    Args:
        levels: of searched layouts.
        more: times as many trials as are said.
        apart: whether what follows an operator is a kernel of its own.
    """

    levels: int
    more: float = 1.0
    apart: bool = False


VARIANTS = {"ALT-OL": Variant(0), "ALT-WP": Variant(1, apart=True), "ALT": Variant(1)}
REMARKS = """
The paper's budget is 20,000 trials a network, 12 to 16 hours; what is kept here has the budget that the table says,
which is a first look at each kernel; searches were made {searched}, and what was found was timed in turns {timed},
on one thread. Untuned, this compiler lays blocks of channels out by rules already, which ALT-OL keeps,
and computes convolutions of 3 by 3 taps by Winograd's algorithm where that is faster, which ALT has not: so do all
variants, and only the other operators have layouts to search. ALT-WP leaves the pass `fuse` out. Kernels that lose in
the whole model go back to untuned, as by `mlc tune`. *As shipped* is what a user gets without any search, by the
records that come along. *Direct limit* is the time in which a core does the network's multiply-adds (those of its
convolutions as they are written, without borders) as fast as it was seen to; Winograd's algorithm needs fewer. *Limit
by layer* is the sum over these layers of what each takes at least, to multiply and add or to stream its operands and
result through a rectifier, whichever is longer, and the share of it that untuned code reaches (more than all where
Winograd's algorithm computes most): what a search may find is at most the rest. Other engines are called through
Python. Models are those of the zoo, with random weights.
"""
BY_KERNEL = """
*Limit by kernel* is the same sum over all kernels of the untuned package, with the operations of the algorithms that
they compute by: what a search over layouts and loops may find is at most the rest of it. Winograd's transforms count
with the sums that they take at least; where they are computed from, in the second cache, they cost more.
"""


def measured(
    network: str, batch: int, variants: Mapping[str, Variant], wanted: Collection[str], target: str, trials: int,
    small: bool, again: bool, alone: bool, folder: Path,
) -> dict[str, Any]:  # fmt: skip
    """A case: variants are tuned, unless ``again``, and packages are timed in turns, on one thread.

    Args:
        network, batch: the case.
        variants: all that a row may have.
        wanted: those that are tuned; others that the row has are only timed beside them.
        target, trials, small, again, alone: the command line's.
        folder: of the records, and of what is kept of the row.
    Raises:
        SystemExit: the case is run again, and records of what the row has are gone.
    """
    before = row_kept(folder, f"{network}-{batch}")
    had = [v for v in variants if v in before.get("seconds", {}) or v in before.get("search_seconds", {})]
    records = {v: folder / f"{network}-{batch}-{v}.jsonl" for v in variants if v in wanted or v in had}
    if again:
        require_records(folder / f"{network}-{batch}.json", [records[v] for v in had if v in before["seconds"]])
    path = folder / f"{network}-{batch}.onnx"
    path.write_bytes(build(network, batch=batch, small=small).SerializeToString())
    model = mlc.load(path)
    packages = {SHIPPED: mlc.compile(model, target, threads=1)} if again else {}
    transforms = Transforms()
    packages["untuned"] = mlc.compile(model, target, records=[], threads=1, observer=transforms)
    seconds: dict[str, float] = dict(before.get("search_seconds", {}))
    for name, file in records.items():
        variant = variants[name]
        off = ("fuse",) if variant.apart else ()
        if name in wanted and not again:
            limits = TuneOptions(trials=round(variant.more * trials), layouts=variant.levels, joint=JOINT_OF_NETWORKS)
            tuning = mlc.tune(model, target, records=file, options=limits, threads=1, disabled_passes=off)
            seconds[name] = round(tuning.outcome.seconds, 1)
        if file.exists():
            packages[name] = mlc.compile(model, target, records=[file], disabled_passes=off, threads=1)
    found: dict[str, Any] = {"seconds": in_turns(packages)}
    if again:
        with packages["untuned"].load(1) as module:
            feeds = make_feeds(module.inputs, Fill.RANDOM, 0)
        found["peers"] = seconds_of_model(path, feeds)
        found["multiply_adds"] = multiply_adds(model.graph)
        found["peak"] = get_target(target).bench().open(1).peak()
        found["layer_seconds"] = layer_seconds(model.graph, found["peak"], target)
        found["kernel_seconds"] = kernel_seconds(packages["untuned"], found["peak"], target)
        found["transforms"] = transforms.operations
    else:
        found["search_seconds"], found["searched_alone"] = seconds, alone
        apart = {v: before.get("trials_of", {}).get(v, before["trials"]) for v in had if v not in wanted}
        found.update({"trials_of": apart} if apart else {})
    path.unlink()
    return found


def in_turns(packages: Mapping[str, mlc.Package]) -> dict[str, float]:
    """Least seconds of a call of each package; a sample each, in turns."""
    least = dict.fromkeys(packages, float("inf"))
    modules = {name: package.load(1) for name, package in packages.items()}
    try:
        feeds = make_feeds(next(iter(modules.values())).inputs, Fill.RANDOM, 0)
        for _ in range(TURNS):
            for name, module in modules.items():
                least[name] = min(least[name], min(module.benchmark(feeds, 1, 0.3, 20)) / 1e9)
    finally:
        for module in modules.values():
            module.close()
    return least


def options(doc: str | None, variants: Sequence[str]) -> Any:
    """The command line of a script about networks."""
    parser = arguments(doc, 20_000)
    parser.add_argument("--networks", type=names_of(NETWORKS), default=",".join(NETWORKS), help="comma-separated")
    parser.add_argument("--batches", default="1,16", help="comma-separated")
    parser.add_argument("--variants", type=names_of(variants), default=",".join(variants), help="comma-separated")
    parser.add_argument("--again", action="store_true", help="only time what is kept once more, and other engines")
    parser.add_argument("--alone", action="store_true", help="nothing else runs while variants are searched")
    parser.add_argument("--small", action="store_true", help="the zoo's small networks, to try the script")
    return parser.parse_args()


def run(name: str, title: str, remarks: str, variants: Mapping[str, Variant], base: str, given: Any) -> None:
    """Runs the cases and keeps the figure; speedups are over one of the variants."""
    wanted = {v: variants[v] for v in given.variants}
    cases = {
        f"{network}-{batch}": partial(
            measured,
            network,
            int(batch),
            variants,
            wanted,
            given.target,
            given.trials,
            given.small,
            given.again,
            given.alone,
        )
        for network in given.networks
        for batch in given.batches.split(",")
    }
    rows = go_on(name, given, cases, again=given.again)
    limits = ["layer_seconds", *(["kernel_seconds"] if any("kernel_seconds" in r for r in rows) else [])]
    table = []
    for row in rows:
        of = row["seconds"]
        listed = [f"{1e3 * of[v]:.3f}" if v in of else "" for v in ("untuned", *variants, SHIPPED)]
        others = row.get("peers", {})
        listed += [f"{1e3 * others[engine]:.3f}" if others else "" for engine in NAMES]
        listed.append(f"{2e3 * row['multiply_adds'] / row['peak']:.3f}" if "peak" in row else "")
        for kind in limits:
            limit = row.get(kind, 0.0)
            limit += row["transforms"] / row["peak"] if kind == "kernel_seconds" and "transforms" in row else 0.0
            listed.append(f"{1e3 * limit:.3f} {limit / of['untuned']:.0%}" if limit else "")
        budgets = [str(row["trials"]), *(f"{v} {n}" for v, n in row.get("trials_of", {}).items() if v in of)]
        table.append((row["case"], ", ".join(budgets), *listed))
    bars = {
        r["case"]: {v: r["seconds"][base] / s for v, s in r["seconds"].items()} for r in rows if base in r["seconds"]
    }
    means = {v: [b[v] for b in bars.values() if v in b] for v in ("untuned", *variants)}
    last = "; ".join(f"{v} {geometric_mean(found):.3f}" for v, found in means.items() if found)
    heads = (
        "network and batch",
        "trials",
        *(f"{v} ms" for v in ("untuned", *variants, SHIPPED, *NAMES)),
        "direct limit ms",
        *(f"limit by {of.removesuffix('_seconds')} ms, and of it untuned" for of in limits),
    )
    last = f"Times as fast as {base}, geometric means: {last}."
    beside = [r for r in rows if r.get("peers")]
    for v in (*variants, SHIPPED):
        over = [min(r["peers"].values()) / r["seconds"][v] for r in beside if v in r["seconds"]]
        last += f" {v} over the better engine: {geometric_mean(over):.2f} of {len(over)}." if over else ""
    remarks = (
        textwrap.fill(
            remarks.strip().format(timed=quiet(rows, "alone"), searched=quiet(rows, "searched_alone")),
            120,
            break_on_hyphens=False,
        )
        + "\n"
    )
    remarks += BY_KERNEL if len(limits) > 1 else ""
    write(name, given.out, title, remarks, heads, table, rows, bars, f"times as fast as {base}", last)


def quiet(rows: Sequence[Mapping[str, Any]], flag: str) -> str:
    """Beside what rows were timed, or searched, in words that end a sentence.

    >>> quiet([{"case": "a-1", "alone": True}, {"case": "b-1"}], "alone")
    'with nothing else running, b-1 beside other work'
    """
    beside = [r["case"] for r in rows if not r.get(flag)]
    if beside and len(beside) == len(rows):
        return "beside other work"
    return "with nothing else running" + (f", {', '.join(beside)} beside other work" if beside else "")


def main() -> None:
    """The command line."""
    given = options(__doc__, list(VARIANTS))
    run("alt_fig10", "ALT, figure 10: networks", REMARKS, VARIANTS, "untuned", given)


if __name__ == "__main__":
    main()
