"""What numba has no words for: memory by address, atomics, number formats bit by bit.

Addresses are int64. Callers own the memory and its alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from server.engine.native.compiling import compiled

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_WORD = 8  # bytes of an int64

# resolved by name in the process, so that compiled code can be kept on disk
sched_yield = types.ExternalFunction("sched_yield", types.int32())
sem_wait = types.ExternalFunction("sem_wait", types.int32(types.int64))
sem_post = types.ExternalFunction("sem_post", types.int32(types.int64))


def _pointer(builder: Any, address: Any, pointee: Any) -> Any:
    return builder.inttoptr(address, pointee.as_pointer())


def _pointer_to(numba_type: Any, llvm_type: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _pointer(builder, args[0], llvm_type)

        return types.CPointer(numba_type)(types.int64), generate

    return pointer


# address -> pointer, for numba's carray
bf16_pointer = _pointer_to(types.uint16, _I16)
float_pointer = _pointer_to(types.float32, ir.FloatType())
int_pointer = _pointer_to(types.int64, _I64)


@intrinsic
def float_of_bits(typing_context: Any, bits: Any) -> Any:
    """uint32 -> the float32 with these bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def bits_of_float(typing_context: Any, number: Any) -> Any:
    """float32 -> its bits as uint32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _I32)

    return types.uint32(types.float32), generate


@compiled(inline="always")
def widen(word: Any) -> Any:
    """bfloat16 (as uint16) -> float32."""
    return float_of_bits(types.uint32(types.uint32(word) << types.uint32(16)))


@compiled(inline="always")
def narrow(number: Any) -> Any:
    """float32 -> the nearest bfloat16 (as uint16), ties to even; NaN stays NaN."""
    bits = bits_of_float(number)
    odd = types.uint32((bits >> types.uint32(16)) & types.uint32(1))
    rounded = types.uint32(bits + types.uint32(0x7FFF) + odd)
    kept = rounded if number == number else types.uint32(bits | types.uint32(0x400000))  # noqa: PLR0124
    return types.uint16(kept >> types.uint32(16))


@intrinsic
def load_now(typing_context: Any, address: Any) -> Any:
    """The int64 at an address, as other threads have left it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(_pointer(builder, args[0], _I64), "acquire", _WORD)

    return types.int64(types.int64), generate


@intrinsic
def store_now(typing_context: Any, address: Any, value: Any) -> Any:
    """Publish an int64 and everything written before it."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0], _I64), "release", _WORD)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _exchange(operation: str) -> Any:
    @intrinsic
    def atomic(typing_context: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(builder, args[0], _I64)
            return builder.atomic_rmw(operation, pointer, args[1], "seq_cst")

        return types.int64(types.int64, types.int64), generate

    return atomic


add_now = _exchange("add")  # returns what was there before
swap_now = _exchange("xchg")


@intrinsic
def pause(typing_context: Any) -> Any:
    """Tell the core that this thread waits for another one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if "x86_64" in builder.module.triple:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            known = builder.module.globals.get(name)
            builder.call(known or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def memory(typing_context: Any, address: Any) -> Any:
    """Address -> untyped pointer, for `numba.carray` with a dtype."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _pointer(builder, args[0], ir.IntType(8))

    return types.voidptr(types.int64), generate
