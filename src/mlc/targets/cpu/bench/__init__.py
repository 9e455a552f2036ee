"""What a processor's candidates are run on: native code around them, buffers with red zones."""

from mlc.targets.cpu.bench.kernel import CpuBench

__all__ = ["CpuBench"]
