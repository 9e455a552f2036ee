"""How fast the accelerator's simulators are: GMAC/s of the functional one, instructions/s of the timing one.

    python -m benchmarks.vdla_sim

The streams are convolutions of ResNet-18 with two slots in every memory, written down directly: what is measured is the
simulators, not the compiler.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mlc.vdla.config import PROFILES, VdlaConfig
from mlc.vdla.isa import Finish, Gemm, GemmMode, Instruction, Load, Mem, Store, pack_uop
from mlc.vdla.program import BufferSpec, Program
from mlc.vdla.sim import Device

# Spent on each figure.
SECONDS = 1.0


@dataclass(frozen=True)
class Convolution:
    """A square convolution with "same" padding, cut into tiles of whole rows.

    Attributes:
        size: rows and columns of the input.
        inputs, outputs: channels.
        kernel, stride: of the window.
        rows: output rows of a tile.
        blocks: blocks of 16 output channels of a tile.
    """

    name: str
    size: int
    inputs: int
    outputs: int
    kernel: int
    stride: int
    rows: int
    blocks: int

    @property
    def pad(self) -> int:
        """Zeros around the input."""
        return self.kernel // 2

    @property
    def out(self) -> int:
        """Rows and columns of the output."""
        return -(-self.size // self.stride)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.out**2 * self.kernel**2 * self.inputs * self.outputs

    @property
    def task(self) -> dict[str, int]:
        """What a program's META says of it: products, and bytes of input, weights and output."""
        weights = self.kernel**2 * self.inputs * self.outputs
        nbytes = self.inputs * self.size**2 + weights + self.outputs * self.out**2
        return {"macs": self.macs, "bytes": nbytes}


# Names as in the table of ResNet-18's convolutions in the TVM paper (OSDI 2018).
LAYERS = (
    Convolution("C2", 56, 64, 64, 3, 1, 4, 4),
    Convolution("C6", 28, 128, 128, 3, 1, 7, 4),
    Convolution("C9", 14, 256, 256, 3, 1, 14, 4),
    Convolution("C12", 7, 512, 512, 3, 1, 7, 4),
)


def stream(layer: Convolution, config: VdlaConfig, shift: int = 7) -> Program:
    """The program of a convolution, one chunk of 16 input channels after the other, two slots everywhere.

    Buffers: ``x`` int8[inputs/16, size, size, 16], ``w`` int8[outputs/16, inputs/16, kernel, kernel, 16, 16], ``y``
    int8[outputs/16, out, out, 16]. The record needs ``ext_store_requant`` and ``ext_gemm_set``.
    """
    k, width, wide = layer.kernel, layer.out, layer.size + 2 * layer.pad
    chunks = layer.inputs // 16
    half_inp, half_wgt, half_acc = config.inp_depth // 2, config.wgt_depth // 2, config.acc_depth // 2
    uops = []
    for slot in range(4):  # input and weight slot, then accumulator slot
        # Rows lie in the micro-ops: where sums start anew, the outer loop is one of the sum.
        tap, co, row = np.indices((k * k, layer.blocks, layer.rows))
        dst = (slot // 2) * half_acc + (co * layer.rows + row) * width
        src = (slot % 2) * half_inp + (row * layer.stride + tap // k) * wide + tap % k
        wgt = (slot % 2) * half_wgt + co * k * k + tap
        uops.append(pack_uop(dst, src, wgt, tap == 0, config).reshape(-1))
    each = len(uops[0])
    assert layer.out % layer.rows == 0, "micro-ops are for whole tiles"
    out: list[Instruction] = [Load(Mem.UOP, 0, 0, 1, 4 * each, 4 * each)]
    relocations = {0: 3}
    tile = chunk = 0
    tiles = -(-layer.out // layer.rows) * (layer.outputs // 16 // layer.blocks)
    total = tiles * chunks
    for co in range(0, layer.outputs // 16, layer.blocks):
        for row in range(0, layer.out, layer.rows):
            for ci in range(chunks):
                side = chunk % 2
                top = row * layer.stride - layer.pad
                bottom = top + (layer.rows - 1) * layer.stride + k
                first, last = max(top, 0), min(bottom, layer.size)
                base = (ci * layer.size + first) * layer.size
                pads = (first - top, bottom - last, layer.pad, layer.pad)
                inp = Load(Mem.INP, side * half_inp, base, last - first, layer.size, layer.size, *pads)
                inp.pop_next = chunk >= 2
                base = (co * chunks + ci) * k * k
                wgt = Load(Mem.WGT, side * half_wgt, base, layer.blocks, k * k, chunks * k * k, push_next=True)
                begin = (2 * (tile % 2) + side) * each
                mode = GemmMode.SET if ci == 0 else GemmMode.ACC
                gemm = Gemm(mode, begin, begin + each, 1, width, 0, 1, 0, layer.stride, 0, 0, pop_prev=True)
                gemm.push_prev = chunk + 2 < total
                gemm.pop_next = ci == 0 and tile >= 2
                gemm.push_next = ci == chunks - 1
                relocations |= {len(out): 0, len(out) + 1: 1}
                out += [inp, wgt, gemm]
                chunk += 1
            for block in range(layer.blocks):
                sram = (tile % 2) * half_acc + block * layer.rows * width
                size = layer.rows * width
                store = Store(Mem.OUT, sram, ((co + block) * width + row) * width, 1, size, size, shift)
                store.pop_prev = block == 0
                store.push_prev = block == layer.blocks - 1 and (tile + 2 < tiles or tile + 1 == tiles)
                relocations[len(out)] = 2
                out.append(store)
            tile += 1
    return Program(
        config,
        [*out, Finish(pop_next=True)],
        np.concatenate(uops),
        buffers=[
            BufferSpec("x", "in", layer.inputs * layer.size**2),
            BufferSpec("w", "in", layer.inputs * layer.outputs * k * k),
            BufferSpec("y", "out", layer.outputs * width**2),
            BufferSpec("uops", "uop", 16 * each),
        ],
        relocations=relocations,
        meta={"layers": [{"name": layer.name, "first": 0, "last": len(out), **layer.task}]},
    )


def measure(config: VdlaConfig, seconds: float) -> dict[str, dict[str, float]]:
    """GMAC/s and instructions/s of every layer, the best of as many runs as fit into so many seconds.

    Plans are made in the first run; it counts for neither.
    """
    return {layer.name: _measure(layer, config, seconds) for layer in LAYERS}


def _measure(layer: Convolution, config: VdlaConfig, seconds: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    program = stream(layer, config)
    device = Device(config)
    for spec in program.buffers:
        if spec.kind != "uop":
            device.bind(spec.name, rng.integers(-128, 128, spec.nbytes, np.int8))
    # The same layer in the smallest tiles: many short instructions.
    small = stream(dataclasses.replace(layer, rows=1, blocks=1), config)
    return {
        "gmacs": layer.macs / best(lambda: device.run(program, timing=False), seconds) / 1e9,
        "instructions": len(small.instructions) / best(lambda: device.run(small, exec=False), seconds),
    }


def best(work: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest of several runs, one at least, after one that does not count."""
    work()
    times = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Prints a line a layer."""
    print(f"{'layer':9} {'GMAC/s':>8} {'1000 instructions/s':>20}")
    for name, row in measure(PROFILES["full"], SECONDS).items():
        print(f"{name:9} {row['gmacs']:8.2f} {row['instructions'] / 1e3:20.1f}")


if __name__ == "__main__":
    main()
