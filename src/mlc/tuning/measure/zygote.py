"""A small process that forks workers: each starts with all tasks in memory, and is ended with everything it started.

The zygote is forked early, while its parent is small and has no threads of its own. It does nothing but fork, kill and
collect, so it lives as long as its parent; when that is gone, however it ended, so are the zygote and all workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import json
import math
import mmap
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from mlc.errors import DeviceError
from mlc.tuning.measure.frames import Channel

Shared = Mapping[str, mmap.mmap]
Role = Callable[[Channel, Shared, dict[str, Any]], None]

STDERR_BYTES = 64 << 10
_PACKET = 64 << 10
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_DEATH = 10.0  # seconds in which a process that was killed is gone; giving back gigabytes takes a second
_PATIENCE = 60.0  # seconds in which the zygote has answered


class Worker:
    """A worker as its owner sees it.

    Args:
        pid: of the process, which leads a session of its own.
        channel: to talk to it.
        stderr: a file with what it wrote to its standard error.
    """

    def __init__(self, pid: int, channel: Channel, stderr: int) -> None:
        self.pid = pid
        self.channel = channel
        self._stderr = stderr

    def complaint(self) -> str:
        """What it wrote to its standard error, cut off after some thousand bytes."""
        return os.pread(self._stderr, STDERR_BYTES, 0).split(b"\0", 1)[0].decode("utf-8", "replace")

    def close(self) -> None:
        self.channel.close()
        os.close(self._stderr)


class Zygote:
    """Forks workers on demand.

    Args:
        roles: what workers do, by name. A role is called in the worker and may use everything that is in memory now.
    """

    def __init__(self, roles: Mapping[str, Role]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            _as_child(lambda: _serve(theirs, roles), keep=[theirs.fileno()])
        theirs.close()

    def spawn(self, role: str, args: Mapping[str, Any], *, cores: Sequence[int], memory: int | None) -> Worker:
        """Starts a worker.

        Args:
            role: what it does.
            args: for the role; must be JSON.
            cores: that it may use.
            memory: bytes of address space that it may take beyond what it starts with; no limit if ``None``.
        """
        request = {"op": "spawn", "role": role, "args": dict(args), "cores": list(cores), "memory": memory}
        reply, descriptors = self._ask(request)
        ours, stderr = descriptors
        return Worker(int(reply["pid"]), Channel(socket.socket(fileno=ours)), stderr)

    def end(self, worker: Worker, grace: float = 0.0) -> int:
        """Ends a worker and all that it started.

        Args:
            grace: seconds for it to end by itself, which it is expected to do.
        Returns:
            its exit code, or minus the signal that ended it.
        Raises:
            DeviceError: it cannot be ended.
        """
        reply, _ = self._ask({"op": "end", "pid": worker.pid, "grace": grace}, grace)
        return int(reply["status"])

    def share(self, name: str, nbytes: int) -> None:
        """Makes memory that all workers have in common which start from now on."""
        self._ask({"op": "share", "name": name, "bytes": nbytes})

    def forget(self, name: str) -> None:
        """Gives such memory up."""
        self._ask({"op": "forget", "name": name})

    def close(self) -> None:
        """Ends the zygote and all workers; twice is fine."""
        if self._control.fileno() < 0:
            return
        self._control.close()
        with contextlib.suppress(ChildProcessError):
            if _awaited(self.pid, _PATIENCE) is None:
                os.kill(self.pid, signal.SIGKILL)  # its workers die with it
                _awaited(self.pid, _DEATH)
            os.waitpid(self.pid, os.WNOHANG)

    def _ask(self, request: dict[str, Any], busy: float = 0.0) -> tuple[dict[str, Any], list[int]]:
        """The answer to a request, which may keep the zygote ``busy`` for some seconds."""
        patience = math.ceil(busy + _PATIENCE)
        try:
            self._control.send(json.dumps(request).encode())
            # a second at a time: one in which the machine stood still for an hour is one
            if not any(select.select([self._control], [], [], 1.0)[0] for _ in range(patience)):
                os.kill(self.pid, signal.SIGKILL)
                self.close()
                raise DeviceError(
                    f"the process that starts workers has not answered for {patience} s",
                    hint="has the machine run out of memory?",
                )
            data, descriptors, _, _ = socket.recv_fds(self._control, _PACKET, 2)
        except OSError as error:
            raise DeviceError(f"the process that starts workers is gone: {error.strerror}") from None
        if not data:
            raise DeviceError("the process that starts workers is gone")
        reply = json.loads(data)
        if "error" in reply:
            what = "end" if request["op"] == "end" else "start"
            raise DeviceError(f"cannot {what} a worker: {reply['error']}", hint="is there memory left?")
        return reply, descriptors


def _as_child(work: Callable[[], object], keep: Sequence[int]) -> NoReturn:
    """The life of a forked process: a session of its own, no inherited files or handlers, and no way back."""
    code = 70
    try:
        os.setsid()
        faulthandler.disable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in signal.valid_signals():
            with contextlib.suppress(OSError, ValueError, TypeError):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        _only_files(keep)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException as error:  # the boundary of the process; its owner reads what is written here
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _only_files(keep: Sequence[int]) -> None:
    """Closes every file but ``keep``; standard ones lead nowhere unless they are kept."""
    null = os.open(os.devnull, os.O_RDWR)
    for k in range(3):
        if k not in keep:
            os.dup2(null, k)
    wanted = {0, 1, 2, *keep}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in wanted:
            with contextlib.suppress(OSError):
                os.close(int(name))


# -- in the zygote ----------------------------------------------------------------------------------------------------
def _serve(control: socket.socket, roles: Mapping[str, Role]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # whoever a worker leaves behind becomes our child, so that it can be found
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    gc.collect()
    gc.freeze()  # no collection shall touch, and so copy, what all workers share
    workers: set[int] = set()
    shared: dict[str, mmap.mmap] = {}
    try:
        while request := control.recv(_PACKET):
            descriptors: list[int] = []
            try:
                reply, descriptors = _answer(json.loads(request), libc, control, roles, workers, shared)
            except OSError as error:
                reply = {"error": error.strerror or str(error)}
            socket.send_fds(control, [json.dumps(reply).encode()], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    except OSError:
        pass  # the owner went away while we answered
    finally:
        for pid in list(workers):
            _end(pid, 0.0, workers)


def _answer(
    request: dict[str, Any],
    libc: ctypes.CDLL,
    control: socket.socket,
    roles: Mapping[str, Role],
    workers: set[int],
    shared: dict[str, mmap.mmap],
) -> tuple[dict[str, Any], list[int]]:
    match request["op"]:
        case "spawn":
            pid, descriptors = _fork(request, libc, control, roles, shared)
            workers.add(pid)
            return {"pid": pid}, descriptors
        case "end":
            return {"status": _end(request["pid"], request["grace"], workers)}, []
        case "share":
            shared[request["name"]] = mmap.mmap(-1, max(1, request["bytes"]))
        case "forget":
            shared.pop(request["name"]).close()
    return {}, []


def _fork(
    request: dict[str, Any], libc: ctypes.CDLL, control: socket.socket, roles: Mapping[str, Role], shared: Shared
) -> tuple[int, list[int]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # a file of a fixed size takes what a worker says and refuses the rest, and nobody has to read along
    stderr = os.memfd_create("stderr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(stderr, STDERR_BYTES)
    fcntl.fcntl(stderr, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:

        def work() -> None:
            os.dup2(stderr, 2)
            control.close()
            ours.close()
            _limit(libc, parent, request["cores"], request["memory"])
            roles[request["role"]](Channel(theirs), shared, request["args"])

        _as_child(work, keep=[control.fileno(), ours.fileno(), theirs.fileno(), stderr])
    theirs.close()
    return pid, [ours.detach(), stderr]


def _limit(libc: ctypes.CDLL, parent: int, cores: Sequence[int], memory: int | None) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)
    os.sched_setaffinity(0, cores)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory is not None:
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * mmap.PAGESIZE
        _, most = resource.getrlimit(resource.RLIMIT_AS)  # of whoever started us, as boards of a pool do
        least = size + memory if most == resource.RLIM_INFINITY else min(size + memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, least))
    # if the machine runs out of memory all the same, the kernel shall take a worker and nobody else
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _end(pid: int, grace: float, workers: set[int]) -> int:
    """Kills a worker with its group and collects all of it; its exit code, or minus its signal.

    Raises:
        TimeoutError: it is still there some seconds after it was killed.
    """
    if pid not in workers:
        return 0
    # its number stays taken, and with it that of its group, until we collect it
    _awaited(pid, grace)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)  # whoever was forked just now leads no group yet
    found = _awaited(pid, _DEATH)
    if found is None:
        raise TimeoutError(f"process {pid} was killed and is still there after {_DEATH:g} s")
    os.waitpid(pid, 0)
    workers.discard(pid)
    for left in _children():
        if left not in workers:  # it had left the group
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(left, signal.SIGKILL)
                if _awaited(left, _DEATH) is not None:
                    os.waitpid(left, 0)
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _awaited(pid: int, seconds: float) -> os.waitid_result | None:
    """How a child has ended, which is left to be collected; nothing if it has not after some seconds.

    Raises:
        ChildProcessError: there is no such child.
    """
    until = time.monotonic() + seconds
    pause = 1e-4
    while True:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is not None or time.monotonic() >= until:
            return found
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _children() -> list[int]:
    """Our children, those included that became ours when their parents died."""
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:  # a kernel without that file; groups were killed all the same
        return []
