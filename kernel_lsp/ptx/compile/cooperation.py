"""Translate instructions at which a thread waits for its warp or block, exits, or reports."""

from __future__ import annotations

from kernel_lsp.ptx.compile.clusters import cluster_barrier
from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.run.layout import FaultKind, Operation, Status, Thread
from kernel_lsp.ptx.text.syntax import Instruction, Operand, Pair, Symbol, UnsupportedPtxError

_SHUFFLES = {
    "up": Operation.SHFL_UP,
    "down": Operation.SHFL_DOWN,
    "bfly": Operation.SHFL_BFLY,
    "idx": Operation.SHFL_IDX,
}
_VOTES = {
    "all": Operation.VOTE_ALL,
    "any": Operation.VOTE_ANY,
    "uni": Operation.VOTE_UNI,
    "ballot": Operation.VOTE_BALLOT,
}
_REDUCTIONS = {
    "add": Operation.REDUX_ADD,
    "and": Operation.REDUX_AND,
    "or": Operation.REDUX_OR,
    "xor": Operation.REDUX_XOR,
}
_BARRIER_REDUCTIONS = {
    "popc": Operation.BARRIER_POPC,
    "and": Operation.BARRIER_AND,
    "or": Operation.BARRIER_OR,
}
ALL_LANES = 0xFFFFFFFF


def shuffle(e: Emitter, i: Instruction) -> None:
    """Translate ``shfl.sync.mode.b32 d|p, a, b, c, mask``."""
    target, a, b, c, mask = i.operands
    operation = next(_SHUFFLES[modifier] for modifier in i.modifiers if modifier in _SHUFFLES)
    values = {Thread.A: wide(e, a), Thread.B: wide(e, b), Thread.C: wide(e, c)}
    _ask(e, i, operation, wide(e, mask), values)
    first, predicate = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    _result(e, first)
    if predicate is not None:
        _result_predicate(e, predicate)


def vote(e: Emitter, i: Instruction) -> None:
    """Translate ``vote.sync.mode d, p, mask``."""
    target, predicate, mask = i.operands
    operation = next(_VOTES[modifier] for modifier in i.modifiers if modifier in _VOTES)
    value = e.coerce(e.read(predicate, "i1"), "i1", "i64")
    _ask(e, i, operation, wide(e, mask), {Thread.A: value})
    e.write(target, e.thread_field(Thread.RESULT), "i64")


def match(e: Emitter, i: Instruction) -> None:
    """Translate ``match.sync.any|all d|p, a, mask``."""
    target, a, mask = i.operands
    kind = i.types()[-1]
    operation = Operation.MATCH_ALL if i.has("all") else Operation.MATCH_ANY
    _ask(e, i, operation, wide(e, mask), {Thread.A: e.read(a, "i64") if kind == "b64" else wide(e, a)})
    if isinstance(target, Pair):
        _result(e, target.first)
        _result_predicate(e, target.second)
    else:
        _result(e, target)


def active_mask(e: Emitter, i: Instruction) -> None:
    """Translate `activemask`: the lanes that wait at this instruction once no lane of their warp can proceed."""
    _ask(e, i, Operation.ACTIVE_MASK, str((1 << 40) + len(e.resume_labels)), {})
    _result(e, i.operands[0])


def reduce(e: Emitter, i: Instruction) -> None:
    """Translate ``redux.sync.op.type d, a, mask``."""
    target, a, mask = i.operands
    kind = i.types()[-1]
    if kind not in ("u32", "s32", "b32"):
        raise UnsupportedPtxError("redux of floats", i)
    name = next(modifier for modifier in i.modifiers if modifier in (*_REDUCTIONS, "min", "max"))
    operation = _REDUCTIONS.get(name) or Operation[f"REDUX_{name.upper()}_{kind.upper()}"]
    value = e.coerce(e.read(a, "i32"), "i32", "i64", is_signed=kind == "s32")
    _ask(e, i, operation, wide(e, mask), {Thread.A: value})
    _result(e, target)


def elect(e: Emitter, i: Instruction) -> None:
    """Translate ``elect.sync d|p, mask``."""
    target, mask = i.operands
    _ask(e, i, Operation.ELECT, wide(e, mask), {})
    assert isinstance(target, Pair)
    _result(e, target.first)
    _result_predicate(e, target.second)


def barrier(e: Emitter, i: Instruction) -> None:
    """Translate `bar` and `barrier` of warp, cluster or block, including counted, arrive-only and reducing forms."""
    if i.has("warp"):
        _ask(e, i, Operation.WARP_SYNC, wide(e, i.operands[0]), {})
    elif i.has("cluster"):
        cluster_barrier(e, i)
    elif i.has("red"):
        _reducing_barrier(e, i)
    elif i.has("arrive"):
        _wait(e, i, Operation.BARRIER_ARRIVE, wide(e, i.operands[0]), wide(e, i.operands[1]), "0")
    else:
        count = wide(e, i.operands[1]) if len(i.operands) > 1 else "0"
        _wait(e, i, Operation.BARRIER_SYNC, wide(e, i.operands[0]), count, "0")


def trap(e: Emitter, i: Instruction) -> None:
    e.raise_fault(i, FaultKind.TRAP)


def call_runtime(e: Emitter, i: Instruction) -> None:
    """Translate runtime calls: `printf` prints nothing, and a failed assertion is a finding."""
    names = [operand.name for operand in i.operands if isinstance(operand, Symbol)]
    if "__assertfail" in names:
        e.raise_fault(i, FaultKind.ASSERT)


HANDLERS: dict[str, Handler] = {
    "shfl": shuffle,
    "vote": vote,
    "match": match,
    "activemask": active_mask,
    "redux": reduce,
    "elect": elect,
    "bar": barrier,
    "barrier": barrier,
    "trap": trap,
    "brkpt": trap,
    "call": call_runtime,
}


def wide(e: Emitter, operand: Operand) -> str:
    """Return a 32-bit operand as i64."""
    return e.coerce(e.read(operand, "i32"), "i32", "i64")


def _ask(e: Emitter, i: Instruction, operation: Operation, mask: str, values: dict[Thread, str]) -> None:
    """Store the request in the thread's record and yield."""
    if not i.has("sync") and i.opcode in ("shfl", "vote", "match"):
        raise UnsupportedPtxError("a warp instruction without .sync", i)
    for place, value in values.items():
        e.store_thread_field(place, value)
    e.store_thread_field(Thread.OPERATION, str(int(operation)))
    e.store_thread_field(Thread.MASK, mask)
    e.yield_to_scheduler(i, e.live_after_current(), Status.WARP)


def _wait(e: Emitter, i: Instruction, operation: Operation, number: str, count: str, predicate: str) -> None:
    e.store_thread_field(Thread.OPERATION, str(int(operation)))
    e.store_thread_field(Thread.MASK, e.op(f"and i64 {number}, 15"))
    e.store_thread_field(Thread.A, count)
    e.store_thread_field(Thread.B, predicate)
    # Site plus one, for a barrier at which all lanes of a warp must converge.
    is_aligned = i.opcode == "bar" or i.has("aligned")
    e.store_thread_field(Thread.C, str(e.site(Site(i)) + 1 if is_aligned else 0))
    e.yield_to_scheduler(i, e.live_after_current(), Status.BARRIER)


def _reducing_barrier(e: Emitter, i: Instruction) -> None:
    target, number, *rest = i.operands
    count = wide(e, rest[0]) if len(rest) > 1 else "0"
    predicate = e.coerce(e.read(rest[-1], "i1"), "i1", "i64")
    name = next(modifier for modifier in i.modifiers if modifier in _BARRIER_REDUCTIONS)
    _wait(e, i, _BARRIER_REDUCTIONS[name], wide(e, number), count, predicate)
    e.write(target, e.thread_field(Thread.RESULT), "i64")


def _result(e: Emitter, target: Operand) -> None:
    e.write(target, e.thread_field(Thread.RESULT), "i64")


def _result_predicate(e: Emitter, target: Operand) -> None:
    e.write(target, e.thread_field(Thread.RESULT_PREDICATE), "i64")
