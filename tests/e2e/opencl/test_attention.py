"""Attention in one launch, on PoCL: any number of queries and keys."""

from __future__ import annotations

from mlc.ops.algorithms import Algorithm
from mlc.targets.cuda.arch import DEVICES as GPUS
from mlc.targets.gpu.kernel import kernel
from mlc.targets.gpu.schedules.attention import Block, Heads, attention_algorithms, blocks_of
from mlc.targets.opencl.devices import DEVICES
from mlc.targets.opencl.driver import OpenClDevice
from tests.opencl import run_all
from tests.unit.targets.gpu.groups import Case, assert_close, attention

SIZES = ((1, 1, False), (1, 33, True), (7, 7, True), (33, 128, False), (128, 33, True))  # rows, keys, mask


def test_any_length(quick_pocl: OpenClDevice) -> None:
    """All in one program: PoCL takes most of a second for each, however small."""
    made = [
        Case.made("k", lambda b, r=rows, k=keys, m=mask: attention(b, 2, r, k, 12, 10, mask=m))
        for rows, keys, mask in SIZES
    ]
    feeds = [case.feeds() for case in made]
    kernels = [kernel(case.node, f"k{n}", DEVICES["pocl"]) for n, case in enumerate(made)]
    found = run_all(quick_pocl, [(fn, case.arrays(f)) for fn, case, f in zip(kernels, made, feeds, strict=True)])
    for got, case, f, size in zip(found, made, feeds, SIZES, strict=True):
        assert_close(got, case.expected(f), str(size))


def test_it_is_chosen_where_scores_fit() -> None:
    """A head of BERT: a sentence of 128 words; of 16,384 the scores of a row are more than there is shared memory."""
    short, long = (attention_algorithms((12, n, 64), (12, n, 64), GPUS["h200"]) for n in (128, 1 << 14))
    assert short == (Algorithm.FUSED, Algorithm.APART)
    assert long == (Algorithm.APART,)
    assert attention_algorithms((12, 128, 64), (12, 128, 64), DEVICES["mali"]) == (Algorithm.APART,)


def test_blocks_fit_the_device() -> None:
    heads, gpu = Heads(12, 128, 128, 64, 64), GPUS["h200"]
    assert all(b.shared_bytes(heads) <= gpu.shared_bytes for b in blocks_of(heads, gpu))
    assert "3 rows are no multiple of 2" in Block(3, 2, 32, 1, 4).refusal(heads, gpu)
    assert "2048 threads of a block" in Block(32, 32, 64, 1, 4).refusal(heads, gpu)
    assert "bytes of shared memory, there are 49152" in Block(64, 8, 32, 4, 32).refusal(heads, gpu)
    assert "registers of a thread, there are 255" in Block(32, 1, 8, 1, 4).refusal(Heads(1, 32, 32, 64, 64), gpu)
