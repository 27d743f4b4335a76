"""The innermost loop of every product: a few rows times a few blocks of sixteen columns.

Emitted as LLVM vector code, because numba has no vector types. Weights are packed in blocks of 16
columns whose inputs lie in pairs, as the processor's bfloat16 dot product wants them (see
`formats`). A sum runs over the inputs in their order whatever the number of rows and blocks, so a
row's result does not depend on the rows beside it. Where the processor has no such dot product,
the same loop multiplies float32.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from server.engine.native.formats import GROUP, LANES

GROUP_PAIRS = GROUP // 2  # pairs of inputs that share a scale in the 4-bit format

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32 = ir.FloatType()
_FLOATS, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)
_ZEROS = ir.Constant(_FLOATS, [0.0] * LANES)
_HIGH_HALF = 0xFFFF0000
_AHEAD = 1024  # bytes
_FETCHING_ROWS = 2  # at most


class _BFloat(ir.types.Type):  # type: ignore[misc]
    """LLVM's bfloat, which llvmlite does not name."""

    null = "0.0"

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)
_WORDS = ir.VectorType(_I16, 2 * LANES)


def has_pair_product() -> bool:
    """Whether this processor multiplies pairs of bfloat16 by itself (AVX512-BF16)."""
    features = llvm.get_host_cpu_features()
    return bool(features.get("avx512bf16") and features.get("avx512bw"))


def _vector(value: float, kind: ir.VectorType = _INTS) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


def _function(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, arguments), name)


@dataclass(frozen=True, slots=True)
class _Emitter:
    """Emits instructions.

    Attributes:
        builder: llvmlite's.
        native: whether the processor has the pair product.
        fetches: whether to ask for memory ahead: worth its instructions where few rows share
            what is read.
    """

    builder: Any
    native: bool
    fetches: bool

    def load(self, address: Any, kind: Any, align: int) -> Any:
        value = self.builder.load(self.builder.inttoptr(address, kind.as_pointer()))
        value.align = align
        return value

    def at(self, address: Any, index: Any, size: int) -> Any:
        return self.builder.add(address, self.builder.mul(index, ir.Constant(_I64, size)))

    def stream(self, address: Any, kind: Any, align: int) -> Any:
        """Load what is read once, from one end to the other."""
        if self.fetches:
            b, pointer = self.builder, _I8.as_pointer()
            hint = _function(b, "llvm.prefetch.p0", ir.VoidType(), [pointer, _I32, _I32, _I32])
            ahead = b.inttoptr(b.add(address, ir.Constant(_I64, _AHEAD)), pointer)
            b.call(hint, [ahead, *(ir.Constant(_I32, each) for each in (0, 3, 1))])
        return self.load(address, kind, align)

    def spread(self, value: Any) -> Any:
        """A scalar in every lane."""
        kind = ir.VectorType(value.type, LANES)
        blank = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(blank, value, ir.Constant(_I32, 0))
        return self.builder.shuffle_vector(first, blank, _vector(0))

    def floats(self, pairs: Any) -> tuple[Any, Any]:
        """Pairs of bfloat16 in 32 bits as their first and their second numbers."""
        b = self.builder
        first = b.bitcast(b.shl(pairs, _vector(16)), _FLOATS)
        return first, b.bitcast(b.and_(pairs, _vector(_HIGH_HALF)), _FLOATS)

    def paired(self, first: Any, second: Any) -> Any:
        """Two vectors of numbers that bfloat16 holds exactly, as pairs."""
        b = self.builder
        low = b.lshr(b.bitcast(first, _INTS), _vector(16))
        return b.or_(low, b.and_(b.bitcast(second, _INTS), _vector(_HIGH_HALF)))

    def weights(self, pairs: Any) -> Any:
        """Pairs in the form that `multiply_add` takes."""
        return pairs if self.native else self.floats(pairs)

    def weights_of_floats(self, first: Any, second: Any) -> Any:
        return self.paired(first, second) if self.native else (first, second)

    def multiply_add(self, total: Any, weights: Any, inputs: Any) -> Any:
        """The total plus both products of every lane."""
        b = self.builder
        if self.native:
            dot = _function(
                b, "llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, [_FLOATS, _PAIRS, _PAIRS]
            )
            return b.call(dot, [total, b.bitcast(weights, _PAIRS), b.bitcast(inputs, _PAIRS)])
        fma = _function(b, "llvm.fmuladd.v16f32", _FLOATS, [_FLOATS] * 3)
        for weight, number in zip(weights, self.floats(inputs), strict=True):
            total = b.call(fma, [weight, number, total])
        return total

    @contextmanager
    def loop(self, count: Any, carried: list[Any]) -> Iterator[tuple[Any, list[Any], list[Any]]]:
        """A loop of at least one turn: yields its index, the carried values, a list to fill.

        Afterwards the filled list holds the values after the last turn.
        """
        b = self.builder
        before = b.basic_block
        body, after = b.append_basic_block("loop"), b.append_basic_block("after")
        b.branch(body)
        b.position_at_end(body)
        index, phis = b.phi(_I64), [b.phi(value.type) for value in carried]
        index.add_incoming(ir.Constant(_I64, 0), before)
        for phi, value in zip(phis, carried, strict=True):
            phi.add_incoming(value, before)
        updated: list[Any] = []
        yield index, phis, updated
        following = b.add(index, ir.Constant(_I64, 1))
        index.add_incoming(following, b.basic_block)
        for phi, value in zip(phis, updated, strict=True):
            phi.add_incoming(value, b.basic_block)
        b.cbranch(b.icmp_signed("<", following, count), body, after)
        b.position_at_end(after)


# --- how the weights of one pair of inputs are read: (emitter, block address, pair index) ---


def _read_bf16(emit: _Emitter, block: Any, pair: Any) -> Any:
    return emit.weights(emit.stream(emit.at(block, pair, 4 * LANES), _INTS, 64))


def _read_int8(emit: _Emitter, block: Any, pair: Any) -> Any:
    halves = []
    start = emit.at(block, pair, 2 * LANES)
    for half in range(2):
        address = emit.builder.add(start, ir.Constant(_I64, half * LANES))
        packed = emit.stream(address, ir.VectorType(_I8, LANES), 16)
        halves.append(emit.builder.sitofp(emit.builder.sext(packed, _INTS), _FLOATS))
    return emit.weights_of_floats(*halves)


def _read_int4(emit: _Emitter, block: Any, pair: Any) -> Any:
    b = emit.builder
    packed = emit.stream(emit.at(block, pair, LANES), ir.VectorType(_I8, LANES), 16)
    codes = b.zext(packed, _INTS)
    if emit.native:
        # both codes of a byte index a table of bfloat16; it ignores all bits but the last five,
        # and repeats itself after sixteen
        words = b.bitcast(b.or_(codes, b.shl(codes, _vector(12))), _WORDS)
        look_up = _function(b, "llvm.x86.avx512.permvar.hi.512", _WORDS, [_WORDS, _WORDS])
        return b.bitcast(b.call(look_up, [_code_table(), words]), _INTS)
    numbers = (b.and_(codes, _vector(15)), b.lshr(codes, _vector(4)))
    return tuple(b.sitofp(b.sub(each, _vector(8)), _FLOATS) for each in numbers)


def _code_table() -> ir.Constant:
    """bfloat16 of -8 to 7, twice."""
    words = [struct.unpack("<I", struct.pack("<f", code - 8))[0] >> 16 for code in range(16)]
    return ir.Constant(_WORDS, words * 2)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What one emitted function computes."""

    rows: int
    blocks: int
    read: Callable[[_Emitter, Any, Any], Any]


def _turn(
    emit: _Emitter,
    shape: _Shape,
    totals: list[Any],
    blocks: list[Any],
    pairs: tuple[Any, Any],
    x: Any,
) -> list[Any]:
    """One pair of inputs: ``pairs`` is its number within the blocks and within a row."""
    in_block, address = pairs[0], pairs[1]
    weights = [shape.read(emit, block, in_block) for block in blocks]
    updated = []
    for row in range(shape.rows):
        start = emit.builder.add(address, emit.builder.mul(x, ir.Constant(_I64, row)))
        inputs = emit.spread(emit.load(start, _I32, 4))
        for column, each in enumerate(weights):
            total = totals[row * shape.blocks + column]
            updated.append(emit.multiply_add(total, each, inputs))
    return updated


def _emit_plain(emit: _Emitter, shape: _Shape, args: tuple[Any, ...]) -> None:
    """Out = (out +) rows x blocks, the sums as they are."""
    table, x, x_stride, pairs, out, out_stride, keep = args
    b = emit.builder
    blocks = _blocks(emit, shape, table)
    places = _places(emit, shape, out, out_stride)
    is_kept = b.icmp_signed("!=", keep, ir.Constant(_I64, 0))
    zeros = [_ZEROS] * len(places)
    first = _kept(emit, is_kept, places, zeros)
    with emit.loop(pairs, first) as (index, totals, updated):
        address = emit.at(x, index, 4)
        updated.extend(_turn(emit, shape, totals, blocks, (index, address), x_stride))
    _store(emit, places, updated)


def _kept(emit: _Emitter, is_kept: Any, places: list[Any], zeros: list[Any]) -> list[Any]:
    b = emit.builder
    before = b.basic_block
    load, join = b.append_basic_block("keep"), b.append_basic_block("start")
    b.cbranch(is_kept, load, join)
    b.position_at_end(load)
    loaded = [emit.load(place, _FLOATS, 4) for place in places]
    b.branch(join)
    b.position_at_end(join)
    first = []
    for zero, value in zip(zeros, loaded, strict=True):
        phi = b.phi(_FLOATS)
        phi.add_incoming(zero, before)
        phi.add_incoming(value, load)
        first.append(phi)
    return first


def _emit_int8(emit: _Emitter, shape: _Shape, args: tuple[Any, ...]) -> None:
    """Out = rows x blocks, each column times its scale; the scales lie behind a block's numbers."""
    table, x, x_stride, pairs, out, out_stride, _ = args
    blocks = _blocks(emit, shape, table)
    places = _places(emit, shape, out, out_stride)
    zeros = [_ZEROS] * len(places)
    with emit.loop(pairs, zeros) as (index, totals, updated):
        address = emit.at(x, index, 4)
        updated.extend(_turn(emit, shape, totals, blocks, (index, address), x_stride))
    scales = [emit.load(emit.at(block, pairs, 2 * LANES), _FLOATS, 16) for block in blocks]
    scaled = [
        emit.builder.fmul(total, scales[number % shape.blocks])
        for number, total in enumerate(updated)
    ]
    _store(emit, places, scaled)


def _emit_int4(emit: _Emitter, shape: _Shape, args: tuple[Any, ...]) -> None:
    """Out = rows x blocks; every group of inputs has scales of its own, before its codes."""
    table, x, x_stride, pairs, out, out_stride, _ = args
    b = emit.builder
    blocks = _blocks(emit, shape, table)
    places = _places(emit, shape, out, out_stride)
    zeros = [_ZEROS] * len(places)
    groups = b.udiv(pairs, ir.Constant(_I64, GROUP_PAIRS))
    size = GROUP_PAIRS * LANES + 2 * LANES
    fma = _function(b, "llvm.fmuladd.v16f32", _FLOATS, [_FLOATS] * 3)
    with emit.loop(groups, zeros) as (group, totals, updated):
        starts = [emit.at(block, group, size) for block in blocks]
        codes = [b.add(start, ir.Constant(_I64, 2 * LANES)) for start in starts]
        begin = emit.at(x, group, 4 * GROUP_PAIRS)
        with emit.loop(ir.Constant(_I64, GROUP_PAIRS), zeros) as (index, parts, sums):
            address = emit.at(begin, index, 4)
            sums.extend(_turn(emit, shape, parts, codes, (index, address), x_stride))
        scales = [_bf16_scales(emit, start) for start in starts]
        for number, (total, part) in enumerate(zip(totals, sums, strict=True)):
            updated.append(b.call(fma, [part, scales[number % shape.blocks], total]))
    _store(emit, places, updated)


def _bf16_scales(emit: _Emitter, address: Any) -> Any:
    words = emit.load(address, ir.VectorType(_I16, LANES), 16)
    return emit.builder.bitcast(
        emit.builder.shl(emit.builder.zext(words, _INTS), _vector(16)), _FLOATS
    )


def _blocks(emit: _Emitter, shape: _Shape, table: Any) -> list[Any]:
    """The blocks' addresses, read from the table."""
    return [
        emit.load(emit.at(table, ir.Constant(_I64, i), 8), _I64, 8) for i in range(shape.blocks)
    ]


def _places(emit: _Emitter, shape: _Shape, out: Any, stride: Any) -> list[Any]:
    b = emit.builder
    return [
        b.add(
            b.add(out, b.mul(stride, ir.Constant(_I64, row))), ir.Constant(_I64, 4 * LANES * block)
        )
        for row in range(shape.rows)
        for block in range(shape.blocks)
    ]


def _store(emit: _Emitter, places: list[Any], totals: list[Any]) -> None:
    for place, total in zip(places, totals, strict=True):
        stored = emit.builder.store(total, emit.builder.inttoptr(place, _FLOATS.as_pointer()))
        stored.align = 4


_EMITTERS = {
    "bf16": (_emit_plain, _read_bf16),
    "int8": (_emit_int8, _read_int8),
    "int4": (_emit_int4, _read_int4),
}


def make_tile(form: str, rows: int, blocks: int, *, native: bool | None = None) -> Any:
    """A function for compiled code that multiplies ``rows`` rows with ``blocks`` blocks.

    Args:
        form: ``"bf16"``, ``"int8"`` or ``"int4"``, how the blocks are packed.
        rows, blocks: how many of each; their product may take at most 24 vector registers.
        native: use the processor's pair product; found out when left out.

    The function takes int64s: the address of a table with the blocks' addresses; the address and
    row stride in bytes of the bfloat16 inputs; the number of input pairs; the address and row
    stride of the float32 output; and whether to add to what is there (bf16 only).
    """
    is_native = has_pair_product() if native is None else native
    body, read = _EMITTERS[form]
    shape = _Shape(rows, blocks, read)

    @intrinsic
    def tile(
        typing_context: Any,
        table: Any,
        x: Any,
        x_stride: Any,
        pairs: Any,
        out: Any,
        out_stride: Any,
        keep: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            body(_Emitter(builder, is_native, rows <= _FETCHING_ROWS), shape, args)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return tile
