"""For machines whose instructions do whole nests of loops: the loops around them are run while compiling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mlc.errors import CodegenError, ScheduleError
from mlc.ir.index import Var
from mlc.ir.loop import Allocate, Buffer, For, Seq, Stmt, is_nothing, sub_statements


def nests(body: Stmt, is_instruction: Callable[[Stmt], bool]) -> Iterator[tuple[Stmt, dict[Var, int]]]:
    """Every instruction, in the order of execution.

    Args:
        body: of a kernel.
        is_instruction: whether a statement is one; asked from the outside inwards.
    Yields:
        the statement, and the iteration that each loop around it is in.
    Raises:
        CodegenError: something inside is neither an instruction, nor a loop, a sequence or an allocation around some.
    """

    def run(s: Stmt, env: dict[Var, int]) -> Iterator[tuple[Stmt, dict[Var, int]]]:
        if is_instruction(s):
            yield s, dict(env)
        elif isinstance(s, For):
            for k in range(s.extent):
                env[s.var] = k
                yield from run(s.body, env)
            env.pop(s.var, None)
        elif isinstance(s, (Seq, Allocate)):
            for part in sub_statements(s):
                yield from run(part, env)
        elif not is_nothing(s):
            raise CodegenError(f"the machine has no instruction for\n{s!r}")

    return run(body, {})


def addresses(body: Stmt, capacity: Mapping[str, int]) -> dict[Buffer, int]:
    """Where buffers lie in memories that are used like stacks: what lives at the same time lies one after the other.

    Args:
        body: of a kernel.
        capacity: elements that each memory (scope) holds.
    Returns:
        the first element of every buffer that is allocated inside.
    Raises:
        ScheduleError: a memory is too small, or there is none of that name.
    """
    found: dict[Buffer, int] = {}

    def place(s: Stmt, used: Mapping[str, int]) -> None:
        if isinstance(s, Allocate):
            scope = s.buffer.scope
            if scope not in capacity:
                raise ScheduleError(f"buffer {s.buffer.name} is in {scope}, the machine has {', '.join(capacity)}")
            found[s.buffer] = used.get(scope, 0)
            used = {**used, scope: found[s.buffer] + s.buffer.size}
            if used[scope] > capacity[scope]:
                raise ScheduleError(f"{scope} holds {capacity[scope]} elements, {used[scope]} are used at once")
        for part in sub_statements(s):
            place(part, used)

    place(body, {})
    return found
