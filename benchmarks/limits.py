"""What the machine can do at most: arithmetic, reading and copying, on 1 and more cores, from a few lines of LLVM IR.

python -m benchmarks.limits --cores 0,1
"""

from __future__ import annotations

import argparse
import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks import machine

# Multiply-adds take 4 cycles and two can start in each on all processors of interest: 8 chains would just do.
CHAINS = 12
# Vectors read in one turn of the reading loop, each into an accumulator of its own.
STREAMS = 8
# How long one timed call takes, about; how many there are.
CALL_SECONDS, CALLS = 0.02, 9


@dataclass(frozen=True)
class Limit:
    """Limits of some cores together, each working on data of its own.

    Args:
        threads: how many cores.
        gflops: 10^9 float32 operations a second, a multiply-add counted as two.
        gbytes: 10^9 bytes a second read, by where the data lies: ``L1``, ``L2``, ``L3``, ``memory``.
        copied: the same for what is read and written together, while one half of the data is copied to the other.
    """

    threads: int
    gflops: float
    gbytes: Mapping[str, float]
    copied: Mapping[str, float]


def level_sizes(caches: Mapping[str, int], threads: int) -> dict[str, int]:
    """Bytes that each core uses over and over, so that they lie in one level and not in the one before.

    Four times the level before, or half of the level where that is less: the last one is shared, with strangers too
    where the machine is a virtual one, and near its size its rate would be one of memory.

    Args:
        caches: size of each cache by name; the last one is shared.
    """
    names = sorted(caches)
    sizes: dict[str, int] = {}
    for before, name in zip((None, *names), names, strict=False):
        shared = threads if len(names) > 2 and name == names[-1] else 1
        half = caches[name] // 2 // shared
        sizes[name] = half if before is None else min(half, 4 * caches[before])
    return sizes | {"memory": max(4 * max(caches.values(), default=0), 256 << 20) // threads}


def measure(cores: Sequence[int], threads: Sequence[int]) -> list[Limit]:
    """Measures in a process of its own, with each number of threads, pinned to the first cores."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, tuple(cores), tuple(threads)).result()


def roof(limit: Limit, level: str, intensity: float) -> float:
    """GFLOP/s that are possible at some operations per byte, when the bytes come from one level."""
    return min(limit.gflops, limit.gbytes[level] * intensity)


def roof_of(limit: Limit, level: str, flops: float, read: float, written: float) -> float:
    """GFLOP/s that are possible for some operations on bytes that come from and go to one level.

    Bytes that are written, and as many that are read, move as in a copy; what is left moves as in reading.
    """
    both = 2 * min(read, written)
    seconds = (both / limit.copied[level] + (read + written - both) / limit.gbytes[level]) / 1e9
    return min(limit.gflops, flops / seconds / 1e9) if seconds else limit.gflops


def home(caches: Mapping[str, int], size: float) -> str:
    """The level in which ``size`` bytes that are used again and again lie: the smallest that holds them."""
    return next((name for name in sorted(caches) if size <= caches[name]), "memory")


def line(limit: Limit) -> str:
    """A limit as one line for a terminal."""
    read, copied = (", ".join(f"{k} {v:.1f}" for k, v in rates.items()) for rates in (limit.gbytes, limit.copied))
    return f"limits with {limit.threads} threads: {limit.gflops:.1f} GFLOP/s; GB/s read: {read}; copied: {copied}"


def _measure(cores: tuple[int, ...], threads: tuple[int, ...]) -> list[Limit]:
    kernels = _Kernels()
    caches = machine.cache_sizes()
    limits = []
    for count in threads:
        used = cores[:count]
        gflops = _together(used, lambda: kernels.arithmetic())
        read, copied = (
            {level: _together(used, lambda k=k, n=n: k(n)) for level, n in level_sizes(caches, count).items()}
            for k in (kernels.reading, kernels.copying)
        )
        limits.append(Limit(count, gflops, read, copied))
    return limits


def _together(cores: Sequence[int], prepare: Callable[[], tuple[Callable[[], object], float]]) -> float:
    """The sum over cores of the best rates, in 10^9 units a second; all of them work at the same time.

    Args:
        prepare: gives what a core has to call, and the units of work that a call does.
    """
    barrier = threading.Barrier(len(cores))
    rates: list[float] = []

    def work(core: int) -> None:
        os.sched_setaffinity(0, {core})  # 0: this thread
        call, units = prepare()
        call()
        barrier.wait()
        times = []
        for _ in range(CALLS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        rates.append(units / min(times) / 1e9)

    pool = [threading.Thread(target=work, args=(core,)) for core in cores]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return sum(rates)


class _Kernels:
    """Machine code for this processor; calls through ctypes leave the interpreter's lock."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features()
        self._lanes = 16 if features.get("avx512f") else 8 if features.get("avx") else 4
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=f"{features.flatten()},-prefer-256-bit", opt=2
        )
        text = ir_text(self._lanes, fused=bool(features.get("fma")))
        self._engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target)
        self._engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self._arithmetic = prototype(self._engine.get_function_address("arithmetic"))
        self._reading = prototype(self._engine.get_function_address("reading"))
        self._copying = prototype(self._engine.get_function_address("copying"))

    def arithmetic(self) -> tuple[Callable[[], object], float]:
        """Chains of multiply-adds; units are operations."""
        data = np.full(2 * self._lanes, 0.5, np.float32)
        turns = self._turns(lambda n: self._arithmetic(data.ctypes.data, 1, n))
        return lambda: self._arithmetic(data.ctypes.data, 1, turns), 2.0 * CHAINS * self._lanes * turns

    def reading(self, size: int) -> tuple[Callable[[], object], float]:
        """Reads ``size`` bytes over and over; units are bytes."""
        return self._moving(self._reading, size, 1)

    def copying(self, size: int) -> tuple[Callable[[], object], float]:
        """Copies one half of ``size`` bytes to the other over and over; units are bytes read and bytes written."""
        return self._moving(self._copying, size, 2)

    def _moving(self, kernel: Any, size: int, parts: int) -> tuple[Callable[[], object], float]:
        """Lets a kernel go over ``size`` bytes, of which each turn of its loop takes a block from every part."""
        step = 4 * self._lanes * STREAMS * parts
        blocks = max(size // step, 1)
        raw = np.ones(blocks * step + 64, np.uint8)
        begin = raw.ctypes.data + -raw.ctypes.data % 64
        turns = self._turns(lambda n: kernel(begin, blocks, n))

        def call(keep: np.ndarray = raw) -> object:
            return kernel(begin, blocks, turns)

        return call, float(blocks * step * turns)

    @staticmethod
    def _turns(call: Callable[[int], object]) -> int:
        """How many turns of a kernel take about as long as one call shall."""
        turns = 1
        while True:
            start = time.perf_counter()
            call(turns)
            took = time.perf_counter() - start
            if took > CALL_SECONDS / 4:
                return max(1, round(turns * CALL_SECONDS / took))
            turns *= 2


def ir_text(lanes: int, fused: bool) -> str:
    """Three functions ``float (float *data, int64 blocks, int64 turns)`` for vectors of ``lanes`` floats.

    Args:
        fused: the processor has a multiply-add; without one, a product and a sum take its place.
    """
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    step = []
    for chain in range(CHAINS):
        if fused:
            step.append(
                f"  %n{chain} = call {floats} @llvm.fma.v{lanes}f32({floats} %a{chain}, {floats} %x, {floats} %y)"
            )
        else:
            step += [f"  %m{chain} = fmul {floats} %a{chain}, %x", f"  %n{chain} = fadd {floats} %m{chain}, %y"]
    folded = [f"  %s1 = fadd {floats} %n0, %n1"]
    folded += [f"  %s{i} = fadd {floats} %s{i - 1}, %n{i}" for i in range(2, CHAINS)]
    arithmetic = "\n".join(
        [
            "define float @arithmetic(ptr %data, i64 %blocks, i64 %turns) {",
            "entry:",
            f"  %x = load {floats}, ptr %data, align 4",
            f"  %second = getelementptr {floats}, ptr %data, i64 1",
            f"  %y = load {floats}, ptr %second, align 4",
            "  br label %loop",
            "loop:",
            "  %t = phi i64 [0, %entry], [%next, %loop]",
            # Chains that begin alike would be merged.
            *(
                f"  %a{chain} = phi {floats} [{_splat(lanes, chain)}, %entry], [%n{chain}, %loop]"
                for chain in range(CHAINS)
            ),
            *step,
            "  %next = add i64 %t, 1",
            "  %more = icmp slt i64 %next, %turns",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *folded,
            f"  %r = extractelement {floats} %s{CHAINS - 1}, i32 0",
            "  ret float %r",
            "}",
        ]
    )
    accumulators = [f"phi {ints} [zeroinitializer, %outer], [%n{i}, %inner]" for i in range(STREAMS)]
    reads = []
    for i in range(STREAMS):
        reads += [
            f"  %p{i} = getelementptr {ints}, ptr %base, i64 {i}",
            f"  %v{i} = load {ints}, ptr %p{i}, align {4 * lanes}",
            f"  %n{i} = or {ints} %a{i}, %v{i}",
        ]
    joined = [f"  %s1 = or {ints} %n0, %n1"]
    joined += [f"  %s{i} = or {ints} %s{i - 1}, %n{i}" for i in range(2, STREAMS)]
    reading = "\n".join(
        [
            "define float @reading(ptr %data, i64 %blocks, i64 %turns) {",
            "entry:",
            "  br label %outer",
            "outer:",
            "  %t = phi i64 [0, %entry], [%tn, %latch]",
            f"  %kept = phi {ints} [zeroinitializer, %entry], [%keep, %latch]",
            "  br label %inner",
            "inner:",
            "  %b = phi i64 [0, %outer], [%bn, %inner]",
            *(f"  %a{i} = {phi}" for i, phi in enumerate(accumulators)),
            f"  %at = mul i64 %b, {STREAMS}",
            f"  %base = getelementptr {ints}, ptr %data, i64 %at",
            *reads,
            "  %bn = add i64 %b, 1",
            "  %morebs = icmp slt i64 %bn, %blocks",
            "  br i1 %morebs, label %inner, label %latch",
            "latch:",
            *joined,
            f"  %keep = xor {ints} %kept, %s{STREAMS - 1}",
            "  %tn = add i64 %t, 1",
            "  %morets = icmp slt i64 %tn, %turns",
            "  br i1 %morets, label %outer, label %done",
            "done:",
            f"  %e = extractelement {ints} %keep, i32 0",
            "  %r = bitcast i32 %e to float",
            "  ret float %r",
            "}",
        ]
    )
    moves = []
    for i in range(STREAMS):
        moves += [
            f"  %p{i} = getelementptr {ints}, ptr %base, i64 {i}",
            f"  %v{i} = load {ints}, ptr %p{i}, align {4 * lanes}",
            f"  %q{i} = getelementptr {ints}, ptr %goal, i64 {i}",
            f"  store {ints} %v{i}, ptr %q{i}, align {4 * lanes}",
        ]
    copying = "\n".join(
        [
            "define float @copying(ptr %data, i64 %blocks, i64 %turns) {",
            "entry:",
            f"  %half = mul i64 %blocks, {STREAMS}",
            f"  %other = getelementptr {ints}, ptr %data, i64 %half",
            "  br label %outer",
            "outer:",
            "  %t = phi i64 [0, %entry], [%tn, %latch]",
            "  br label %inner",
            "inner:",
            "  %b = phi i64 [0, %outer], [%bn, %inner]",
            f"  %at = mul i64 %b, {STREAMS}",
            f"  %base = getelementptr {ints}, ptr %data, i64 %at",
            f"  %goal = getelementptr {ints}, ptr %other, i64 %at",
            *moves,
            "  %bn = add i64 %b, 1",
            "  %morebs = icmp slt i64 %bn, %blocks",
            "  br i1 %morebs, label %inner, label %latch",
            "latch:",
            "  %tn = add i64 %t, 1",
            "  %morets = icmp slt i64 %tn, %turns",
            "  br i1 %morets, label %outer, label %done",
            "done:",
            "  ret float 0.0",
            "}",
        ]
    )
    fma = f"declare {floats} @llvm.fma.v{lanes}f32({floats}, {floats}, {floats})"
    return "\n\n".join((fma, arithmetic, reading, copying)) + "\n"


def _splat(lanes: int, chain: int) -> str:
    value = f"float {chain + 1}.0"
    return f"<{', '.join([value] * lanes)}>"


def main(arguments: list[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--cores", default=",".join(map(str, sorted(os.sched_getaffinity(0)))), metavar="N,N")
    options = parser.parse_args(arguments)
    cores = [int(part) for part in options.cores.split(",")]
    for limit in measure(cores, sorted({1, len(cores)})):
        print(line(limit))


if __name__ == "__main__":
    main()
