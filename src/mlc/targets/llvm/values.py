"""Values and memory accesses: scalar expressions to LLVM operands, for one lane or many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from mlc.errors import CodegenError
from mlc.ir import loop
from mlc.ir.expr import Binary, Call, Cast, Const, Expr, IndexValue, Load, Select, Within, call, index_vars
from mlc.ir.index import Atom, Dynamic, Linear, Quotient, Var
from mlc.ir.types import DType, boolean, i64
from mlc.ir.unwind import Steps, unwind
from mlc.targets.llvm import arith
from mlc.targets.llvm.arith import Val
from mlc.targets.llvm.bounds import in_bounds, may_leave
from mlc.targets.llvm.fixed_point import fixed_product_of, rounded_product
from mlc.targets.llvm.index import IndexEmitter
from mlc.targets.llvm.intrinsic import Address, Matrix
from mlc.targets.llvm.pieces import Piece, pieces_of, settled
from mlc.targets.llvm.registers import Accesses, Slot, Slots
from mlc.targets.llvm.rounding import is_limited, limited_steps, narrowed, steps_of
from mlc.targets.llvm.text import mangle_suffix, memory_type, register_type, splat
from mlc.targets.llvm.transpose import Block, Column, shuffles

MASKED = 64  # bytes of the longest register whose lanes a mask chooses
LINE = 64  # bytes, of which buffers of a function are a multiple
MAX_STRIDE = 4  # distance up to which neighbours are loaded and picked from, rather than gathered


class ValueEmitter(IndexEmitter):
    """The part of a function emitter that evaluates expressions."""

    label: str
    places: Accesses
    slots: Slots
    registers: dict[Slot, Val]
    matrices: dict[Slot, Matrix]  # the kind of register of those that are no vectors
    homes: dict[Slot, str]  # where these are in memory, to be read
    frames: list[dict[str, str]]
    loaded: dict[int, dict[str, str]]  # by the id of a buffer: what was read from it already, by the instruction
    counter: int
    stack_bytes: int
    flags: str
    keeps_nan: bool
    fixed_product: str
    masks: bool
    own: set[int]  # by their ids, buffers in memory that the function allocates
    column: Column | None  # of a block that is read as a whole: what the store of the moment reads of its buffer
    squares: dict[Block, list[str]]  # the columns of a block once they are there, until its buffer is written
    mask: Val | None  # lanes whose loads may touch memory; ``None`` for all
    conditions: list[Expr]  # that all hold for these lanes
    masks_around: dict[str, frozenset[str]]  # what a mask's lanes are some of, by its text: other masks
    zero_outside: dict[str, str]  # values that are 0 in all lanes but a mask's
    around: range | None  # lanes of the long vector that this one is a part of, counted like its own

    if TYPE_CHECKING:

        def declare(self, line: str) -> None: ...

        def math(self, fn: str, dtype: str, lanes: int) -> str: ...

        def at_entry(self, text: str) -> str: ...

        def fetch(self, at: Address, text: str) -> str: ...

        def run(self, text: str) -> None: ...

        def read(self, at: Address, type: str) -> str: ...

        def block(self, label: str) -> None: ...

        def frame(self) -> AbstractContextManager[None]: ...

    def eval(self, e: Expr, lane: Var | None) -> Val:
        """The value of an expression.

        Args:
            e: the expression.
            lane: variable of the vector store it is part of; the result is a vector only where it varies with it.
        Raises:
            CodegenError: it is something that the code generator does not know.
        """

        def answer(e: Expr) -> Val | Steps[Expr, Val]:
            return self.load(e, lane) if type(e) is Load else self._eval(e, lane)

        return unwind(e, answer)

    def _eval(self, e: Expr, lane: Var | None) -> Steps[Expr, Val]:
        if type(e) is Binary:
            a = yield e.a
            b = yield e.b
            lanes = max(a.lanes, b.lanes)
            known = e.b.value if type(e.b) is Const else None
            if known is None and type(e.a) is Const and e.op in ("min", "max", "add", "mul"):
                a, b, known = b, a, e.a.value
            return arith.binary(self, e.op, self.widen(a, lanes), self.widen(b, lanes), known)
        match e:
            case Const():
                return Val(splat(e.value, e.dtype, 0), e.dtype, 0)
            case IndexValue():
                return arith.cast(self, self.index_value(e.index, lane), e.dtype)
            case Within():
                return self.within(e, lane)
            case Call():
                if len(e.args) == 1:
                    return arith.unary(self, e.fn, (yield e.args[0]))
                args: list[Val] = []
                for operand in e.args:
                    args.append((yield operand))
                lanes = max(a.lanes for a in args)
                return arith.function(self, e.fn, [self.widen(a, lanes) for a in args])
            case Cast():
                steps = None if self.keeps_nan else steps_of(e)
                if steps is not None:
                    return narrowed(self, limited_steps(self, (yield steps.value), steps))
                product = fixed_product_of(e) if self.fixed_product else None
                if product is not None:
                    a = yield product.a
                    b = yield product.b
                    lanes = max(a.lanes, b.lanes)
                    found = rounded_product(self, self.fixed_product, self.widen(a, lanes), self.widen(b, lanes))
                    if found is not None:
                        return found
                return arith.cast(self, (yield e.a), e.dtype, limited=is_limited(e))
            case Select():
                return (yield from self.select(e, lane))
        raise CodegenError(f"no code for {type(e).__name__}")

    def widen(self, v: Val, lanes: int) -> Val:
        return arith.broadcast(self, v, lanes)

    def integer(self, e: Expr) -> str:
        """An integer of any type as an ``i64`` operand."""
        return arith.cast(self, self.eval(e, None), i64).text

    # -- indices as values ---------------------------------------------------------------------------------------
    def index_value(self, ix: Linear, lane: Var | None) -> Val:
        """An index as an ``i64`` value, a vector when it varies with the lane."""
        if lane is None or lane not in ix.vars():
            return Val(self.index(ix), i64, 0)
        return self.vector_index(ix, lane)

    def vector_index(self, ix: Linear, lane: Var, done: dict[int, Val] | None = None) -> Val:
        """An index for every lane.

        Args:
            ix: the index.
            lane: the variable that counts lanes.
            done: values of atoms so far, by ``id``: forms share them.
        """
        lanes = lane.hi + 1
        done = {} if done is None else done
        t = register_type(i64, lanes)
        plain = {a: c for a, c in ix.terms.items() if type(a) is not Var and lane in a.vars}
        step = ix.terms.get(lane, 0)
        rest = Linear({a: c for a, c in ix.terms.items() if a is not lane and a not in plain}, ix.const)
        total: Val | None = None
        if rest.terms or rest.const or (not plain and not step):
            total = self.widen(Val(self.index(rest), i64, 0), lanes)
        if step:
            iota = Val("<" + ", ".join(f"i64 {k * step}" for k in range(lanes)) + ">", i64, lanes)
            total = iota if total is None else arith.binary(self, "add", total, iota)
        for atom, c in plain.items():
            if id(atom) not in done:
                done[id(atom)] = self._vector_atom(atom, lane, done)
            v = done[id(atom)]
            if c != 1:
                v = Val(self.pure(f"mul {t} {v.text}, {splat(c, i64, lanes)}"), i64, lanes)
            total = v if total is None else arith.binary(self, "add", total, v)
        assert total is not None
        return total

    def _vector_atom(self, atom: Atom, lane: Var, done: dict[int, Val]) -> Val:
        lanes = lane.hi + 1
        assert not isinstance(atom, Var)
        if isinstance(atom, Dynamic):
            return self.widen(arith.cast(self, self.eval(atom.expr, lane), i64), lanes)
        form = self.vector_index(atom.form, lane, done)
        word = "div" if type(atom) is Quotient else "mod"
        d = Val(splat(atom.divisor, i64, lanes), i64, lanes)
        if word == "div" and atom.form.bounds()[0] < 0:
            r = arith.binary(self, "mod", form, d, atom.divisor)
            form = arith.binary(self, "sub", form, r)
        return arith.binary(self, word, form, d, atom.divisor)

    def within(self, e: Within, lane: Var | None) -> Val:
        ix = self.index_value(e.index, lane)
        shifted = arith.binary(self, "sub", ix, Val(splat(e.lo, i64, ix.lanes), i64, ix.lanes)) if e.lo else ix
        # as unsigned numbers, what is below the range is above it too
        text = f"icmp ult {ix.type} {shifted.text}, {splat(e.hi - e.lo, i64, ix.lanes)}"
        return Val(self.pure(text), boolean, ix.lanes)

    # -- choices -------------------------------------------------------------------------------------------------
    def select(self, e: Select, lane: Var | None) -> Steps[Expr, Val]:
        cond = yield e.cond
        if not (may_leave(e.a) or may_leave(e.b)):
            a = yield e.a
            b = yield e.b
        elif cond.lanes:
            with self.only(cond, e.cond):
                a = yield e.a
            if self.is_zero_outside(cond, a) and type(e.b) is Const and str(e.b.value) in ("0", "0.0"):  # but not -0.0
                return a  # what is not loaded is 0 already
            with self.only(arith.unary(self, "not", cond), call("not", e.cond)):
                b = yield e.b
        else:
            return (yield from self.diamond(cond, e, lane))
        lanes = max(a.lanes, b.lanes, cond.lanes)
        return arith.select(self, cond, self.widen(a, lanes), self.widen(b, lanes))

    def is_zero_outside(self, cond: Val, v: Val) -> bool:
        """Whether a value is 0 wherever a condition does not hold, as it was read from memory."""
        mask = self.zero_outside.get(v.text)
        return mask is not None and (mask == cond.text or cond.text in self.masks_around.get(mask, ()))

    @contextmanager
    def only(self, lanes: Val, condition: Expr) -> Iterator[None]:
        """Loads inside touch memory only for the given lanes (of those allowed around): where a condition holds."""
        outside = around = self.mask
        if around is None:
            self.mask = lanes
        else:
            around = self.widen(around, lanes.lanes)
            both = self.mask = arith.logic(self, "and", lanes, around)
            wider = (self.masks_around.get(m.text, frozenset()) for m in (lanes, around))
            self.masks_around[both.text] = frozenset((lanes.text, around.text)).union(*wider)
        self.conditions.append(condition)
        yield
        self.conditions.pop()
        self.mask = outside

    def diamond(self, cond: Val, e: Select, lane: Var | None) -> Steps[Expr, Val]:
        """A branch, for sides whose loads must not happen unless chosen."""
        self.counter += 1
        n = self.counter
        lanes = lane.hi + 1 if lane is not None and (lane in index_vars(e.a) or lane in index_vars(e.b)) else 0
        self.lines.append(f"  br i1 {cond.text}, label %yes{n}, label %no{n}")
        arms = []
        for label, side in ((f"yes{n}", e.a), (f"no{n}", e.b)):
            self.block(label)
            with self.frame():
                v = self.widen((yield side), lanes)
            arms.append((v, self.label))
            self.lines.append(f"  br label %join{n}")
        self.block(f"join{n}")
        (a, la), (b, lb) = arms
        name = self.fresh("r")
        self.lines.append(f"  {name} = phi {a.type} [ {a.text}, %{la} ], [ {b.text}, %{lb} ]")
        return Val(name, a.dtype, a.lanes)

    # -- memory --------------------------------------------------------------------------------------------------
    def load(self, e: Load, lane: Var | None) -> Val:
        buffer: loop.Buffer = e.source
        part = self.slots.part(buffer, e.indices, lane)
        if part is not None:
            return self._part(buffer.dtype, *part)
        if not buffer.size:  # some guard never lets this be chosen
            return Val(splat(0, buffer.dtype, 0), buffer.dtype, 0)
        offset = self.places.offset(buffer, e.indices)
        step = 0 if lane is None else offset.coefficient(lane)
        mask = None if self.mask is None or in_bounds(e) else self.mask
        if lane is None or step == 0:
            at = self.pointer(buffer, offset)
            return self._read(buffer, at if mask is None else self._if_any(mask, at, buffer), 0)
        if step is not None and step != 1 and abs(step) <= MAX_STRIDE:
            return self._strided(buffer, offset, lane, step, mask)
        if step != 1:
            if step is not None and self.column is not None and self.column[0].buffer is buffer:
                return self._transposed(*self.column)
            pieces = self._pieces(buffer, offset, lane, mask) if step is None else None
            return self._gather(buffer, offset, lane, mask) if pieces is None else self._joined(buffer, pieces, lane)
        at = self.pointer(buffer, offset.without(lane))
        if mask is None or self._has_room(buffer, offset.without(lane), lane.hi + 1):
            return self._read(buffer, at, lane.hi + 1)
        return self._masked_read(buffer, at, mask)

    def _has_room(self, buffer: loop.Buffer, offset: Linear, lanes: int) -> bool:
        """Whether so many elements may be touched, since the function's own buffers are whole lines of the cache."""
        size = buffer.dtype.itemsize
        return id(buffer) in self.own and not offset.terms and (offset.const + lanes) * size <= whole_lines(buffer)

    def held(self, slot: Slot, dtype: DType) -> Val:
        """A whole register."""
        return self.registers.get(slot) or Val("poison", dtype, slot[2])

    def _part(self, dtype: DType, slot: Slot, chosen: Sequence[int], lanes: int) -> Val:
        """A register, or some of its lanes."""
        if slot not in self.registers:
            return Val("poison", dtype, lanes)
        held = self.held(slot, dtype)
        if slot in self.matrices:
            return self._row(slot, held, chosen, lanes)
        if slot[2] == lanes and list(chosen) == list(range(len(chosen))):
            return held
        return self._lanes_of(held, held, chosen) if lanes else self._lane_of(held, chosen[0])

    def _row(self, slot: Slot, held: Val, chosen: Sequence[int], lanes: int) -> Val:
        """Neighbours of a register of rows, all of which goes to memory when the first of it is asked for."""
        if list(chosen) != list(range(chosen[0], chosen[0] + len(chosen))):
            raise CodegenError(f"elements {list(chosen)} of a matrix are no neighbours")
        matrix, stored = self.matrices[slot], f"stored {held.text}"
        home = next((frame[stored] for frame in self.frames if stored in frame), None)
        if home is None:
            if slot not in self.homes:
                self.homes[slot] = self.at_entry(f"alloca [{matrix.nbytes} x i8], align {LINE}")
                self.stack_bytes += matrix.nbytes
            home = self.frames[-1][stored] = self.homes[slot]
            matrix.store(self, held.text, home)
        size = held.dtype.itemsize
        at = self.pure(f"getelementptr i8, ptr {home}, i64 {chosen[0] * size}")
        name = self.fresh("l")
        self.lines.append(f"  {name} = load {register_type(held.dtype, lanes)}, ptr {at}, align {size}")
        return Val(name, held.dtype, lanes)

    def _lane_of(self, held: Val, lane: int) -> Val:
        return Val(self.pure(f"extractelement {held.type} {held.text}, i32 {lane}"), held.dtype, 0)

    def _lanes_of(self, a: Val, b: Val, chosen: Sequence[int]) -> Val:
        """Chosen lanes of two vectors, those of the second counted on."""
        mask = f"<{len(chosen)} x i32> <{', '.join(f'i32 {k}' for k in chosen)}>"
        return Val(self.pure(f"shufflevector {a.type} {a.text}, {b.type} {b.text}, {mask}"), a.dtype, len(chosen))

    def _widened(self, v: Val, lanes: int) -> Val:
        """A longer vector that begins with this one."""
        return self._lanes_of(v, v, [k % v.lanes for k in range(lanes)])

    def _strided(self, buffer: loop.Buffer, offset: Linear, lane: Var, step: int, mask: Val | None) -> Val:
        """Every ``step``-th element, picked from vectors of neighbours that lie between the first and the last.

        A handful of loads and shuffles takes a fraction of a gather's time, and runs where there is no gather.
        """
        lanes = lane.hi + 1
        places = [k * abs(step) for k in range(lanes)]
        if step < 0:
            offset, places = offset.without(lane) + (places[-1] * -1), places[::-1]
        else:
            offset = offset.without(lane)
        whole = self._picked(buffer, offset, places, abs(step)) if step != -1 else None
        if whole is not None:
            return whole if mask is None else self._zero_but(mask, whole)
        found: Val | None = None
        todo = sorted(range(lanes), key=lambda k: places[k])
        while todo:
            begin = min(places[todo[0]], max(places) - lanes + 1)
            here = {k: places[k] - begin for k in todo if places[k] - begin < lanes}
            todo = [k for k in todo if k not in here]
            at = self.pointer(buffer, offset + begin)
            if mask is None:
                piece = self._read(buffer, at, lanes)
            else:
                who = {e: k for k, e in here.items()}
                off = Val("zeroinitializer", boolean, lanes)
                piece = self._masked_read(
                    buffer, at, self._lanes_of(mask, off, [who.get(e, lanes) for e in range(lanes)])
                )
            if found is None:
                found = self._lanes_of(piece, piece, [here.get(k, 0) for k in range(lanes)])
            else:
                found = self._lanes_of(found, piece, [lanes + here[k] if k in here else k for k in range(lanes)])
        assert found is not None
        if mask is not None:
            self.zero_outside[found.text] = mask.text
        return found

    def _picked(self, buffer: loop.Buffer, offset: Linear, places: Sequence[int], step: int) -> Val | None:
        """Lanes picked from whole vectors that begin at a multiple of ``step``, where all of these lie in the buffer.

        Neighbours, as the taps of a window are, so pick from vectors that were read once.
        """
        lanes, shift = len(places), offset.const % step
        begin, (lo, hi) = offset + -shift, offset.bounds()
        if lo - shift < 0 or hi - shift + lanes * step > buffer.size:
            return None
        row = [self._read(buffer, self.pointer(buffer, begin + k * lanes), lanes) for k in range(step)]
        which = [divmod(place + shift, lanes) for place in places]
        found = self._lanes_of(row[0], row[1], [min(k, 1) * lanes + at for k, at in which])
        for n, piece in enumerate(row[2:], 2):
            found = self._lanes_of(found, piece, [lanes + at if k == n else j for j, (k, at) in enumerate(which)])
        return found

    def _zero_but(self, mask: Val, v: Val) -> Val:
        """A vector with 0 in all lanes but a mask's."""
        zero = Val("zeroinitializer", v.dtype, v.lanes)
        name = self.pure(f"select {mask.type} {mask.text}, {v.type} {v.text}, {zero.type} {zero.text}")
        self.zero_outside[name] = mask.text
        return Val(name, v.dtype, v.lanes)

    def _pieces(self, buffer: loop.Buffer, offset: Linear, lane: Var, mask: Val | None) -> list[Piece] | None:
        """The pieces of memory that a vector is read from, where it is settled which lanes are read, and where."""
        read: list[int] = []
        for k in self.around or range(lane.hi + 1):
            holds = [settled(c, lane, k) for c in self.conditions] if mask is not None else []
            if None in holds and False not in holds:
                return None
            if False not in holds:
                read.append(k)
        return pieces_of(buffer, offset, lane, read)

    def _joined(self, buffer: loop.Buffer, pieces: Sequence[Piece], lane: Var) -> Val:
        """A vector of lanes that lie in pieces; anything in the others.

        Pieces are put into a row of registers, which depends on nothing but them, and lanes are picked from there.
        """
        lanes = lane.hi + 1
        if not pieces:
            return Val("poison", buffer.dtype, lanes)
        pieces = sorted(pieces, key=lambda piece: piece.lanes)
        size = max(piece.size for piece in pieces)
        row = [self._read(buffer, self.pointer(buffer, piece.begin), piece.size) for piece in pieces]
        row = [read if read.lanes == size else self._widened(read, size) for read in row]
        while len(row) > 1 and 2 * row[0].lanes * buffer.dtype.itemsize <= MASKED:
            row += [Val("poison", buffer.dtype, row[0].lanes)] * (len(row) % 2)
            row = [self._lanes_of(a, b, range(2 * a.lanes)) for a, b in zip(row[::2], row[1::2], strict=True)]
        width = row[0].lanes
        places = {k: divmod(n * size + at, width) for n, piece in enumerate(pieces) for k, at in piece.lanes}
        if width < lanes:  # indices of 64 bits for numbers of 32: the vector is longer than a register
            row = [self._widened(register, lanes) for register in row]
        found, wide = row[0], row[0].lanes
        chosen = {k: at for k, (which, at) in places.items() if which == 0}
        for n, register in enumerate(row[1:], 1):
            here = {k: wide + at for k, (which, at) in places.items() if which == n and 0 <= k < lanes}
            if here:
                found = self._lanes_of(found, register, [here.get(k, chosen.get(k, k)) for k in range(wide)])
                chosen = {k: k for k in range(lanes)}
        return self._lanes_of(found, found, [chosen.get(k, 0) for k in range(lanes)])

    def _if_any(self, mask: Val, at: str, buffer: loop.Buffer) -> str:
        """An address that all lanes read, or the buffer's first element when no lane may read it."""
        symbol = f"@llvm.vector.reduce.or.v{mask.lanes}i1"
        self.declare(f"declare i1 {symbol}({mask.type})")
        some = self.pure(f"call i1 {symbol}({mask.type} {mask.text})")
        return self.pure(f"select i1 {some}, ptr {at}, ptr {self.pointers[id(buffer)]}")

    def _read(self, buffer: loop.Buffer, at: str, lanes: int) -> Val:
        size = buffer.dtype.itemsize
        if self.masks and _is_part(lanes, size):  # else it is read as a row of parts, and put together by shuffles
            whole = self._masked_read(buffer, at, _first_lanes(lanes))
            return self._lanes_of(whole, whole, range(lanes))
        text = f"load {memory_type(buffer.dtype, lanes)}, ptr {at}, align {size}"
        return self._from_memory(self._loaded(buffer, text), buffer, lanes)

    def _loaded(self, buffer: loop.Buffer, text: str) -> str:
        """The name of what an instruction reads, which is emitted where that is not known yet."""
        names = self.loaded.setdefault(id(buffer), {})
        name = names.get(text)
        if name is None:
            name = names[text] = self.fresh("l")
            self.lines.append(f"  {name} = {text}")
        return name

    def _masked_read(self, buffer: loop.Buffer, at: str, mask: Val) -> Val:
        lanes = mask.lanes
        t = memory_type(buffer.dtype, lanes)
        symbol = f"@llvm.masked.load.{_memory_suffix(buffer, lanes)}.p0"
        m = register_type(boolean, lanes)
        self.declare(f"declare {t} {symbol}(ptr, {m}, {t})")
        align = f"align {buffer.dtype.itemsize} "
        text = f"call {t} {symbol}(ptr {align}{at}, {m} {mask.text}, {t} zeroinitializer)"
        found = self._from_memory(self._loaded(buffer, text), buffer, lanes)
        self.zero_outside[found.text] = mask.text
        return found

    def _is_end(self, buffer: loop.Buffer, offset: Linear, lanes: int) -> bool:
        """Whether lanes are the last elements of an own buffer, fewer than a register has, with room for all of it."""
        size = buffer.dtype.itemsize
        ends = self.masks and size in (4, 8) and offset.const + lanes == buffer.size and lanes * size < MASKED
        return ends and self._has_room(buffer, offset, MASKED // size)

    def _lane_pointers(self, buffer: loop.Buffer, offset: Linear, lane: Var) -> str:
        """A vector of addresses, one a lane."""
        lanes = lane.hi + 1
        t = memory_type(buffer.dtype)
        step = offset.coefficient(lane)
        if step is not None:
            base = self.pointer(buffer, offset.without(lane))
            steps = "<" + ", ".join(f"i32 {k * step}" for k in range(lanes)) + ">"
            return self.pure(f"getelementptr {t}, ptr {base}, <{lanes} x i32> {steps}")
        at = self.pointers[id(buffer)]
        ix = self.vector_index(offset, lane)
        return self.pure(f"getelementptr {t}, ptr {at}, {ix.type} {ix.text}")

    def _gather(self, buffer: loop.Buffer, offset: Linear, lane: Var, mask: Val | None) -> Val:
        lanes = lane.hi + 1
        t = memory_type(buffer.dtype, lanes)
        m = register_type(boolean, lanes)
        symbol = f"@llvm.masked.gather.{_memory_suffix(buffer, lanes)}.v{lanes}p0"
        self.declare(f"declare {t} {symbol}(<{lanes} x ptr>, {m}, {t})")
        on = mask.text if mask is not None else splat(1, boolean, lanes)
        at = self._lane_pointers(buffer, offset, lane)
        align = f"align {buffer.dtype.itemsize} "
        text = f"call {t} {symbol}(<{lanes} x ptr> {align}{at}, {m} {on}, {t} zeroinitializer)"
        return self._from_memory(self._loaded(buffer, text), buffer, lanes)

    def _transposed(self, block: Block, column: int) -> Val:
        """A column of a block, all of which is read and transposed when the first is asked for."""
        lanes, buffer = block.size, block.buffer
        t = memory_type(buffer.dtype, lanes)
        if block not in self.squares:
            rows = ["poison"] * lanes
            for k in block.chosen:
                row = self._read(buffer, self.pointer(buffer, block.origin + k * block.stride), block.width)
                rows[k] = row.text if block.width == lanes else self._widened(row, lanes).text
            for distance, low, high in shuffles(lanes):
                for k in range(lanes):
                    if not k & distance:
                        pair = f"{t} {rows[k]}, {t} {rows[k | distance]}"
                        rows[k], rows[k | distance] = (
                            self.pure(f"shufflevector {pair}, {mask}") for mask in (low, high)
                        )
            self.squares[block] = rows
        whole = Val(self.squares[block][column], buffer.dtype, lanes)
        return whole if block.rows == lanes else self._lanes_of(whole, whole, range(block.rows))

    def _from_memory(self, name: str, buffer: loop.Buffer, lanes: int) -> Val:
        dtype = buffer.dtype
        if dtype is boolean:
            t = memory_type(dtype, lanes)
            return Val(self.pure(f"icmp ne {t} {name}, {'zeroinitializer' if lanes else '0'}"), dtype, lanes)
        if dtype.name == "bf16":
            wide, f = (f"<{lanes} x i32>", f"<{lanes} x float>") if lanes else ("i32", "float")
            sixteen = "splat (i32 16)" if lanes else "16"
            bits = self.pure(f"zext {memory_type(dtype, lanes)} {name} to {wide}")
            return Val(self.pure(f"bitcast {wide} {self.pure(f'shl {wide} {bits}, {sixteen}')} to {f}"), dtype, lanes)
        if dtype.bits < 8:
            narrow = self.pure(f"trunc {memory_type(dtype, lanes)} {name} to {register_type(dtype, lanes)}")
            return Val(narrow, dtype, lanes)
        return Val(name, dtype, lanes)

    def _to_memory(self, v: Val) -> str:
        t = memory_type(v.dtype, v.lanes)
        if v.dtype is boolean:
            return self.pure(f"zext {v.type} {v.text} to {t}")
        if v.dtype.name == "bf16":
            wide = f"<{v.lanes} x i32>" if v.lanes else "i32"
            sixteen = "splat (i32 16)" if v.lanes else "16"
            bits = self.pure(f"bitcast {v.type} {v.text} to {wide}")
            return self.pure(f"trunc {wide} {self.pure(f'lshr {wide} {bits}, {sixteen}')} to {t}")
        if v.dtype.bits < 8:
            return self.pure(f"{'sext' if v.dtype.kind == 'i' else 'zext'} {v.type} {v.text} to {t}")
        return v.text

    def write(self, buffer: loop.Buffer, offset: Linear, lane: Var | None, v: Val) -> None:
        """Store a value, or one value a lane."""
        t = memory_type(buffer.dtype, v.lanes)
        text = self._to_memory(v)
        size = buffer.dtype.itemsize
        step = None if lane is None else offset.coefficient(lane)
        if lane is None or not v.lanes:
            self.lines.append(f"  store {t} {text}, ptr {self.pointer(buffer, offset)}, align {size}")
        elif step == 1 and self._is_end(buffer, offset.without(lane), v.lanes):
            # what is read as a whole next would wait for memory if it were written in parts
            whole = self._lanes_of(v, v, [k % v.lanes for k in range(MASKED // size)])
            at = self.pointer(buffer, offset.without(lane))
            self.lines.append(f"  store {whole.type} {whole.text}, ptr {at}, align {size}")
        elif step == 1 and self.masks and _is_part(v.lanes, size):
            mask = _first_lanes(v.lanes)
            whole = self._widened(v, mask.lanes)
            symbol = f"@llvm.masked.store.{_memory_suffix(buffer, mask.lanes)}.p0"
            self.declare(f"declare void {symbol}({whole.type}, ptr, {mask.type})")
            at = f"ptr align {size} {self.pointer(buffer, offset.without(lane))}"
            self.lines.append(f"  call void {symbol}({whole.type} {whole.text}, {at}, {mask.type} {mask.text})")
        elif step == 1:
            for begin, lanes in _whole_stores(v.lanes, size):
                part = text
                if lanes < v.lanes:
                    chosen = ", ".join(f"i32 {k}" for k in range(begin, begin + lanes))
                    part = self.pure(f"shufflevector {t} {text}, {t} poison, <{lanes} x i32> <{chosen}>")
                at = self.pointer(buffer, offset.without(lane) + begin)
                self.lines.append(f"  store {memory_type(buffer.dtype, lanes)} {part}, ptr {at}, align {size}")
        else:
            m = register_type(boolean, v.lanes)
            symbol = f"@llvm.masked.scatter.{_memory_suffix(buffer, v.lanes)}.v{v.lanes}p0"
            self.declare(f"declare void {symbol}({t}, <{v.lanes} x ptr>, {m})")
            at = self._lane_pointers(buffer, offset, lane)
            on = splat(1, boolean, v.lanes)
            self.lines.append(f"  call void {symbol}({t} {text}, <{v.lanes} x ptr> align {size} {at}, {m} {on})")


def _memory_suffix(buffer: loop.Buffer, lanes: int) -> str:
    if buffer.dtype.name == "bf16":
        return f"v{lanes}i16"
    if buffer.dtype is boolean or buffer.dtype.bits < 8:
        return f"v{lanes}i8"
    return mangle_suffix(buffer.dtype, lanes)


def whole_lines(buffer: loop.Buffer) -> int:
    """Bytes that a buffer takes where the function allocates it."""
    return -(-buffer.nbytes // LINE) * LINE


def _is_part(lanes: int, size: int) -> bool:
    """Whether lanes of ``size`` bytes are a part of a register that processors with masks read as a whole."""
    return lanes > 2 and size in (4, 8) and lanes & (lanes - 1) > 0 and lanes * size < MASKED


def _first_lanes(lanes: int) -> Val:
    """The mask of the first lanes of the smallest register that has so many."""
    whole = 1 << lanes.bit_length()
    return Val(f"<{', '.join(f'i1 {int(k < lanes)}' for k in range(whole))}>", boolean, whole)


def _whole_stores(lanes: int, size: int) -> list[tuple[int, int]]:
    """First lane and number of lanes of the stores that write a vector: two that overlap rather than a row of parts.

    Three bytes are two stores as well: LLVM 22.1 aborts over those of narrowed 64-bit integers on AArch64.
    """
    half = 1 << (lanes.bit_length() - 1)
    whole = half == lanes or (lanes < 5 and size > 1)
    return [(0, lanes)] if whole else [(0, half), (lanes - half, half)]
