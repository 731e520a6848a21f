"""Generates the CUDA C++ source of fused kernels, which load elements into registers, reduce them and store results.

The source also compiles as plain C++, where `run_on_host` does the work of the device's threads. Tests without a GPU
can therefore compare a kernel's arithmetic with NumPy's.

A kernel reduces in the plan's order and rounds after every reduction, as `plan.replay` does, so both are bit-equal.
Float16 and bfloat16 are reduced in float32 and rounded to nearest even after each step. Minimum and maximum return NaN
if either operand is NaN; of +0 and -0 they return what NumPy returns: the left operand for float16, the right one for
all other types. Complex products are computed as in NumPy: real = fma(a.re, b.re, -(a.im b.im)), imaginary =
fma(a.re, b.im, a.im b.re). The option -fmad=false keeps the compiler from fusing any other product and sum. Integers
wrap around, and booleans are 0 or 1.

A kernel accesses memory in the widest words, at most 16 bytes, that the alignment of all its addresses allows. Elements
before the first whole word and after the last whole word are accessed one by one. Source: CUDA C++ Programming Guide,
"Device Memory Accesses" (16-byte accesses must be aligned to 16 bytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpccoll.arrays import get_dtype

THREADS: Final = 256  # per CUDA block
WIDEST: Final = 16  # bytes per access
EDGES: Final = 3  # words of a row after its addresses: elements before, whole units, elements after
OPTIONS: Final = ("-std=c++17", "-fmad=false")
_PARAMETERS: Final = 4096  # most bytes of a kernel's parameters on devices before Hopper
_IN_FLIGHT, _MOST_UNROLLED = 8, 4  # units that a thread loads before it stores: in all, and per address
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
_WORDS: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "Bytes16"}


@dataclass(frozen=True, slots=True)
class FusedChain:
    """The instructions that a kernel runs on each element. Registers are numbered: loads first, then reduces."""

    function: str  # NumPy's name of the reduction; empty if elements are only copied
    dtype: str  # the element type; uint8 if elements are only copied
    loads: int  # number of addresses to load from
    reduces: tuple[tuple[int, int], ...]  # the left and the right register of each reduction
    stores: tuple[int, ...]  # the register that is stored to each output address

    @property
    def words(self) -> int:
        """Number of 64-bit words in a row of the argument table: the addresses of a chain, and EDGES element counts."""
        return self.loads + len(self.stores) + EDGES

    @property
    def most_rows(self) -> int:
        """The largest number of chains (rows of addresses) that one kernel launch can take."""
        return max(_PARAMETERS // (8 * self.words), 1)


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A kernel to compile: runs a chain (fused instructions) on up to `rows` rows, in accesses of `width` bytes.

    Each row holds the addresses that one run of the chain loads from and stores to.
    """

    chain: FusedChain
    width: int
    rows: int

    @property
    def unit(self) -> int:
        """Bytes that a thread loads from an address at a time: one word, or one element if elements are larger."""
        return max(self.width, get_dtype(self.chain.dtype).itemsize)

    @property
    def unrolled(self) -> int:
        """Number of loads of `unit` bytes that a thread makes from each address before its first store."""
        return max(1, min(_MOST_UNROLLED, _IN_FLIGHT // max(self.chain.loads, 1)))


def round_up_rows(chain: FusedChain, wanted: int) -> int:
    """Round a kernel's number of address rows, `wanted`, up to one of a few sizes, so that few kernels are compiled."""
    return min(next(size for size in (1, 8, 64, 512) if wanted <= size), chain.most_rows)


def generate_source(kernel: KernelSpec) -> str:
    """Return the C++ source of a kernel named `fused`; its parameter is an array of rows (the addresses of a chain).

    CUDA block (x, y) works on row y (the addresses of one chain); all blocks with the same y share the row. A row
    consists of 64-bit words: the addresses to load from, the addresses to store to, then three numbers: elements before
    the first whole unit, whole units, and elements after the last whole unit.
    """
    chain = kernel.chain
    small = min(kernel.width, get_dtype(chain.dtype).itemsize)
    types = {"T": _STORED_AS[chain.dtype], "Word": _WORDS[kernel.width], "Small": _WORDS[small]}
    numbers = {
        "UNIT": kernel.unit,
        "UNROLLED": kernel.unrolled,
        "ROWS": kernel.rows,
        "WORDS": chain.words,
        "EDGES": chain.loads + len(chain.stores),
    }
    return "\n".join(
        (
            _PRELUDE,
            *(f"typedef {definition} {name};" for name, definition in types.items()),
            *(f"constexpr int {name} = {value};" for name, value in numbers.items()),
            _reduction(chain),
            _ROW_LOOP.replace("@body@", _body(chain)),
        )
    )


def _body(chain: FusedChain) -> str:
    """Return C++ code to load, reduce and store elements. Loads come first, because stores may change operands."""
    registers = chain.loads + len(chain.reduces)
    lines = [f"    Unit<W, BYTES, U> {', '.join(f'r{i}' for i in range(registers))};"]
    lines += [f"    r{i}.load(row[{i}] + at, stride);" for i in range(chain.loads)]
    lines += [f"    r{chain.loads + i}.reduce(r{left}, r{right});" for i, (left, right) in enumerate(chain.reduces)]
    lines += [f"    r{held}.store(row[{chain.loads + i}] + at, stride);" for i, held in enumerate(chain.stores)]
    return "\n".join(lines)


def _reduction(chain: FusedChain) -> str:
    """Return the C++ function `reduced`, which reduces two elements."""
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
    return f"{convert}\nON_DEVICE T reduced(T a, T b) {{ {body} }}"


def _arithmetic(function: str, left: str, right: str, *, ties_left: bool) -> str:
    """Return the C++ expression that reduces the floats `left` and `right`; min and max yield variable `a` or `b`.

    `ties_left` is whether min and max yield the left one of two equal operands.
    """
    if function in _SIGNS:
        return f"{left} {_SIGNS[function]} {right}"
    sign = _ORDER[function] + ("=" if ties_left else "")
    return f"({left} {sign} {right} || {left} != {left}) ? a : b"


def _half(chain: FusedChain) -> str:
    """Return the C++ function `reduced` for float16 or bfloat16, which computes in float32."""
    ordered = chain.function in _ORDER
    value = _arithmetic(chain.function, "x", "y", ties_left=chain.dtype == "float16")
    return f"float x = to_float(a), y = to_float(b); return {value if ordered else f'from_float({value})'};"


def _integer(chain: FusedChain) -> str:
    """Return the C++ function `reduced` for integers and booleans."""
    if chain.function in _ORDER:
        return f"return a {_ORDER[chain.function]} b ? a : b;"
    sign = _SIGNS.get(chain.function) or _BITS[chain.function]
    # Arithmetic in an unsigned type at least as wide as int wraps on overflow; signed overflow is undefined.
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
ON_DEVICE float to_float(T x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
ON_DEVICE T from_float(float x) { T y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
#else
ON_DEVICE float to_float(T x) { union { T bits; _Float16 value; } y; y.bits = x; return (float)y.value; }
ON_DEVICE T from_float(float x) { union { T bits; _Float16 value; } y; y.value = (_Float16)x; return y.bits; }
#endif""",
    "bfloat16": """
union Float { unsigned int bits; float value; };
ON_DEVICE float to_float(T x) { Float y; y.bits = (unsigned int)x << 16; return y.value; }
ON_DEVICE T from_float(float x) {
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
struct alignas(16) Bytes16 { unsigned int a, b, c, d; };
template <class W> ON_DEVICE W load_word(u64 from) { return *(const W*)from; }
template <class W> ON_DEVICE void store_word(u64 to, W word) { *(W*)to = word; }
#if defined(__CUDA_ARCH__)  // assembly, because the compiler splits wide words when it knows their contents
template <> ON_DEVICE Bytes16 load_word<Bytes16>(u64 from) {
    Bytes16 x;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.a), "=r"(x.b), "=r"(x.c), "=r"(x.d) : "l"(from));
    return x;
}
template <> ON_DEVICE void store_word<Bytes16>(u64 to, Bytes16 x) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 : : "l"(to), "r"(x.a), "r"(x.b), "r"(x.c), "r"(x.d) : "memory");
}
template <> ON_DEVICE u64 load_word<u64>(u64 from) {
    u64 x;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}
template <> ON_DEVICE void store_word<u64>(u64 to, u64 x) {
    asm volatile("st.global.u64 [%0], %1;" : : "l"(to), "l"(x) : "memory");
}
#endif"""
_ROW_LOOP: Final = """
template <class W, int BYTES, int U> struct Unit {
    static constexpr int COUNT = BYTES / (int)sizeof(W), ELEMENTS = BYTES / (int)sizeof(T);
    union { W words[COUNT]; T elements[ELEMENTS]; } units[U];

    ON_DEVICE void load(u64 from, u64 stride) {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int w = 0; w < COUNT; w++) units[u].words[w] = load_word<W>(from + u * stride + w * sizeof(W));
    }
    ON_DEVICE void reduce(const Unit& a, const Unit& b) {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int e = 0; e < ELEMENTS; e++)
                units[u].elements[e] = reduced(a.units[u].elements[e], b.units[u].elements[e]);
    }
    ON_DEVICE void store(u64 to, u64 stride) const {
        UNROLL for (int u = 0; u < U; u++)
            UNROLL for (int w = 0; w < COUNT; w++) store_word<W>(to + u * stride + w * sizeof(W), units[u].words[w]);
    }
};

template <class W, int BYTES, int U> ON_DEVICE void process_units(const u64* row, u64 at, u64 stride) {
@body@
}

ON_DEVICE void process_row(const u64* row, u64 thread, u64 threads) {
    const u64 head = row[EDGES], units = row[EDGES + 1], tail = row[EDGES + 2];
    const u64 begin = head * sizeof(T), end = begin + units * UNIT;
    u64 at = thread;
    for (; at + (UNROLLED - 1) * threads < units; at += UNROLLED * threads)
        process_units<Word, UNIT, UNROLLED>(row, begin + at * UNIT, threads * UNIT);
    for (; at < units; at += threads) process_units<Word, UNIT, 1>(row, begin + at * UNIT, 0);
    if (thread < head) process_units<Small, sizeof(T), 1>(row, thread * sizeof(T), 0);
    if (thread < tail) process_units<Small, sizeof(T), 1>(row, end + thread * sizeof(T), 0);
}

struct Rows { u64 word[ROWS][WORDS]; };
#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
extern "C" __global__ void __launch_bounds__(256) fused(const __grid_constant__ Rows rows) {
    process_row(rows.word[blockIdx.y], (u64)blockIdx.x * blockDim.x + threadIdx.x, (u64)gridDim.x * blockDim.x);
}
#else
extern "C" void run_on_host(const Rows* rows, int count, u64 threads) {
    for (int y = 0; y < count; y++)
        for (u64 thread = 0; thread < threads; thread++) process_row(rows->word[y], thread, threads);
}
#endif"""
