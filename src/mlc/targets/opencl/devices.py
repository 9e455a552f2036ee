"""Devices with OpenCL drivers, and what schedules know of them."""

from __future__ import annotations

from mlc.targets.gpu.record import Gpu

# `generic` has what the OpenCL 1.2 full profile promises and little more: its code runs nearly everywhere, as that of
# `pocl`, a processor that runs threads one after the other, does. Mali-T860 (Arm's optimisation guide for Midgard): 4
# cores of 2 pipes of 4 lanes at 650 MHz, shared memory in global memory, 4 vectors of registers a thread at full rate.
# Neither fetches ahead: PoCL 3.1 gives wrong sums where a loop has one barrier, stores to shared memory behind it, and
# reads what was stored an iteration before (docs/gpu.md); `generic` finds PoCL, too, where there is nothing else.
DEVICES = {
    gpu.name: gpu
    for gpu in (
        Gpu("generic", 8, 32, 256, 32 << 10, 64, 1024, 16, 1000.0, 50.0, 10.0, double=False, ahead=False),
        Gpu("pocl", 2, 8, 256, 64 << 10, 64, 256, 32, 50.0, 10.0, 20.0, double=True, ahead=False),
        Gpu("mali", 4, 4, 256, 0, 64, 256, 16, 41.6, 10.0, 50.0, double=False, vectors=True, full_registers=16),
    )
}
