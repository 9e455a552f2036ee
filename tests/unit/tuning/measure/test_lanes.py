"""Workers under a zygote, and conversations with them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mlc.errors import DeviceError
from mlc.records.measurement import Failure
from mlc.tuning.measure import zygote as zygote_module
from mlc.tuning.measure.frames import Channel
from mlc.tuning.measure.lanes import Conversation, Lane, Lanes, LostError, Request
from mlc.tuning.measure.zygote import Shared, Zygote

HERE = tuple(os.sched_getaffinity(0))


def open_files() -> Iterator[str]:
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            yield os.readlink(f"/proc/self/fd/{number}")


def echo(channel: Channel, shared: Shared, args: dict[str, Any]) -> None:
    """Answers with what it was sent, or does something foolish."""
    while True:
        header, body = channel.receive()
        match header.get("do"):
            case "write":
                shared["page"][:2] = b"ok"
            case "read":
                body = shared["page"][:2]
            case "exit":
                os.write(2, b"farewell\n")
                raise SystemExit(5)
            case "raise":
                raise ValueError("oh")
            case "stale":
                header["id"] -= 1
            case "hold":
                time.sleep(600)
            case "dally":
                time.sleep(0.5)
            case "files":
                body = ",".join(open_files()).encode()
        channel.send({**header, **args, "cores": sorted(os.sched_getaffinity(0))}, body)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote({"echo": echo})
    yield made
    made.close()


@pytest.fixture
def lanes(zygote: Zygote) -> Iterator[Lanes]:
    made = Lanes(zygote, 1 << 30)
    yield made
    made.close()


def lane(core: int = HERE[0]) -> Lane:
    return Lane("echo", (core,), Failure.RUN_CRASH, timed=False)


class Heard:
    """Asks a list of questions; keeps the answers, or how the worker was lost."""

    def __init__(self, *questions: dict[str, Any], timeout: float = 20.0) -> None:
        self.questions, self.timeout = questions, timeout
        self.answers: list[Any] = []
        self.lost: LostError | None = None
        self.over = False

    def talk(self) -> Conversation:
        try:
            for question in self.questions:
                self.answers.append((yield Request(question, b"?", self.timeout, Failure.RUN_TIMEOUT)))
        except LostError as error:
            self.lost = error
        self.over = True


def run(lanes: Lanes, *pairs: tuple[Lane, Heard]) -> None:
    for place, heard in pairs:
        lanes.begin(place, heard.talk(), {"name": "x"})
    while not all(heard.over for _, heard in pairs):
        lanes.wait()


def test_conversations_go_on_side_by_side(lanes: Lanes) -> None:
    pairs = [(lane(core), Heard({"n": 1}, {"n": 2})) for core in HERE[:2]]
    run(lanes, *pairs)
    for place, heard in pairs:
        assert [a.header["n"] for a in heard.answers] == [1, 2]
        assert all(a.body == b"?" and a.header["name"] == "x" for a in heard.answers)
        assert heard.answers[0].header["cores"] == list(place.cores)


def test_a_worker_is_kept_until_it_is_lost(lanes: Lanes) -> None:
    place = lane()
    run(lanes, (place, Heard({})))
    first = place.worker
    run(lanes, (place, Heard({})))
    assert place.worker is first
    run(lanes, (place, lost := Heard({"do": "exit"})))
    assert lost.lost is not None
    assert (lost.lost.failure, lost.lost.message) == (
        Failure.RUN_CRASH,
        "the kernel ended its process with code 5: farewell",
    )
    run(lanes, (place, after := Heard({})))
    assert after.answers
    assert place.worker is not first


@pytest.mark.parametrize(
    "what, failure, words",
    [
        ("raise", Failure.RUN_CRASH, "code 70: ValueError: oh"),
        ("stale", Failure.BAD_REPLY, "an answer to nothing that was asked"),
        ("hold", Failure.RUN_TIMEOUT, "no answer after 0.3 s"),
    ],
)
def test_a_lost_worker_says_how(lanes: Lanes, what: str, failure: Failure, words: str) -> None:
    heard = Heard({"do": what}, timeout=0.3 if what == "hold" else 20.0)
    run(lanes, (lane(), heard))
    assert heard.lost is not None
    assert heard.lost.failure is failure
    assert words in heard.lost.message


def test_who_was_stopped_blames_nobody(lanes: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    select = lanes._selector.select
    calls = 0

    def stopped(timeout: float) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            return select(timeout)
        time.sleep(timeout + 1.3)
        return []

    monkeypatch.setattr(lanes._selector, "select", stopped)
    heard = Heard({"do": "dally"}, timeout=0.2)
    run(lanes, (lane(), heard))
    assert heard.lost is None
    assert heard.answers


@pytest.mark.timeout(60)
def test_a_worker_is_ended_before_it_leads_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    setsid = os.setsid

    def late() -> None:
        time.sleep(0.2)
        setsid()

    monkeypatch.setattr(os, "setsid", late)
    made = Zygote({"echo": echo})
    worker = made.spawn("echo", {}, cores=HERE[:1], memory=1 << 30)
    assert made.end(worker) == -signal.SIGKILL
    worker.close()
    made.close()


@pytest.mark.timeout(60)
def test_a_zygote_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_module, "_PATIENCE", 1.0)
    made = Zygote({"echo": echo})
    os.kill(made.pid, signal.SIGSTOP)
    with pytest.raises(DeviceError, match="has not answered for 1 s"):
        made.spawn("echo", {}, cores=HERE[:1], memory=1 << 30)
    with pytest.raises(DeviceError, match="is gone"):
        made.share("page", 1)
    assert not Path(f"/proc/{made.pid}").exists()


def test_memory_is_shared_by_those_who_start_later(zygote: Zygote, lanes: Lanes) -> None:
    zygote.share("page", 4096)
    run(lanes, (lane(), Heard({"do": "write"})))
    heard = Heard({"do": "read"})
    run(lanes, (lane(), heard))
    assert heard.answers[0].body == b"ok"
    zygote.forget("page")


def test_a_worker_has_no_file_of_ours(lanes: Lanes, tmp_path: Any) -> None:
    with open(tmp_path / "secret", "wb"):
        made = Zygote({"echo": echo})
        inner = Lanes(made, 1 << 30)
        heard = Heard({"do": "files"})
        run(inner, (lane(), heard))
        inner.close()
        made.close()
    names = heard.answers[0].body.decode().split(",")
    assert "secret" not in heard.answers[0].body.decode()
    assert all(name == "/dev/null" or "stderr" in name or name.startswith("socket:") for name in names)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("memory", "said"), [(1 << 30, False), (None, True)])
def test_who_opens_a_device_may_claim_any_addresses(memory: int | None, said: bool) -> None:
    made = Zygote({"echo": echo})
    worker = made.spawn("echo", {}, cores=HERE[:1], memory=memory)
    worker.channel.send({"id": 1})
    worker.channel.receive()
    limits = Path(f"/proc/{worker.pid}/limits").read_text()
    (address,) = [line.split()[3] for line in limits.splitlines() if line.startswith("Max address space")]
    assert (address == "unlimited") is said
    made.end(worker)
    worker.close()
    made.close()
