/* The forms of GELU and their derivatives, in one pass each. The tanh form is x times the logistic function of 2u,
   where u = sqrt(2 / pi) (x + 0.044715 x^3) and 1 + tanh(u) = 2 / (1 + e^-2u). The exact form, by erf, is x times
   the normal distribution function, and CLIP's quick form x times the logistic function of 1.702 x.

   Every operation is named (fused products too, so compile with -ffp-contract=off): whatever compiler and
   vector width, the bits are the same. bfloat16 is the upper half of a float, rounded to nearest even. */

#include <stdint.h>

#define SLOPE 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define CUBIC 0.044715f
#define QUICK 1.702f

/* The logistic function ends at 1 / (1 + e^87), 1.6e-38, where the true one goes on to 0. Times a very negative x,
   and in the slope times 0.2 x^3, that would be seen: below these the results are 0. Down to them what is left is
   less than half a unit in the last place of 1, and stays: runs that were begun with it keep their bits. */
#define VALUE_ENDS -2.5353012e30f /* -2^101 */
#define SLOPE_ENDS -1.7179869e10f /* -2^34 */
#define LARGEST_SQUARE 1e37f      /* so that the slope of a very large x is 1, and not 0 times infinity */
#define LARGEST_EXPONENT 87.0f
#define WHOLE 12582912.0f         /* 1.5 * 2^23: added to it, a whole number stands in the lowest bits */

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
    /* Exact: a power of two. Of a NaN it is some other number, but the NaN has gone into p as well. */
    return p * from_bits((to_bits(n + WHOLE) + 127) << 23);
}

/* The smaller of two numbers that are not negative, which have the order of their bits; NaN is larger than all. */
static inline float smaller(float a, float b) {
    uint32_t first = to_bits(a), second = to_bits(b);
    return from_bits(first < second ? first : second);
}

/* 1 / (1 + e^-x); a number for NaN, so that whoever asks multiplies by what was NaN. */
static inline float logistic(float x) {
    float size = smaller(__builtin_fabsf(x), LARGEST_EXPONENT);
    return 1.0f / (exponential(__builtin_copysignf(size, -x)) + 1.0f);
}

static inline float gelu(float x) {
    float value = x * logistic(SLOPE * x * __builtin_fmaf(CUBIC * x, x, 1.0f));
    return x < VALUE_ENDS ? 0.0f : value;
}

static inline float gelu_slope(float x) {
    float square = smaller(x * x, LARGEST_SQUARE);
    float s = logistic(SLOPE * x * __builtin_fmaf(CUBIC, square, 1.0f));
    float inner = SLOPE * __builtin_fmaf(3.0f * CUBIC, square, 1.0f);
    float slope = __builtin_fmaf(x * s * (1.0f - s), inner, s);
    return x < SLOPE_ENDS ? 0.0f : slope;
}

static inline float quick_gelu(float x) {
    float value = x * logistic(QUICK * x);
    return x < VALUE_ENDS ? 0.0f : value;
}

static inline float quick_gelu_slope(float x) {
    float s = logistic(QUICK * x);
    float slope = __builtin_fmaf(QUICK * x * s, 1.0f - s, s);
    return x < SLOPE_ENDS ? 0.0f : slope;
}

/* The normal distribution function at x by Abramowitz and Stegun, 7.1.26, whose error is 7.5e-8; and, times x, its
   density: both end at |x| = 13, where the density is 8e-38. */
static inline float normal(float x, float *density) {
    float size = smaller(__builtin_fabsf(x), 13.0f);
    float t = 1.0f / __builtin_fmaf(0.23164189f, size, 1.0f);
    float p = 1.061405429f;
    p = __builtin_fmaf(p, t, -1.453152027f);
    p = __builtin_fmaf(p, t, 1.421413741f);
    p = __builtin_fmaf(p, t, -0.284496736f);
    p = __builtin_fmaf(p, t, 0.254829592f);
    float e = exponential(-0.5f * size * size);
    float tail = 0.5f * p * t * e;
    *density = 0.39894228f * __builtin_copysignf(size, x) * e;
    return x < 0.0f ? tail : 1.0f - tail;
}

static inline float erf_gelu(float x) {
    float density, value = x * normal(x, &density);
    return x < VALUE_ENDS ? 0.0f : value;
}

static inline float erf_gelu_slope(float x) {
    float density, value = normal(x, &density);
    return value + density + (x - x); /* NaN of NaN */
}

/* The forms in the order of block.py's `FORMS`; `loop` is compiled for each, with its function or slope. */
#define OF_FORM(form, function, loop)                  \
    switch (form) {                                    \
        case 0: loop(function) break;                  \
        case 1: loop(erf_##function) break;            \
        default: loop(quick_##function)                \
    }

/* Below this many numbers, waking other threads costs more than they save. */
#define PARALLEL _Pragma("omp parallel for simd num_threads(threads) if (count > 65536)")

void gelu_float32(const float *restrict x, float *restrict out, long count, long form, int threads) {
#define LOOP(function) { PARALLEL for (long i = 0; i < count; i++) out[i] = function(x[i]); }
    OF_FORM(form, gelu, LOOP)
#undef LOOP
}

void gelu_bfloat16(const uint16_t *restrict x, uint16_t *restrict out, long count, long form, int threads) {
#define LOOP(function) { PARALLEL for (long i = 0; i < count; i++) out[i] = narrow(function(widen(x[i]))); }
    OF_FORM(form, gelu, LOOP)
#undef LOOP
}

void gelu_backward_float32(const float *restrict x, const float *restrict grad, float *restrict out, long count,
                           long form, int threads) {
#define LOOP(slope) { PARALLEL for (long i = 0; i < count; i++) out[i] = grad[i] * slope(x[i]); }
    OF_FORM(form, gelu_slope, LOOP)
#undef LOOP
}

void gelu_backward_bfloat16(const uint16_t *restrict x, const uint16_t *restrict grad, uint16_t *restrict out,
                            long count, long form, int threads) {
#define LOOP(slope) \
    { PARALLEL for (long i = 0; i < count; i++) out[i] = narrow(widen(grad[i]) * slope(widen(x[i]))); }
    OF_FORM(form, gelu_slope, LOOP)
#undef LOOP
}

int trial(void) {
    float x[64] = {0}, out[64];
    gelu_float32(x, out, 64, 0, 1);
    gelu_backward_float32(x, x, out, 64, 1, 1);
    return 1;
}
