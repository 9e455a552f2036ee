"""Figure 15 of the TVM paper: ResNet-18's convolutions and MobileNet's depthwise ones on a GPU, at batch 1.

    python -m benchmarks.papers.tvm_fig15                                            # this machine's NVIDIA GPU
    python -m benchmarks.papers.tvm_fig15 --target "opencl -device=pocl" --small     # a rehearsal on a processor

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.1 and Table 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers import devices

FIGURE = devices.Figure(
    "tvm_fig15",
    "Figure 15 of the TVM paper: convolutions on a GPU",
    (*(f"C{k}" for k in range(1, 13)), *(f"D{k}" for k in range(1, 10))),
    "The paper compares with cuDNN, TensorComprehensions and MXNet's kernels on an NVIDIA Titan X; here it is PyTorch.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    devices.main(FIGURE, arguments, __doc__)


if __name__ == "__main__":
    main()
