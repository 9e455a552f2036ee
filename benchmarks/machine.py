"""A description of the machine, so that a figure can be read a year later."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

# The instruction sets that decide how fast dense kernels can be, newest first.
TELLING_FLAGS = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx_vnni", "avx2", "fma", "avx", "sse4_2")
TELLING_PACKAGES = ("llvmlite", "numpy", "onnx")


def describe() -> dict[str, str]:
    """Processor, cores, instruction sets, memory, system and package versions, each as one line of text."""
    cpu = _cpuinfo()
    flags = cpu.get("flags", "").split()
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "flags": " ".join(flag for flag in TELLING_FLAGS if flag in flags),
        "caches": ", ".join(f"{name} {size >> 10} KiB" for name, size in cache_sizes().items()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version}" for name in TELLING_PACKAGES if (version := _version(name))),
        "load": f"{os.getloadavg()[0]:.2f} (one minute, at the start)",
    }


def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of ``/proc/cpuinfo``; empty where there is none."""
    file = Path("/proc/cpuinfo")
    if not file.exists():
        return {}
    first, _, _ = file.read_text().partition("\n\n")
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cache_sizes() -> dict[str, int]:
    """Bytes of the data and unified caches of the first core by name, such as ``L2``."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind, level, size = ((folder / name).read_text().strip() for name in ("type", "level", "size"))
        if kind != "Instruction":
            found[f"L{level}"] = int(size.rstrip("KM")) << (20 if size.endswith("M") else 10)
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
