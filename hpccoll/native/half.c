#include "half.h"

#include <stdint.h>
#include <string.h>

// Functions that a compiler vectorises. GCC on x86 also makes versions for AVX2 and AVX-512, and selects one when the
// library is loaded; sanitizers cannot run that selection.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && !defined(HPCCOLL_SANITIZED)
#define VECTORIZED __attribute__((optimize("O3"), target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED
#endif

enum { BLOCK = 256 };  // elements that are widened at a time: 3 KiB of stack

static inline float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float widen_bfloat16(uint16_t half) { return as_float((uint32_t)half << 16); }

static inline uint16_t round_bfloat16(float value) {
    uint32_t bits = as_bits(value), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

// Source of both conversions of float16: Giesen, "Half to float done quick" (2012); without branches.
static inline float widen_float16(uint16_t half) {
    uint32_t magnitude = half & 0x7fff, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t scaled = as_bits(as_float(magnitude << 13) * 0x1p112f);  // also right for subnormal numbers
    uint32_t special = magnitude << 13 | 0x7f800000;                  // infinity and NaN
    return as_float((magnitude >= 0x7c00 ? special : scaled) | sign);
}

static inline uint16_t round_float16(float value) {
    uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000;  // the addition rounds
    uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
    result = magnitude >= 0x47800000 ? 0x7c00 : result;
    result = magnitude > 0x7f800000 ? 0x7e00 : result;
    return (uint16_t)(result | sign);
}

// Of two equal zeros, NumPy's float16 returns the left one, and ml_dtypes' bfloat16 the right one. The first NaN wins.
#define MINIMUM_LEFT(a, b) ((a) <= (b) || (a) != (a) ? (a) : (b))
#define MAXIMUM_LEFT(a, b) ((a) >= (b) || (a) != (a) ? (a) : (b))
#define MINIMUM_RIGHT(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAXIMUM_RIGHT(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define SUM(a, b) ((a) + (b))
#define PRODUCT(a, b) ((a) * (b))
#define QUOTIENT(a, b) ((a) / (b))

// One function per type and operation, so that each inner loop is vectorised. The operands are widened to `wide` first,
// because `out` may be an operand.
#define DEFINE(name, type, expression)                                                                                 \
    VECTORIZED static void name(const uint16_t *left, const uint16_t *right, int is_array, uint16_t *out,              \
                                size_t count) {                                                                        \
        for (size_t start = 0; start < count; start += BLOCK) {                                                        \
            size_t length = count - start < BLOCK ? count - start : BLOCK;                                             \
            float wide[BLOCK], other[BLOCK];                                                                           \
            for (size_t i = 0; i < length; i++) wide[i] = widen_##type(left[start + i]);                               \
            for (size_t i = 0; i < length; i++) other[i] = widen_##type(right[is_array ? start + i : 0]);              \
            for (size_t i = 0; i < length; i++) {                                                                      \
                float a = wide[i], b = other[i];                                                                       \
                out[start + i] = round_##type(expression(a, b));                                                       \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE(add_float16, float16, SUM)
DEFINE(multiply_float16, float16, PRODUCT)
DEFINE(minimum_float16, float16, MINIMUM_LEFT)
DEFINE(maximum_float16, float16, MAXIMUM_LEFT)
DEFINE(divide_float16, float16, QUOTIENT)
DEFINE(add_bfloat16, bfloat16, SUM)
DEFINE(multiply_bfloat16, bfloat16, PRODUCT)
DEFINE(minimum_bfloat16, bfloat16, MINIMUM_RIGHT)
DEFINE(maximum_bfloat16, bfloat16, MAXIMUM_RIGHT)
DEFINE(divide_bfloat16, bfloat16, QUOTIENT)

typedef void HalfFunction(const uint16_t *, const uint16_t *, int, uint16_t *, size_t);

static HalfFunction *const functions[HALF_TYPES][FUNCTIONS] = {
    [FLOAT16] = {add_float16, multiply_float16, minimum_float16, maximum_float16, divide_float16},
    [BFLOAT16] = {add_bfloat16, multiply_bfloat16, minimum_bfloat16, maximum_bfloat16, divide_bfloat16},
};

void compute_half(HalfType type, Function function, const void *left, const void *right, int is_array, void *out,
                  size_t count) {
    functions[type][function](left, right, is_array, out, count);
}
