"""Times of small streams, worked out by hand from the specification's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.vdla.config import PROFILES, VdlaConfig, with_fields
from mlc.vdla.isa import Alu, AluOp, Finish, Gemm, GemmMode, Instruction, Load, Mem, Store, Unit, nop
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.timeline import REASONS, Timeline
from mlc.vdla.sim.timing import simulate
from mlc.vdla.sim.work import work_of
from tests.unit.vdla.sim.clocked import Clocked
from tests.unit.vdla.sim.machines import SMALL
from tests.unit.vdla.streams import random_program

# Whole numbers: 8 bytes a cycle, latency 48, issue 4, fill 12; elements: input 4 bytes, weight and accumulator 16.
WHOLE = with_fields(
    SMALL, {"dram_bytes_per_cycle": 8.0, "inp_bytes": 4096, "wgt_bytes": 4096, "acc_bytes": 4096, "dep_queue_depth": 4}
)


def run(stream: list[Instruction], config: VdlaConfig = WHOLE, **fields: Any) -> Timeline:
    config = with_fields(config, fields)
    return simulate(work_of(stream, config, Dram()), config, stream)


def weights(count: int, **flags: bool) -> Load:
    """LD: a load of so many weight elements, 2 cycles each."""
    return Load(Mem.WGT, 0, 0, 1, count, count, **flags)


def sums(count: int, **flags: bool) -> Load:
    """CMP: a load of so many accumulator elements, 2 cycles each."""
    return Load(Mem.ACC, 0, 0, 1, count, count, **flags)


def store(count: int, **flags: bool) -> Store:
    """ST: a store of so many accumulator elements, 2 cycles each."""
    return Store(Mem.ACC, 0, 0, 1, count, count, **flags)


def products(steps: int, **flags: bool) -> Gemm:
    """CMP: a GEMM of so many steps, each on an accumulator of its own."""
    return Gemm(GemmMode.ACC, 0, 1, 1, steps, 0, 1, 0, 0, 0, 0, **flags)


def test_a_load_takes_issue_latency_and_its_bytes() -> None:
    time = run([weights(100)])
    # Fetched at 2, issued at 6, first byte at 54, then 1600 bytes at 8 a cycle.
    assert (time.begin[0], time.data[0], time.end[0]) == (2, 54, 254)
    assert (time.latency[0], time.moving[0], time.cycles) == (52, 200, 254)


def test_a_store_has_no_latency_before_its_data_and_one_after() -> None:
    time = run([store(10)])
    assert (time.begin[0], time.data[0], time.end[0]) == (2, 6, 6 + 20 + 48)


def test_bandwidth_is_the_narrower_of_port_and_memory() -> None:
    assert run([weights(63)], dram_bytes_per_cycle=7.875).end[0] == 54 + 63 * 16 / 7.875
    assert run([weights(64)], port_bytes_per_cycle=4.0).end[0] == 54 + 64 * 16 / 4


def test_bandwidths_of_many_digits_are_exact() -> None:
    # Ticks beyond 64 bits, and still as late as they should be.
    time = run([weights(10_000), weights(10_000)], dram_bytes_per_cycle=7.123456789012345)
    assert time.end[1] == pytest.approx(54 + 2 * 160_000 / 7.123456789012345, rel=1e-15)


def test_a_transfer_takes_a_cycle_for_every_element_on_chip() -> None:
    # 4 bytes an element: half a cycle on the port, a whole one in the memory.
    assert run([Load(Mem.INP, 0, 0, 1, 100, 100)]).end[0] == 54 + 100
    padded = Load(Mem.INP, 0, 0, 2, 10, 10, 1, 1, 3, 2)
    assert run([padded]).end[0] == 54 + 4 * 15


def test_padding_alone_needs_no_memory() -> None:
    time = run([Load(Mem.INP, 0, 0, 0, 8, 8, 1, 1, 0, 0)])
    assert (time.data[0], time.end[0], time.moving[0]) == (6, 22, 0)


def test_gaps_between_bursts_hold_the_port() -> None:
    together = Load(Mem.WGT, 0, 0, 2, 8, 8)
    apart = Load(Mem.WGT, 0, 0, 2, 9, 10)
    # 256 bytes in one run are 2 bursts of 128; two rows of 144 bytes are 2 bursts each.
    assert run([together], burst_gap=3).end[0] == 54 + 32 + 2 * 3
    assert run([apart], burst_gap=3).end[0] == 54 + 36 + 4 * 3


def test_computations_take_a_cycle_a_step_and_their_fill() -> None:
    gemm = products(20)
    immediate = Alu(AluOp.ADD, True, 1, 0, 1, 2, 10, 10, 1, 0, 0)
    vector = Alu(AluOp.ADD, False, 0, 0, 1, 2, 10, 10, 1, 0, 0)
    zero = Gemm(GemmMode.ZERO, 0, 2, 1, 20, 0, 0, 0, 0, 0, 0)
    ends = [run([x]).end[0] - 2 for x in (gemm, immediate, vector, zero, nop(Unit.CMP), Finish())]
    assert ends == [1 + 20 + 12, 20 + 12, 40 + 12, 1 + 40 + 12, 1, 1]


def test_a_second_transfer_hides_its_latency_behind_the_first() -> None:
    two = [weights(100), weights(100)]
    alone = run(two, dma_outstanding=1)
    assert (alone.begin[1], alone.data[1], alone.end[1]) == (254, 306, 506)
    overlapped = run(two)
    # Announced when the first one's data begins; its own data follow those without a gap.
    assert (overlapped.begin[1], overlapped.data[1], overlapped.end[1]) == (54, 254, 454)
    short = run([weights(10), weights(10)])
    # 20 cycles of data cannot hide 52 of issue and latency.
    assert (short.begin[1], short.data[1]) == (54, 106)
    assert short.latency[1] == 106 - 74


def test_only_transfers_overlap() -> None:
    time = run([sums(10), products(5), sums(10)])
    assert (time.end[0], time.begin[1], time.end[1]) == (4 + 48 + 2 + 20, 74, 92)
    assert (time.begin[2], time.data[2]) == (92, 92 + 52)
    # A NOP waits for everything before it too: the token that it gives means that.
    assert run([weights(10), nop(Unit.LD)]).begin[1] == 74


def test_a_token_is_there_when_its_giver_has_ended() -> None:
    time = run([weights(10, push_next=True), products(5, pop_prev=True)])
    assert (time.begin[1], time.end[1]) == (74, 92)
    assert (time.idle[1], REASONS[time.reason[1]]) == (74, "ld->cmp")
    assert time.tokens == {"ld->cmp": 1, "cmp->ld": 0, "cmp->st": 0, "st->cmp": 0}


def test_waiting_between_overlapping_transfers_is_counted_too() -> None:
    gate = products(200, push_prev=True)
    time = run([weights(10), weights(10, pop_next=True), gate])
    assert time.begin[1] == time.end[2] == 6 + 213
    assert (time.idle[1], REASONS[time.reason[1]]) == (219 - time.end[0], "cmp->ld")
    assert time.data[1] == 219 + 52


def test_of_two_awaited_tokens_the_later_one_is_the_reason() -> None:
    stream = [weights(10, push_next=True), store(50, push_prev=True), products(5, pop_prev=True, pop_next=True)]
    time = run(stream)
    assert (time.begin[2], REASONS[time.reason[2]]) == (time.end[1], "st->cmp")


def test_units_share_the_memory_in_chunks_first_come_first_served() -> None:
    time = run([weights(256), sums(64)])
    # LD has the port from 54 in chunks of 128 cycles; CMP, asking at 56, gets it after the first.
    assert (time.data[0], time.data[1]) == (54, 182)
    assert (time.end[1], time.end[0]) == (310, 54 + 5 * 128)
    assert (time.port[0], time.port[1]) == (128, 126)


def test_simultaneous_requests_are_served_in_the_order_of_the_units() -> None:
    gate = products(20, push_prev=True, push_next=True)
    time = run([store(4, pop_prev=True), gate, weights(4, pop_next=True)], dram_latency=0)
    assert time.begin[0] == time.begin[2] == time.end[1]
    assert (time.data[2], time.data[0]) == (time.end[1] + 4, time.end[1] + 4 + 8)


def test_fetching_takes_two_cycles_and_stops_at_a_full_command_queue() -> None:
    assert run([nop(Unit.LD), nop(Unit.ST), nop(Unit.CMP)]).begin.tolist() == [2, 4, 6]
    time = run([products(100), products(1), products(1), products(1), nop(Unit.LD)], cmd_queue_depth=2)
    # Two wait in the queue and the fetch unit holds the third until the first of them leaves, at 2 + 113.
    assert time.begin[1] == 115
    assert time.begin[4] == 117
    assert REASONS[time.reason[4]] == "fetch"


def test_a_full_token_queue_blocks_its_pusher() -> None:
    stream: list[Instruction] = [products(200), *(nop(Unit.LD) for _ in range(6))]
    for x in stream[1:]:
        x.push_next = True
    stream += [nop(Unit.CMP) for _ in range(6)]
    for x in stream[7:]:
        x.pop_prev = True
    time = run(stream)
    # Four tokens fit; the fifth is given when the first is taken, after the GEMM.
    taken = time.begin[7]
    assert taken == 2 + 213
    assert time.end[5] + time.full[5] == taken
    assert time.begin[6] == taken
    assert time.cycles == time.end[-1]


def test_a_blocked_token_of_an_overlapped_transfer_comes_in_order() -> None:
    loads = [weights(10, push_next=True) for _ in range(6)]
    takes = [nop(Unit.CMP) for _ in range(6)]
    for x in takes:
        x.pop_prev = True
    time = run([products(1000), *loads, *takes])
    assert time.tokens["ld->cmp"] == 6
    assert time.begin[7] == 1015
    assert time.full[5] == 1015 - time.end[5]
    assert np.all(np.diff(time.begin[7:]) > 0)


def test_a_deadlock_names_every_unit_and_what_it_waits_for() -> None:
    stream = [weights(4, pop_next=True, push_next=True), products(4, pop_prev=True, push_prev=True), store(4)]
    with pytest.raises(DeviceError) as caught:
        run(stream)
    message = caught.value.message
    assert message.startswith("deadlock: ")
    assert "LD: instruction 0 (LOAD WGT) waits for cmp->ld" in message
    assert "CMP: instruction 1 (GEMM ACC) waits for ld->cmp" in message
    assert "ST: all done" in message
    assert "ld->cmp 0 pushed 0 popped" in message


def test_a_deadlock_by_a_full_queue_says_so() -> None:
    stream = [nop(Unit.LD) for _ in range(6)]
    for x in stream:
        x.push_next = True
    with pytest.raises(DeviceError, match=r"LD: instruction 4 \(NOP\) cannot push: ld->cmp is full"):
        run(stream)


def test_a_deadlock_by_a_full_command_queue_says_so() -> None:
    stream = [products(1, pop_prev=True) for _ in range(4)] + [nop(Unit.LD)]
    with pytest.raises(DeviceError, match=r"LD: instruction 4 \(NOP\) is not fetched"):
        run(stream, cmd_queue_depth=2)


@pytest.mark.parametrize(
    "instruction, message",
    [
        (weights(1, pop_prev=True), "LD has no previous unit"),
        (store(1, push_next=True), "ST has no next unit"),
        (Load(Mem.UOP, 60, 0, 1, 8, 8), "elements 60 to 67 lie outside the 64 of the uop memory"),
        (Gemm(GemmMode.ACC, 60, 70, 1, 1, 0, 0, 0, 0, 0, 0), "elements 60 to 69 lie outside the 64 of the uop memory"),
    ],
)
def test_what_cannot_be_timed_is_refused(instruction: Instruction, message: str) -> None:
    with pytest.raises(DeviceError, match=rf"instruction 1 \(.*\): {message}"):
        run([nop(Unit.LD), instruction])


def test_the_first_fault_of_a_stream_is_named() -> None:
    faults = [
        weights(1, pop_prev=True),
        Load(Mem.UOP, 60, 0, 1, 8, 8, push_prev=True),
        store(1, push_next=True),
        Gemm(GemmMode.ACC, 60, 70, 1, 1, 0, 0, 0, 0, 0, 0),
    ]
    for stream in (faults, faults[1:], faults[2:], faults[3:], faults[::-1]):
        with pytest.raises(DeviceError) as alone:
            run(stream[:1])
        with pytest.raises(DeviceError) as caught:
            run(stream)
        assert caught.value.message == alone.value.message


def test_an_empty_stream_takes_no_time() -> None:
    assert run([]).cycles == 0


def compare_with_clocked(seed: int) -> None:
    rng = np.random.default_rng(seed)
    config = with_fields(
        PROFILES["full"],
        {
            "dram_bytes_per_cycle": 4.0,
            "dram_latency": int(rng.choice([0, 7, 48])),
            "dma_issue": int(rng.choice([0, 1, 4])),
            "dma_outstanding": int(rng.integers(1, 3)),
            "arb_bytes": int(rng.choice([16, 64, 1024])),
            "cmd_queue_depth": int(rng.choice([1, 2, 5, 64])),
            "dep_queue_depth": int(rng.choice([1, 2, 256])),
        },
    )
    program = random_program(rng, config, 40)
    dram = Dram()
    places = [dram.alloc(spec.nbytes) for spec in program.buffers]
    dram.write(places[2], program.uops)
    stream = program.bound(places)
    work = work_of(stream, config, dram)
    clocked = Clocked(stream, work, config)
    clocked.run()
    if -1 in clocked.end:
        with pytest.raises(DeviceError, match="deadlock"):
            simulate(work, config, stream)
        return
    time = simulate(work, config, stream)
    for name in ("begin", "data", "end"):
        np.testing.assert_array_equal(getattr(time, name), getattr(clocked, name), err_msg=name)


@pytest.mark.parametrize("seed", range(50))
def test_times_are_those_of_a_machine_stepped_cycle_by_cycle(seed: int) -> None:
    compare_with_clocked(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_times_of_a_thousand_streams_are_those_of_a_machine_stepped_cycle_by_cycle(block: int) -> None:
    for seed in range(50 * block, 50 * block + 50):
        compare_with_clocked(5000 + seed)
