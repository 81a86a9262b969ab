/* GELU in its tanh form and its derivative, in one pass each: x times the logistic function of 2u, where
   u = sqrt(2 / pi) (x + 0.044715 x^3) and 1 + tanh(u) = 2 / (1 + e^-2u).

   Every operation is named (fused products too, so compile with -ffp-contract=off): whatever compiler and
   vector width, the bits are the same. bfloat16 is the upper half of a float, rounded to nearest even. */

#include <stdint.h>

#define SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define CUBIC 0.044715f

static inline float from_bits(uint32_t bits) {
    union { uint32_t bits; float value; } word = {.bits = bits};
    return word.value;
}

static inline uint32_t to_bits(float value) {
    union { uint32_t bits; float value; } word = {.value = value};
    return word.bits;
}

static inline float widen(uint16_t half) { return from_bits((uint32_t)half << 16); }

static inline uint16_t narrow(float value) {
    uint32_t bits = to_bits(value);
    uint16_t rounded = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    return value != value ? 0x7fc0 : rounded; /* rounding could carry a NaN into its sign */
}

/* e^x for x of -87 to 87, by 2^n e^r with r of at most ln(2) / 2, and Cephes' polynomial for e^r. */
static inline float exponential(float x) {
    float n = __builtin_rintf(x * 1.44269504f);
    float r = __builtin_fmaf(n, -0.693359375f, x); /* ln(2) in two parts */
    r = __builtin_fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __builtin_fmaf(p, r, 1.3981999507e-3f);
    p = __builtin_fmaf(p, r, 8.3334519073e-3f);
    p = __builtin_fmaf(p, r, 4.1665795894e-2f);
    p = __builtin_fmaf(p, r, 1.6666665459e-1f);
    p = __builtin_fmaf(p, r, 5.0000001201e-1f);
    p = __builtin_fmaf(p, r * r, r) + 1.0f;
    /* A NaN has gone into p; its n, of which C says nothing, must not be converted. */
    int32_t exponent = (int32_t)(n == n ? n : 0.0f);
    return p * from_bits((uint32_t)(exponent + 127) << 23); /* exact: a power of two */
}

/* 1 / (1 + e^-x) */
static inline float logistic(float x) {
    float y = -x;
    y = y > 87.0f ? 87.0f : y;
    y = y < -87.0f ? -87.0f : y;
    return 1.0f / (exponential(y) + 1.0f);
}

static inline float gelu(float x) {
    return x * logistic(SLOPE * x * __builtin_fmaf(CUBIC * x, x, 1.0f));
}

static inline float gelu_slope(float x) {
    float square = x * x;
    float s = logistic(SLOPE * x * __builtin_fmaf(CUBIC, square, 1.0f));
    float inner = SLOPE * __builtin_fmaf(3.0f * CUBIC, square, 1.0f);
    return __builtin_fmaf(x * s * (1.0f - s), inner, s);
}

/* Below this many numbers, waking other threads costs more than they save. */
#define PARALLEL _Pragma("omp parallel for simd num_threads(threads) if (count > 65536)")

void gelu_float32(const float *restrict x, float *restrict out, long count, int threads) {
    PARALLEL
    for (long i = 0; i < count; i++) out[i] = gelu(x[i]);
}

void gelu_bfloat16(const uint16_t *restrict x, uint16_t *restrict out, long count, int threads) {
    PARALLEL
    for (long i = 0; i < count; i++) out[i] = narrow(gelu(widen(x[i])));
}

void gelu_backward_float32(const float *restrict x, const float *restrict grad, float *restrict out,
                           long count, int threads) {
    PARALLEL
    for (long i = 0; i < count; i++) out[i] = grad[i] * gelu_slope(x[i]);
}

void gelu_backward_bfloat16(const uint16_t *restrict x, const uint16_t *restrict grad, uint16_t *restrict out,
                            long count, int threads) {
    PARALLEL
    for (long i = 0; i < count; i++) out[i] = narrow(widen(grad[i]) * gelu_slope(widen(x[i])));
}
