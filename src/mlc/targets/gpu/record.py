"""What schedules must know of a machine that runs grids of threads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """Limits and speeds of a device.

    Args:
        name: of the device, as users give it.
        units: that run blocks side by side.
        warp: threads that take one instruction together.
        max_threads: of a block.
        shared_bytes: that a block may allocate; 0 where blocks should share nothing (it would lie in global memory).
        registers: of 32 bits that a thread may use before they are spilled.
        threads: that one unit holds at a time.
        vector_bytes: of the widest load of a thread.
        gflops: 10^9 operations a second, all units together, single precision,
        gbytes: 10^9 bytes a second from global memory, and
        launch_us: microseconds that a launch takes at least.
        double: whether there is double precision.
        shuffles: whether the threads of a warp can exchange what they have in registers.
        vectors: whether threads compute with vectors of ``vector_bytes``, so that channels should lie in blocks, and
        full_registers: of 32 bits, with which a unit holds all ``threads``; of twice as many, it holds half of them.
        unit_shared: bytes of shared memory that a unit has for all of its blocks; twice what one may have unless given.
        register_file: registers of 32 bits that a unit has for all of its threads.
        ahead: whether blocks may fetch ahead of what they read, in buffers that are filled in turns.
        asynchronous: whether threads copy from global to shared memory while they do other things.
        tensor: names of the products of small matrices that a warp makes as one
            (:data:`mlc.targets.gpu.tensor_cores.MMAS`), and
        tensor_gflops: 10^9 operations a second by these, in half precision, and
        tensor_gops: on bytes.
    """

    name: str
    units: int
    warp: int
    max_threads: int
    shared_bytes: int
    registers: int
    threads: int
    vector_bytes: int
    gflops: float
    gbytes: float
    launch_us: float
    double: bool
    shuffles: bool = False
    asynchronous: bool = False
    ahead: bool = True
    vectors: bool = False
    full_registers: int = 0
    unit_shared: int = 0
    register_file: int = 65536
    tensor: tuple[str, ...] = ()
    tensor_gflops: float = 0.0
    tensor_gops: float = 0.0

    @property
    def shared_of_unit(self) -> int:
        """Bytes of shared memory for all blocks that a unit runs at a time."""
        return self.unit_shared or 2 * self.shared_bytes

    def occupancy(self, threads: int, shared: int) -> float:
        """The share of a unit's threads that blocks fill at most, 0 to 1, as many registers as these may take.

        Args:
            threads: of a block.
            shared: bytes of shared memory of a block.
        """
        together = self.threads // threads
        if shared and self.shared_of_unit:
            together = min(together, self.shared_of_unit // shared)
        return together * threads / self.threads

    def tensor_peak(self, operand: str) -> float:
        """10^9 operations a second by products of small matrices whose left operand is of a type of the IR."""
        if operand in ("i8", "u8"):
            return self.tensor_gops
        return self.tensor_gflops / 2 if operand == "f32" else self.tensor_gflops  # rounded to tf32, in words as wide
