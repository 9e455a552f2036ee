"""The graph passes of a compilation, up to groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mlc.ir.graph import Graph, Node
from mlc.ir.types import u8
from mlc.ops.algorithms import Algorithm
from mlc.pipeline.configurations import Configurations
from mlc.rewrite.algebra import simplify_algebra
from mlc.rewrite.attention import use_attention
from mlc.rewrite.bits import of_few_bits, use_bits
from mlc.rewrite.bytes import use_bytes
from mlc.rewrite.dense import use_dense
from mlc.rewrite.fuse import fuse
from mlc.rewrite.half import sum_in_half, use_half, use_half_in_rounds
from mlc.rewrite.integers import use_integers
from mlc.rewrite.offload import Decision, offload, offload_groups
from mlc.rewrite.pipeline import MAX_LEVEL, PASSES, GraphPass, passes_for, run_passes
from mlc.rewrite.recurrence import map_bodies, settle_bodies
from mlc.rewrite.shuffles import shuffle_blocks
from mlc.rewrite.slices import use_slices
from mlc.rewrite.weights import store_weights, use_bf16
from mlc.rewrite.winograd import use_winograd
from mlc.rewrite.words import use_words
from mlc.settings import CompileOptions, Observer
from mlc.targets.base import Target, Whole

# every machine has its own for its part of the graph, so it runs after the division, in `mlc.pipeline.layouts`
LAYOUT = GraphPass("layout", lambda g: g, "lay tensors out as kernels want them, pack constants", MAX_LEVEL)

# decided by `fuse`, once it knows its groups
REPEAT = GraphPass("repeat", lambda g: g, "compute again for each reader what is not worth keeping", MAX_LEVEL)

WINOGRAD, ATTENTION, SHUFFLES, DENSE, OFFLOAD = "winograd", "attention", "shuffles", "dense", "offload"
SLICES = "slices"
BYTES, BITS, WORDS, WEIGHTS, BF16, FP16, SUMS = "bytes", "bits", "words", "weights", "bf16", "fp16", "sums"
WORTH_BITS = 1.1  # times as fast as bytes that products of bits have to be expected to be


def pass_names() -> list[str]:
    """The passes that may be left out, in their order; the last of them have a meaning for some targets only."""
    names = [p.name for p in PASSES if not p.required]
    return [*names, REPEAT.name, LAYOUT.name, WINOGRAD, ATTENTION, SHUFFLES, DENSE, SLICES, OFFLOAD, BYTES, BITS, WORDS]


def optimise(
    graph: Graph,
    target: Target,
    options: CompileOptions,
    watch: Observer,
    on_offload: Callable[[Sequence[Decision]], None] = lambda decisions: None,
    configurations: Configurations | None = None,
) -> Graph:
    """The graph passes of an optimisation level; the choice of algorithms asks the target, division its accelerator.

    Args:
        graph: the model, row-major.
        target: what to compile for.
        options: how.
        watch: is told of every pass.
        on_offload: is told where every operation runs, for a target with an accelerator.
        configurations: know by which algorithm an operator is to be computed; what they leave open, the target says.
    Returns:
        groups, opaque routines, and regions of groups, all row-major but for the borders of regions.
    Raises:
        UsageError: a pass to leave out does not exist, or is needed.
    """

    def settle(node: Node, known: Sequence[Algorithm]) -> Algorithm:
        chosen = configurations.algorithm(node, known) if configurations is not None and len(known) > 1 else None
        return chosen if chosen is not None and chosen in known else known[0]

    def choose(node: Node) -> Algorithm:
        return settle(node, target.algorithms(node))

    def takes_bits(node: Node, of_x: int, of_w: int) -> bool:
        gain = target.bits_gain(node, of_x, of_w)
        known = (Algorithm.BITS, Algorithm.DIRECT) if gain >= WORTH_BITS else (Algorithm.DIRECT, Algorithm.BITS)
        return gain > 0 and settle(of_few_bits(node, of_x, of_w), known) is Algorithm.BITS

    winograd = GraphPass(
        WINOGRAD,
        lambda g: use_winograd(g, choose),
        "3×3 convolutions with fewer multiplications, where the target is faster that way",
        MAX_LEVEL,
    )
    attention = GraphPass(
        ATTENTION,
        lambda g: use_attention(g, choose),
        "products around a softmax as one kernel, where the target is faster that way",
        MAX_LEVEL,
    )
    passes = list(passes_for(options.opt_level))
    before = next(k for k, p in enumerate(passes) if p.groups)
    kind = options.weights or ("bf16" if options.bf16 else "")  # of the products that are not in bf16
    if kind:
        text = "weights of products in a small type, widened as they are read"
        passes.insert(before, GraphPass(WEIGHTS, lambda g: store_weights(g, kind), text, 0, required=True))
    shuffles = GraphPass(
        SHUFFLES,
        lambda g: shuffle_blocks(g, target.channel_block()),
        "shuffles between grouped convolutions of integers as shuffles of blocks of channels",
        MAX_LEVEL,
    )
    dense = GraphPass(
        DENSE,
        lambda g: use_dense(g, choose),
        "grouped convolutions of integers with zeros between groups, where the target is faster that way",
        MAX_LEVEL,
    )
    if options.opt_level >= MAX_LEVEL:
        passes[before:before] = [winograd, attention]
    if options.bf16:  # before Winograd's algorithm, which is for floats
        text = "products in bf16, summed up in f32"
        least = 2 if options.weights else 1
        bf16 = GraphPass(BF16, lambda g: use_bf16(g, least, target.convolves_bf16), text, 0, required=True)
        passes.insert(before, bf16)
    if target.sums_in_half():
        text = "sums of products of f16 in f16"
        passes.insert(before, GraphPass(SUMS, sum_in_half, text, 0, required=True))
    if options.fp16:  # first, since what it leaves in f32 may have other algorithms
        text = "in f16 what loses little by it"
        passes.insert(before, GraphPass(FP16, lambda g: use_half(g, options.keep_f32), text, 0, required=True))
    if options.opt_level >= MAX_LEVEL and target.accelerator is None:  # which would multiply by the zeros
        # before the rules that take shuffles of channels into weights
        first = next(k for k, p in enumerate(passes) if p.fn is simplify_algebra)
        passes[first:first] = [shuffles, dense]
    exact = () if options.fast_math else (winograd.name, attention.name)
    disabled = {*options.disabled_passes, *exact}

    accelerator = target.accelerator
    whole = isinstance(accelerator, Whole)

    def divide(g: Graph) -> Graph:
        if accelerator is None:
            return g
        parts = (offload_groups if whole else offload)(g, accelerator)
        on_offload(parts.decisions)
        return parts.graph

    data = target.multiplied_bytes() if target.accelerator is None else u8
    # in the products of quantised numbers, and in others of integers
    passes = [replace(p, fn=lambda g: use_integers(g, data)) if p.fn is use_integers else p for p in passes]
    if accelerator is None and REPEAT.name not in disabled:  # whose peaks are others
        peaks = target.peaks()
        passes = [replace(p, fn=lambda g: fuse(g, peaks=peaks)) if p.fn is fuse else p for p in passes]
    bytes_ = GraphPass(
        BYTES,
        lambda g: use_bytes(g, data),
        "products of bytes by signed bytes, as processors and Tensor Cores multiply them",
        MAX_LEVEL,
    )
    bits = GraphPass(
        BITS,
        lambda g: use_bits(g, takes_bits),
        "products of one or two bits by logic and counts, where the target is faster that way",
        MAX_LEVEL,
    )
    text = "bytes widened to 16 bits before they are multiplied, but by small weights"
    # what the host is fast with matters where it multiplies
    types = () if whole else target.weight_types()
    words = GraphPass(WORDS, lambda g: use_words(g, choose, types), text, MAX_LEVEL)
    slices = GraphPass(
        SLICES,
        lambda g: use_slices(g, target.peaks()),
        "some images of a batch at a time through what keeps them apart, where caches hold what they leave",
        MAX_LEVEL,
    )
    division = GraphPass(OFFLOAD, divide, "divide the graph between the host and the accelerator", 0)

    def run(g: Graph, passes: Sequence[GraphPass]) -> Graph:
        # whether or not this level and this target have them
        known = (REPEAT, LAYOUT, winograd, attention, shuffles, dense, slices, bits, bytes_, words, division)
        return run_passes(g, passes, later=known, disabled=disabled, check=options.verify, on_pass=watch.passed)

    def optimise_bodies(g: Graph) -> Graph:
        return map_bodies(settle_bodies(g), lambda body: run(body, inside))

    text = "all passes for the bodies of recurrences, with the constants that they capture"
    passes.insert(before, GraphPass("bodies", optimise_bodies, text, 0, required=True))
    wanted = accelerator.bytes if isinstance(accelerator, Whole) else True
    narrow: list[GraphPass] = []
    if options.opt_level >= MAX_LEVEL and wanted:
        narrow = [
            *([bits] if accelerator is None else []),  # others would move data that have few bits
            bytes_,
            *([words] if types else []),
        ]
    # a driver of a device cannot be called in the middle of a step of the host
    inside = (*passes[:before], *narrow, *passes[before:])
    inside = tuple(
        replace(p, fn=lambda g: use_half_in_rounds(g, options.keep_f32)) if p.name == FP16 else p for p in inside
    )
    if options.opt_level >= MAX_LEVEL and accelerator is None:
        passes.insert(before, slices)  # before bodies, which are what it makes
        before += 1
    passes[before:before] = narrow  # after the division: other accelerators may want bytes as they are
    if accelerator is not None:
        passes.insert(len(passes) if whole else before, division)
    return run(graph, passes)
