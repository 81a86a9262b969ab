/* What an encoder block computes between its matrix products, forward and backward: layer norm with the
   residual sum before it, GELU with the bias before it, attention, and the sums that biases' gradients are.
   Each is one pass over memory where separate operations make several.

   Compiled once for float32 and once, with -DBFLOAT16, for products of bfloat16. `number` is the type of what
   goes into products; the residual stream, statistics, sums and gradients of parameters are float32. The flags
   -DPADDING and -DCHUNK are block.py's: rows of attention weights are padded to a multiple of the first, and a
   piece of work takes as many rows as the second.

   Work is divided into pieces that do not depend on the number of threads, and so no bit does. Letters: T
   tokens of an image, d = size of a head, D = width. */

#include <stdlib.h>
#include <string.h>

#include "gelu.c"

#ifdef BFLOAT16
#include <immintrin.h>
typedef uint16_t number;
#define READ(x) widen(x)
#define WRITE(x) narrow(x)
#else
typedef float number;
#define READ(x) (x)
#define WRITE(x) (x)
#endif

/* A word is what one multiplication takes from either side: one float, or two neighbours in bfloat16. */
#define GROUP ((long)(sizeof(float) / sizeof(number)))

#ifdef __AVX512F__
#define LANES 16
#define VECTORS 4 /* columns of a tile in vectors: 6 x 4 sums stay in 32 registers */
#else
#define LANES 8
#define VECTORS 2 /* 6 x 2 sums stay in 16 registers */
#endif
#define ROWS 6 /* of a tile */

#define SIMD _Pragma("omp simd")
#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

static long padded(long count) { return (count + PADDING - 1) / PADDING * PADDING; }

/* y = norm(s) * scale + shift of the rows s = x + branch + bias, which go to `sum`; or of x where branch is
   NULL. `statistics` receives mean and 1 / deviation of every row. */
void norm(const float *x, const number *branch, const float *bias, const float *scale, const float *shift, float eps,
          float *sum, number *y, float *statistics, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) {
        const float *in = x + row * width;
        if (branch) {
            const number *more = branch + row * width;
            float *out = sum + row * width;
            SIMD for (long i = 0; i < width; i++) out[i] = in[i] + (READ(more[i]) + bias[i]);
            in = out;
        }
        float mean = 0, square = 0;
        _Pragma("omp simd reduction(+ : mean)") for (long i = 0; i < width; i++) mean += in[i];
        mean /= width;
        _Pragma("omp simd reduction(+ : square)") for (long i = 0; i < width; i++) {
            float off = in[i] - mean;
            square += off * off;
        }
        float inverse = 1.0f / __builtin_sqrtf(square / width + eps);
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = inverse;
        number *out = y + row * width;
        SIMD for (long i = 0; i < width; i++) out[i] = WRITE((in[i] - mean) * inverse * scale[i] + shift[i]);
    }
}

/* sum = x + branch + bias */
void add(const float *x, const number *branch, const float *bias, float *sum, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) {
        const float *in = x + row * width;
        const number *more = branch + row * width;
        float *out = sum + row * width;
        SIMD for (long i = 0; i < width; i++) out[i] = in[i] + (READ(more[i]) + bias[i]);
    }
}

/* Add up the sums of all pieces, `(pieces, columns)`, to `(columns,)`. */
static void total(const float *parts, float *out, long pieces, long columns) {
    memset(out, 0, columns * sizeof(float));
    for (long piece = 0; piece < pieces; piece++)
        SIMD for (long i = 0; i < columns; i++) out[i] += parts[piece * columns + i];
}

#define PIECES(rows) (((rows) + CHUNK - 1) / CHUNK)
#define END(start, rows) ((start) + CHUNK < (rows) ? (start) + CHUNK : (rows))

/* The gradient of `norm`: sum = grad + that of x, also as `number` where `copy` is not NULL. `sums` receives the
   gradients of scale and shift, and the sums of the columns of `sum`; `parts` is room for (pieces, 3, width).
   Where dy is NULL there is no norm: the gradient is only copied and summed up. */
void norm_backward(const number *dy, const float *x, const float *statistics, const float *scale, const float *grad,
                   float *sum, number *copy, float *sums, float *parts, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads)")
    for (long start = 0; start < rows; start += CHUNK) {
        float *restrict scales = parts + start / CHUNK * 3 * width, *restrict shifts = scales + width;
        float *restrict columns = shifts + width;
        memset(scales, 0, 3 * width * sizeof(float));
        for (long row = start; row < END(start, rows); row++) {
            const float *restrict g = grad + row * width;
            if (dy) {
                const float *restrict in = x + row * width;
                const number *restrict dout = dy + row * width;
                float *restrict out = sum + row * width;
                float mean = statistics[2 * row], inverse = statistics[2 * row + 1], first = 0, second = 0;
                _Pragma("omp simd reduction(+ : first, second)") for (long i = 0; i < width; i++) {
                    float normed = (in[i] - mean) * inverse, d = READ(dout[i]);
                    scales[i] += d * normed;
                    shifts[i] += d;
                    first += d * scale[i];
                    second += d * scale[i] * normed;
                }
                first /= width;
                second /= width;
                SIMD for (long i = 0; i < width; i++) {
                    float normed = (in[i] - mean) * inverse;
                    out[i] = g[i] + (READ(dout[i]) * scale[i] - first - normed * second) * inverse;
                }
                g = out;
            }
            if (copy) {
                number *restrict out = copy + row * width;
                SIMD for (long i = 0; i < width; i++) {
                    out[i] = WRITE(g[i]);
                    columns[i] += g[i];
                }
            }
        }
    }
    total(parts, sums, PIECES(rows), 3 * width);
}

/* out = GELU(x + bias) */
void bias_gelu(const number *x, const float *bias, number *out, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) {
        const number *restrict in = x + row * width;
        number *restrict to = out + row * width;
        SIMD for (long i = 0; i < width; i++) to[i] = WRITE(gelu(READ(in[i]) + bias[i]));
    }
}

/* out = the gradient of x + bias; `sums` its columns' sums, `parts` room for (pieces, width). out may be grad. */
void bias_gelu_backward(const number *x, const float *bias, const number *grad, number *out, float *sums,
                        float *parts, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads)")
    for (long start = 0; start < rows; start += CHUNK) {
        float *restrict columns = parts + start / CHUNK * width;
        memset(columns, 0, width * sizeof(float));
        for (long row = start; row < END(start, rows); row++) {
            const number *restrict in = x + row * width;
            const number *g = grad + row * width;
            number *to = out + row * width;
            SIMD for (long i = 0; i < width; i++) {
                float d = READ(g[i]) * gelu_slope(READ(in[i]) + bias[i]);
                to[i] = WRITE(d);
                columns[i] += d;
            }
        }
    }
    total(parts, sums, PIECES(rows), width);
}

#include "attention.c"
