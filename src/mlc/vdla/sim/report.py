"""What a run cost: cycles, who was busy and who waited for what, bytes, and the distance from the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc.errors import ProgramError
from mlc.vdla.config import PROFILES, VdlaConfig, profile_of
from mlc.vdla.isa import Instruction, Mem, Unit
from mlc.vdla.sim.timeline import REASONS, Timeline
from mlc.vdla.sim.work import Work


@dataclass(frozen=True)
class Figures:
    """Figures of a stream, or of one layer's part of it.

    Attributes:
        name: of the layer; empty for the whole.
        begin, end: cycles, from its first instruction's start to its last one's end.
        cycles: that it adds: since the part before it ended. They sum to the whole's.
        instructions: how many.
        macs: multiply-accumulates that the task asks for; None where the program does not say.
        task_bytes: of the task's tensors, every layer's once and without padding; None where the program does not say.
        mac_cycles: cycles in which the array multiplied, be it padding, zeros of diagonal tiles, biases or identities.
        bytes: moved, by memory id.
        compulsory_bytes: distinct bytes loaded, micro-ops excepted, plus distinct bytes stored: each tensor once.
        busy: by unit, cycles in which it had something running.
        stalls: by unit, cycles in which it had nothing running, by what it waited for: a queue's token, ``fetch``, or
            ``full`` where a token found no room.
        latency: by unit, cycles of ``busy`` in which its bytes were still on their way.
        port: by unit, cycles of ``busy`` in which others held the memory.
        port_busy: cycles in which the memory moved bytes.
    """

    name: str
    begin: float
    end: float
    cycles: float
    instructions: int
    macs: int | None
    task_bytes: int | None
    mac_cycles: int
    bytes: dict[str, int]
    compulsory_bytes: int
    busy: dict[str, float]
    stalls: dict[str, dict[str, float]]
    latency: dict[str, float]
    port: dict[str, float]
    port_busy: float


@dataclass(frozen=True, eq=False)
class Report:
    """A run of a stream on an accelerator.

    Attributes:
        config: the accelerator.
        total: figures of the whole stream; None where time was not simulated.
        layers: figures of its layers, where the program says what they are.
        tokens: that went through each queue.
        timeline: every instruction's times.
        instructions: the stream, with absolute addresses.
    """

    config: VdlaConfig
    instructions: Sequence[Instruction]
    total: Figures | None = None
    layers: list[Figures] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    timeline: Timeline | None = None

    @property
    def cycles(self) -> int:
        """Whole cycles until the last instruction was done; 0 where time was not simulated."""
        return math.ceil(self.total.cycles) if self.total else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON values (``docs/vdla.md`` describes them)."""
        config = self.config
        document: dict[str, Any] = {
            "profile": profile_name(config),
            "config": config.to_dict(),
            "config_hash": f"{config.hash:016x}",
            "assumptions": assumptions(config),
            "instructions": len(self.instructions),
        }
        if self.total:
            document |= {**entry(self.total, config), "cycles": self.cycles, "tokens": self.tokens}
            document["layers"] = [entry(layer, config) for layer in self.layers]
        return document


def profile_name(config: VdlaConfig) -> str:
    """How to call an accelerator: its profile, and whether its times are the profile's."""
    alike = next((name for name, known in PROFILES.items() if known.hash == config.hash), None)
    return profile_of(config) or (f"{alike}, other times" if alike else "custom")


def milliseconds(cycles: float, config: VdlaConfig) -> float:
    """Cycles as time."""
    return cycles / (config.freq_mhz * 1e3)


def gops(figures: Figures, config: VdlaConfig) -> float | None:
    """10**9 operations a second of the task, a multiply-accumulate counted as two; None where it is not known."""
    if figures.macs is None:
        return None
    return 2e-3 * figures.macs * config.freq_mhz / figures.cycles if figures.cycles else 0.0


def peak_gops(config: VdlaConfig) -> float:
    """What the array does at most."""
    return 2e-3 * config.macs_per_cycle * config.freq_mhz


def roof_gops(intensity: float, config: VdlaConfig) -> float:
    """What the roofline allows at so many operations a byte."""
    return min(peak_gops(config), 1e-3 * intensity * config.bytes_per_cycle * config.freq_mhz)


def intensity(figures: Figures) -> float | None:
    """Operations per byte of the task; None where it is not known, 0 where it has no bytes."""
    if figures.macs is None or figures.task_bytes is None:
        return None
    return 2 * figures.macs / figures.task_bytes if figures.task_bytes else 0.0


def util(figures: Figures) -> float:
    """The part of the time in which the array multiplied, whatever it multiplied."""
    return figures.mac_cycles / figures.cycles if figures.cycles else 0.0


def useful(figures: Figures, config: VdlaConfig) -> float | None:
    """The part of what the array could have multiplied that the task asked for; None where it is not known."""
    if figures.macs is None:
        return None
    return figures.macs / (config.macs_per_cycle * figures.cycles) if figures.cycles else 0.0


def roof_share(figures: Figures, config: VdlaConfig) -> float | None:
    """The task's roofline in cycles over those it took: its products, or its bytes, whichever takes longer."""
    if figures.macs is None or figures.task_bytes is None:
        return None
    bound = max(figures.macs / config.macs_per_cycle, figures.task_bytes / config.bytes_per_cycle)
    return bound / figures.cycles if figures.cycles else 0.0


def eta(figures: Figures, config: VdlaConfig) -> float:
    """The cycles that the program needs as it is tiled over those it took: all products, or all it touches once."""
    bound = max(figures.mac_cycles, figures.compulsory_bytes / config.bytes_per_cycle)
    return bound / figures.cycles if figures.cycles else 0.0


def entry(figures: Figures, config: VdlaConfig) -> dict[str, Any]:
    """Figures with what follows from them, as JSON values; a layer's name is left out where there is none."""
    document = asdict(figures)
    if not figures.name:
        del document["name"]
    at = intensity(figures)
    return {
        **document,
        "ms": milliseconds(figures.cycles, config),
        "gops": gops(figures, config),
        "intensity": at,
        "roof_gops": None if at is None else roof_gops(at, config),
        "roof_share": roof_share(figures, config),
        "util": util(figures),
        "useful": useful(figures, config),
        "eta": eta(figures, config),
        "port_utilisation": figures.port_busy / figures.cycles if figures.cycles else 0.0,
    }


def assumptions(config: VdlaConfig) -> list[str]:
    """What the figures rest on that the paper does not give, a line each; shown with every result."""
    bandwidth = config.bytes_per_cycle * config.freq_mhz * 1e-3
    return [
        f"clock {config.freq_mhz} MHz, {config.macs_per_cycle} multiply-accumulates a cycle",
        f"memory {bandwidth:.3f} GB/s: port {config.port_bytes_per_cycle:g}, DRAM {config.dram_bytes_per_cycle:g} "
        "bytes a cycle, shared by loads and stores (assumed: 16-bit DDR3-1050 at 75 %: the paper gives no figures)",
        f"DRAM latency {config.dram_latency} cycles, {config.dma_issue} to issue a transfer, "
        f"{config.dma_outstanding} outstanding a unit (assumed)",
        f"pipeline fill {config.gemm_fill} cycles GEMM, {config.alu_fill} ALU; a sum can be used again after "
        f"{config.acc_latency} (assumed)",
        f"fetch 2 cycles an instruction beside the data, queues of {config.cmd_queue_depth} instructions and "
        f"{config.dep_queue_depth} tokens (assumed)",
    ]


def make_report(
    config: VdlaConfig,
    instructions: Sequence[Instruction],
    work: Work,
    timeline: Timeline,
    meta: Mapping[str, Any],
) -> Report:
    """The report of a simulated stream.

    Args:
        config, instructions, work, timeline: the stream and its times.
        meta: of the program: ``layers``, see :func:`layer_ranges`.
    Raises:
        ProgramError: the layers are not such a list.
    """
    reader = _Reader(config, work, timeline)
    ranges = layer_ranges(meta, len(instructions))
    whole = LayerRange("", 0, len(instructions), _sum(r.macs for r in ranges), _sum(r.nbytes for r in ranges))
    total = reader.figures(whole, 0.0)
    layers: list[Figures] = []
    before = 0.0
    for layer in ranges:
        layers.append(reader.figures(layer, before))
        before = max(before, layers[-1].end)
    return Report(config, instructions, total, layers, timeline.tokens, timeline)


def _sum(parts: Iterable[int | None]) -> int | None:
    """The sum, if there is something and all of it is known."""
    found = list(parts)
    return sum(n for n in found if n is not None) if found and None not in found else None


class LayerRange(NamedTuple):
    """A layer's part of a stream, and what its task is.

    Attributes:
        name: for people.
        first, last: its instructions, ``last`` exclusive.
        macs: multiply-accumulates that are asked for.
        nbytes: of its tensors, each once and without padding.
    """

    name: str
    first: int
    last: int
    macs: int | None
    nbytes: int | None


def layer_ranges(meta: Mapping[str, Any], count: int) -> list[LayerRange]:
    """The layers that a program's META names: ``{"name", "first", "last", "macs", "bytes"}``, the last two optional.

    Raises:
        ProgramError: an entry is malformed, or not in order.
    """
    found: list[LayerRange] = []
    end = 0
    layers = meta.get("layers", [])
    if not isinstance(layers, list):
        raise ProgramError(f"META: layers are {layers!r}; expected a list")
    for layer in layers:
        try:
            name, first, last = layer["name"], layer["first"], layer["last"]
        except (KeyError, TypeError):
            raise ProgramError(f"META: layer {layer!r} lacks a name, a first or a last instruction") from None
        if not (isinstance(name, str) and isinstance(first, int) and isinstance(last, int) and end <= first <= last):
            raise ProgramError(f"META: layer {layer!r} does not follow the one before it")
        if last > count:
            raise ProgramError(f"META: layer {name!r} ends at instruction {last} of {count}")
        macs, nbytes = layer.get("macs"), layer.get("bytes")
        if any(n is not None and not (type(n) is int and n >= 0) for n in (macs, nbytes)):
            raise ProgramError(f"META: layer {name!r} has {macs!r} macs and {nbytes!r} bytes; expected numbers")
        found.append(LayerRange(name, first, last, macs, nbytes))
        end = last
    return found


class _Reader:
    """The columns of a run as arrays, and figures of ranges of them."""

    def __init__(self, config: VdlaConfig, work: Work, timeline: Timeline) -> None:
        self.config = config
        self.footprint = _Footprint(work)
        self.time = timeline
        self.mem, self.macs, self.nbytes = work.mem, work.macs, work.nbytes
        # Every unit's instructions and their times: a range of the stream is a range of each of them.
        self.wheres = {unit: np.flatnonzero(work.unit == unit) for unit in Unit}
        self.times = {unit: _part(timeline, where) for unit, where in self.wheres.items()}

    def figures(self, layer: LayerRange, before: float) -> Figures:
        name, first, last, macs, nbytes = layer
        part = slice(first, last)
        all_units = _part(self.time, part)
        begin = float(all_units.begin.min(initial=np.inf)) if last > first else before
        end = float((all_units.end + all_units.full).max(initial=before))
        moved = np.bincount(self.mem[part] + 1, self.nbytes[part], len(Mem) + 1)[1:]
        stalls: dict[str, dict[str, float]] = {}
        busy: dict[str, float] = {}
        latency: dict[str, float] = {}
        port: dict[str, float] = {}
        for unit, where in self.wheres.items():
            time = _part(self.times[unit], slice(*np.searchsorted(where, (first, last))))
            waits = np.bincount(time.reason + 1, time.idle, len(REASONS) + 1)[1:]
            named = dict(zip(REASONS, waits.tolist(), strict=True)) | {"full": _full(time)}
            stalls[unit.name] = {reason: cycles for reason, cycles in named.items() if cycles}
            busy[unit.name] = _covered(time.begin, time.end)
            latency[unit.name] = float(time.latency.sum())
            port[unit.name] = float(time.port.sum())
        mac_cycles = int(self.macs[part].sum())
        return Figures(
            name=name,
            begin=begin,
            end=end,
            cycles=end - before,
            instructions=last - first,
            macs=macs,
            task_bytes=nbytes,
            mac_cycles=mac_cycles,
            bytes={mem.name: int(moved[mem]) for mem in Mem if moved[mem]},
            compulsory_bytes=self.footprint.distinct(first, last),
            busy=busy,
            stalls=stalls,
            latency=latency,
            port=port,
            port_busy=float(all_units.moving.sum()),
        )


def _part(time: Timeline, which: slice | npt.NDArray[np.intp]) -> Timeline:
    """The times of some instructions; ``tokens`` stay those of the whole."""
    return Timeline(**{name: value if name == "tokens" else value[which] for name, value in vars(time).items()})


def _full(time: Timeline) -> float:
    """Cycles in which a unit had nothing running because a token found no room."""
    if not time.full.any():
        return 0.0
    following = np.append(time.begin[1:], np.inf)
    return float(np.minimum(time.full, np.maximum(following - time.end, 0)).sum())


def _covered(begin: npt.NDArray[np.float64], end: npt.NDArray[np.float64]) -> float:
    """Length of the union of intervals that are in order of their begins, and of their ends."""
    if not len(begin):
        return 0.0
    free = begin.copy()
    np.maximum.accumulate(end[:-1], out=free[1:])
    return float(np.maximum(end - np.maximum(begin, free), 0).sum())


class _Footprint:
    """Which bytes every transfer of tensors moves, and how many distinct ones a range of instructions does."""

    def __init__(self, work: Work) -> None:
        tensors = work.moves & (work.mem != Mem.UOP)
        # Rows that follow each other without a gap are one.
        together = work.pitch == work.row_bytes
        rows, length = np.where(together, 1, work.rows), np.where(together, work.nbytes, work.row_bytes)
        self._tables = []
        for stores in (False, True):
            where = np.flatnonzero(tensors & (work.stores == stores))
            columns = (column[where] for column in (work.address, rows, length, work.pitch))
            self._tables.append(np.stack([where, *columns]))

    def distinct(self, first: int, last: int) -> int:
        """Distinct bytes loaded, micro-ops excepted, plus distinct bytes stored."""
        return sum(_distinct(table[:, slice(*np.searchsorted(table[0], (first, last)))]) for table in self._tables)


def _distinct(table: npt.NDArray[np.int64]) -> int:
    """Bytes in the union of the rows of some transfers, given as (instruction, address, rows, bytes of one, pitch)."""
    _, address, rows, length, pitch = table
    which = np.repeat(np.arange(len(rows)), rows)
    row = np.arange(len(which)) - np.repeat(np.cumsum(rows) - rows, rows)
    begin = address[which] + row * pitch[which]
    end = begin + length[which]
    order = np.argsort(begin, kind="stable")
    return int(_covered(begin[order].astype(np.float64), end[order].astype(np.float64)))
