"""The text of fused kernels: one for each chain of joins, whose loads, joins and stores are all done in registers.

The text is CUDA C++, and plain C++ as well: there `run_on_host` does what the threads of a device would do, so that
its arithmetic can be held against NumPy where no GPU is.

Bits: a chain is the plan's own order of reduction, and its results are those of replay, which rounds after every join.
Float16 and bfloat16 are joined in float32 and rounded to nearest even at once; with two operands that is accumulating
in float32, with more it is not, and replay decides. Minimum and maximum take NaN from either side; of +0 and -0 they
return what NumPy does: the left operand of float16, the right one of all others. Complex products are NumPy's
real = fma(a.re, b.re, -(a.im b.im)), imaginary = fma(a.re, b.im, a.im b.re), and nothing else may be contracted.
Integers wrap, and truth values are 0 or 1.

Memory: words as wide as all places of a row allow, 16 bytes unless some lie askew to each other; single elements
before the first whole word and after the last.
Source: CUDA C++ Programming Guide, "Device Memory Accesses" (16-byte accesses must be aligned to 16 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpccoll.runtime.arrays import get_dtype

THREADS: Final = 256  # of a block
WIDEST: Final = 16  # bytes of an access
EDGES: Final = 3  # words of a row besides its addresses: elements before, whole blocks, elements after
OPTIONS: Final = ("-std=c++17", "-fmad=false")
_PARAMETERS: Final = 4096  # bytes of a kernel's parameters: all that devices before Hopper take
_IN_FLIGHT, _MOST_UNROLLED = 8, 4  # blocks that a thread loads before it stores; how many of each place at most
_STORED_AS: Final = {
    "bool": "unsigned char",
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
    "float16": "unsigned short",
    "bfloat16": "unsigned short",
    "float32": "float",
    "float64": "double",
    "complex64": "Pair<float>",
    "complex128": "Pair<double>",
}
_WORDS: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "Sixteen"}


@dataclass(frozen=True, slots=True)
class Chain:
    """What is done to every element, in registers: first the loads, then a join each, numbered in that order.

    Args:
        function: NumPy's name of what joins; empty where elements are only moved.
        dtype: of the elements; uint8 where they are only moved.
        loads: how many places are loaded.
        joins: the two registers that each join combines, left and right.
        stores: which register goes to each of the places that are stored to.
    """

    function: str
    dtype: str
    loads: int
    joins: tuple[tuple[int, int], ...]
    stores: tuple[int, ...]

    @property
    def words(self) -> int:
        """64-bit words of a row: the address of each place, and its edges."""
        return self.loads + len(self.stores) + EDGES

    @property
    def most_rows(self) -> int:
        """Rows that one launch can take."""
        return max(_PARAMETERS // (8 * self.words), 1)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A chain compiled for accesses of `width` bytes and up to `rows` rows a launch."""

    chain: Chain
    width: int
    rows: int

    @property
    def block(self) -> int:
        """Bytes that a thread takes of a place at once: a word, or an element that is larger."""
        return max(self.width, get_dtype(self.chain.dtype).itemsize)

    @property
    def unrolled(self) -> int:
        """Blocks of each place that a thread loads before it stores."""
        return max(1, min(_MOST_UNROLLED, _IN_FLIGHT // max(self.chain.loads, 1)))


def rows_for(chain: Chain, wanted: int) -> int:
    """Return for how many rows to compile: few sizes, so that few kernels are made."""
    return min(next(size for size in (1, 8, 64, 512) if wanted <= size), chain.most_rows)


def source(kernel: Kernel) -> str:
    """Return the text of a kernel named `fused`, which takes its rows by value.

    Block y of the grid works on row y; the threads of its blocks x share the row. A row is 64-bit words: the addresses
    that are loaded, those that are stored to, then elements before the first whole block, whole blocks, elements after.
    """
    chain = kernel.chain
    small = min(kernel.width, get_dtype(chain.dtype).itemsize)
    heads = {
        "T": _STORED_AS[chain.dtype],
        "Word": _WORDS[kernel.width],
        "Small": _WORDS[small],
    }
    numbers = {
        "BLOCK": kernel.block,
        "UNROLLED": kernel.unrolled,
        "ROWS": kernel.rows,
        "WORDS": chain.words,
        "EDGES": chain.loads + len(chain.stores),
    }
    return "\n".join(
        (
            _PRELUDE,
            *(f"typedef {what} {name};" for name, what in heads.items()),
            *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
            _join(chain),
            _WALK.replace("@body@", _body(chain)),
        )
    )


def _body(chain: Chain) -> str:
    """The loads, joins and stores of UNROLLED blocks: all loads come first, since a store may go where one was from."""
    registers = chain.loads + len(chain.joins)
    lines = [f"    Block<W, BYTES, U> {', '.join(f'r{i}' for i in range(registers))};"]
    lines += [f"    r{i}.load(row[{i}] + at, stride);" for i in range(chain.loads)]
    lines += [f"    r{chain.loads + i}.join(r{left}, r{right});" for i, (left, right) in enumerate(chain.joins)]
    lines += [f"    r{held}.store(row[{chain.loads + i}] + at, stride);" for i, held in enumerate(chain.stores)]
    return "\n".join(lines)


def _join(chain: Chain) -> str:
    kind = get_dtype(chain.dtype).kind
    if not chain.function:
        body = "return a;"
    elif kind == "b":
        body = f"return {_LOGICAL[chain.function]};"
    elif kind == "c":
        body = _COMPLEX[chain.function]
    elif kind == "i":
        body = _integer(chain)
    elif chain.dtype in _HALVES:
        body = _half(chain)
    else:
        body = f"return {_arithmetic(chain.function, 'a', 'b', ties_left=False)};"
    convert = _HALVES.get(chain.dtype, "")
    return f"{convert}\nON_DEVICE T joined(T a, T b) {{ {body} }}"


def _arithmetic(function: str, left: str, right: str, *, ties_left: bool) -> str:
    """Floats; `left` and `right` are compared or combined as they are."""
    if function in _SIGNS:
        return f"{left} {_SIGNS[function]} {right}"
    sign = _ORDER[function] + ("=" if ties_left else "")
    return f"({left} {sign} {right} || {left} != {left}) ? a : b"


def _half(chain: Chain) -> str:
    ordered = chain.function in _ORDER
    value = _arithmetic(chain.function, "x", "y", ties_left=chain.dtype == "float16")
    return f"float x = wide(a), y = wide(b); return {value if ordered else f'narrow({value})'};"


def _integer(chain: Chain) -> str:
    if chain.function in _ORDER:
        return f"return a {_ORDER[chain.function]} b ? a : b;"
    sign = _SIGNS.get(chain.function) or _BITS[chain.function]
    # Unsigned and at least as wide as int: what overflows wraps, and is no undefined behaviour.
    wide = "unsigned long long" if get_dtype(chain.dtype).itemsize == 8 else "unsigned int"
    return f"return (T)(({wide})a {sign} ({wide})b);"


_SIGNS: Final = {"add": "+", "multiply": "*"}
_ORDER: Final = {"minimum": "<", "maximum": ">"}
_BITS: Final = {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
_LOGICAL: Final = {
    "minimum": "a && b",
    "maximum": "a || b",
    "bitwise_and": "a && b",
    "bitwise_or": "a || b",
    "bitwise_xor": "!a != !b",
}
_COMPLEX: Final = {
    "add": "return T{a.re + b.re, a.im + b.im};",
    "multiply": "return T{fma_of(a.re, b.re, -(a.im * b.im)), fma_of(a.re, b.im, a.im * b.re)};",
}
_HALVES: Final = {
    "float16": """
#if defined(__CUDA_ARCH__)
ON_DEVICE float wide(T x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
ON_DEVICE T narrow(float x) { T y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#else
ON_DEVICE float wide(T x) { union { T bits; _Float16 value; } y; y.bits = x; return (float)y.value; }
ON_DEVICE T narrow(float x) { union { T bits; _Float16 value; } y; y.value = (_Float16)x; return y.bits; }
#endif""",
    "bfloat16": """
union Float { unsigned int bits; float value; };
ON_DEVICE float wide(T x) { Float y; y.bits = (unsigned int)x << 16; return y.value; }
ON_DEVICE T narrow(float x) {
    Float y;
    y.value = x;
    if (x != x) return (T)(y.bits >> 16 | 0x40);
    return (T)((y.bits + 0x7fff + (y.bits >> 16 & 1)) >> 16);
}""",
}
_PRELUDE: Final = """
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define ON_DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")
ON_DEVICE float fma_of(float a, float b, float c) { return __fmaf_rn(a, b, c); }
ON_DEVICE double fma_of(double a, double b, double c) { return __fma_rn(a, b, c); }
#else
#define ON_DEVICE inline
#define UNROLL
ON_DEVICE float fma_of(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ON_DEVICE double fma_of(double a, double b, double c) { return __builtin_fma(a, b, c); }
#endif
typedef unsigned long long u64;
template <class R> struct Pair { R re, im; };
struct alignas(16) Sixteen { unsigned int a, b, c, d; };
template <class W> ON_DEVICE W fetched(u64 from) { return *(const W*)from; }
template <class W> ON_DEVICE void put(u64 to, W word) { *(W*)to = word; }
#if defined(__CUDA_ARCH__)  // by hand, since the compiler takes wide words apart when it knows what is in them
template <> ON_DEVICE Sixteen fetched<Sixteen>(u64 from) {
    Sixteen x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.a), "=r"(x.b), "=r"(x.c), "=r"(x.d) : "l"(from));
    return x;
}
template <> ON_DEVICE void put<Sixteen>(u64 to, Sixteen x) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "l"(to), "r"(x.a), "r"(x.b), "r"(x.c), "r"(x.d) : "memory");
}
template <> ON_DEVICE u64 fetched<u64>(u64 from) {
    u64 x;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}
template <> ON_DEVICE void put<u64>(u64 to, u64 x) {
    asm volatile("st.global.u64 [%0], %1;" : : "l"(to), "l"(x) : "memory");
}
#endif"""
_WALK: Final = """
template <class W, int BYTES, int U> struct Block {
    static constexpr int COUNT = BYTES / (int)sizeof(W), LANES = BYTES / (int)sizeof(T);
    union { W words[COUNT]; T lanes[LANES]; } held[U];

    ON_DEVICE void load(u64 from, u64 stride) {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int w = 0; w < COUNT; w++) held[u].words[w] = fetched<W>(from + u * stride + w * sizeof(W));
    }
    ON_DEVICE void join(const Block& a, const Block& b) {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int l = 0; l < LANES; l++) held[u].lanes[l] = joined(a.held[u].lanes[l], b.held[u].lanes[l]);
    }
    ON_DEVICE void store(u64 to, u64 stride) const {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int w = 0; w < COUNT; w++) put<W>(to + u * stride + w * sizeof(W), held[u].words[w]);
    }
};

template <class W, int BYTES, int U> ON_DEVICE void move(const u64* row, u64 at, u64 stride) {
@body@
}

ON_DEVICE void walk(const u64* row, u64 thread, u64 threads) {
    const u64 head = row[EDGES], blocks = row[EDGES + 1], tail = row[EDGES + 2];
    const u64 begin = head * sizeof(T), end = begin + blocks * BLOCK;
    u64 at = thread;
    for (; at + (UNROLLED - 1) * threads < blocks; at += UNROLLED * threads)
        move<Word, BLOCK, UNROLLED>(row, begin + at * BLOCK, threads * BLOCK);
    for (; at < blocks; at += threads) move<Word, BLOCK, 1>(row, begin + at * BLOCK, 0);
    if (thread < head) move<Small, sizeof(T), 1>(row, thread * sizeof(T), 0);
    if (thread < tail) move<Small, sizeof(T), 1>(row, end + thread * sizeof(T), 0);
}

struct Rows { u64 word[ROWS][WORDS]; };
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
extern "C" __global__ void __launch_bounds__(256) fused(const __grid_constant__ Rows rows) {
    walk(rows.word[blockIdx.y], (u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}
#else
extern "C" void run_on_host(const Rows* rows, int count, u64 threads) {
    for (int y = 0; y < count; y++)
        for (u64 thread = 0; thread < threads; thread++) walk(rows->word[y], thread, threads);
}
#endif"""
