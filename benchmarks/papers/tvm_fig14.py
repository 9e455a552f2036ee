"""Figure 14 of the TVM paper: networks on a GPU, end to end, at batch 1.

    python -m benchmarks.papers.tvm_fig14                                            # this machine's NVIDIA GPU
    python -m benchmarks.papers.tvm_fig14 --target "opencl -device=pocl" --small     # a rehearsal on a processor

Chen et al., "TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 6.1. As in the
figure, this compiler is also measured without graph optimisation: without the passes algebra, gates and fuse.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers import devices

FIGURE = devices.Figure(
    "tvm_fig14",
    "Figure 14 of the TVM paper: networks on a GPU",
    ("resnet18", "mobilenet_v1", "lstm_lm", "dqn", "dcgan"),
    "The paper has 1.6 to 3.8 times the speed of MXNet and TensorFlow on an NVIDIA Titan X; here it is PyTorch.",
    variants={devices.PLAIN: devices.LEFT_OUT},
)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line; ``arguments`` default to those of the process."""
    devices.main(FIGURE, arguments, __doc__)


if __name__ == "__main__":
    main()
