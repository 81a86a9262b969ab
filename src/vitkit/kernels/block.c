/* What an encoder block computes between its matrix products, forward and backward: layer norm with the
   residual sum before it, GELU with the bias before it, attention, what training drops at random, and the sums
   that biases' gradients are. Each is one pass over memory where separate operations make several.

   Compiled once for float32 and once, with -DBFLOAT16, for products of bfloat16. `number` is the type of what
   goes into products; the residual stream, statistics, sums and gradients of parameters are float32. The flags
   -DPADDING and -DCHUNK are block.py's: rows of attention weights are padded to a multiple of the first, and a
   piece of work takes as many rows as the second.

   Work is divided into pieces that do not depend on the number of threads, and so no bit does. Letters: T
   tokens of an image, d = size of a head, D = width. */

#include <float.h>
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

/* Dropout: a number is dropped if the hash of its place in the image and of the image's keys is below the threshold,
   and multiplied by `factor` if not. The hash is Wellons' lowbias32, with a second key between its multiplications:
   each number is drawn by itself, so that it depends on no other number, image, thread or vector. */
typedef struct {
    const uint32_t *keys; /* two for each image; NULL: nothing is dropped */
    uint32_t threshold;
    float factor;
} dropout;

/* The keys of an image, the place of a row's first number in it, and the dropout's numbers: copied, so that a loop
   reads no memory for them. */
typedef struct {
    uint32_t first_key, second_key, start, threshold;
    float factor, path;
} place;

INLINE float drawn(place at, uint32_t number) {
    uint32_t x = at.start + number + at.first_key;
    x = (x ^ x >> 16) * 0x7feb352du + at.second_key;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return (x ^ x >> 16) < at.threshold ? 0.0f : at.factor;
}

INLINE place place_of(const dropout *drop, const float *path, long tokens, long row, long width) {
    place at = {0, 0, (uint32_t)(row % tokens * width), 0, 1.0f, path ? path[row / tokens] : 1.0f};
    if (drop && drop->keys) {
        at.first_key = drop->keys[row / tokens * 2], at.second_key = drop->keys[row / tokens * 2 + 1];
        at.threshold = drop->threshold, at.factor = drop->factor;
    }
    return at;
}

/* out = whether each number of a tensor of `images` images is kept. */
void dropout_kept(const dropout *drop, uint8_t *out, long images, long size, int threads) {
    _Pragma("omp parallel for num_threads(threads)")
    for (long image = 0; image < images; image++) {
        place at = place_of(drop, NULL, 1, image, 0);
        uint8_t *to = out + image * size;
        SIMD for (uint32_t i = 0; i < (uint32_t)size; i++) to[i] = drawn(at, i) > 0.0f;
    }
}

/* What happens to the result of a product before it is added to the residual stream. */
typedef struct {
    const float *bias;
    const float *gain; /* layer scale: a factor for each column; or NULL */
    const float *path; /* stochastic depth: a factor for each image, 0 where it skips the branch; or NULL */
    dropout drop;
    long tokens;
} branch;

/* out = in + (product + bias) of a row, with the branch's factors. */
INLINE void add_row(const int drops, const int gains, const float *in, const number *product, const branch *b,
                    place at, float *out, long width) {
    const float *bias = b->bias, *gain = b->gain;
    SIMD for (long i = 0; i < width; i++) {
        float value = READ(product[i]) + bias[i];
        if (drops) value *= drawn(at, (uint32_t)i);
        if (gains) value *= gain[i];
        out[i] = in[i] + value * at.path;
    }
}

static void add_branch(const float *in, const number *product, const branch *b, float *out, long row, long width) {
    place at = place_of(&b->drop, b->path, b->tokens, row, width);
    in += row * width, product += row * width, out += row * width;
    if (b->drop.keys)
        b->gain ? add_row(1, 1, in, product, b, at, out, width) : add_row(1, 0, in, product, b, at, out, width);
    else
        b->gain ? add_row(0, 1, in, product, b, at, out, width) : add_row(0, 0, in, product, b, at, out, width);
}

/* y = norm(s) * scale + shift of the rows s = x + the branch's product, which go to `sum`; or of x where b is NULL.
   `statistics` receives mean and 1 / deviation of every row. */
void norm(const float *x, const number *product, const branch *b, const float *scale, const float *shift, float eps,
          float *sum, number *y, float *statistics, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) {
        const float *in = x + row * width;
        if (b) {
            add_branch(x, product, b, sum, row, width);
            in = sum + row * width;
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

/* sum = x + the branch's product */
void add(const float *x, const number *product, const branch *b, float *sum, long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) add_branch(x, product, b, sum, row, width);
}

/* Add up the sums of all pieces, `(pieces, columns)`, to `(columns,)`. */
static void total(const float *parts, float *out, long pieces, long columns) {
    memset(out, 0, columns * sizeof(float));
    for (long piece = 0; piece < pieces; piece++)
        SIMD for (long i = 0; i < columns; i++) out[i] += parts[piece * columns + i];
}

#define PIECES(rows) (((rows) + CHUNK - 1) / CHUNK)
#define END(start, rows) ((start) + CHUNK < (rows) ? (start) + CHUNK : (rows))

/* copy = the gradient of a product whose branch has the gradient g; and the sums of its columns, which are the bias's
   gradient, and of its columns times what the layer scale multiplied. */
INLINE void branch_row(const int drops, const int gains, const float *restrict g, const number *product,
                       const branch *b, place at, number *restrict copy, float *restrict columns,
                       float *restrict gained, long width) {
    const float *bias = b->bias, *gain = b->gain;
    SIMD for (long i = 0; i < width; i++) {
        float value = g[i] * at.path, factor = drops ? drawn(at, (uint32_t)i) : 1.0f;
        if (gains) {
            gained[i] += value * factor * (READ(product[i]) + bias[i]);
            value *= gain[i];
        }
        value *= factor;
        copy[i] = WRITE(value);
        columns[i] += value;
    }
}

/* The gradient of `norm`: sum = grad + that of x; and, where b is not NULL, in `copy` that of the branch's product.
   `sums` receives the gradients of scale and shift, the branch's bias and its layer scale; `parts` is room for
   (pieces, 4, width). Where dy is NULL there is no norm: the gradient of the branch's sum is `grad`. */
void norm_backward(const number *dy, const float *x, const float *statistics, const float *scale, const float *grad,
                   float *sum, const number *product, const branch *b, number *copy, float *sums, float *parts,
                   long rows, long width, int threads) {
    _Pragma("omp parallel for num_threads(threads)")
    for (long start = 0; start < rows; start += CHUNK) {
        float *restrict scales = parts + start / CHUNK * 4 * width, *restrict shifts = scales + width;
        float *restrict columns = shifts + width, *restrict gained = columns + width;
        memset(scales, 0, 4 * width * sizeof(float));
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
            if (b) {
                place at = place_of(&b->drop, b->path, b->tokens, row, width);
                const number *in = product + row * width;
                number *to = copy + row * width;
                if (b->drop.keys)
                    b->gain ? branch_row(1, 1, g, in, b, at, to, columns, gained, width)
                            : branch_row(1, 0, g, in, b, at, to, columns, gained, width);
                else
                    b->gain ? branch_row(0, 1, g, in, b, at, to, columns, gained, width)
                            : branch_row(0, 0, g, in, b, at, to, columns, gained, width);
            }
        }
    }
    total(parts, sums, PIECES(rows), 4 * width);
}

/* out = GELU(x + bias), of which some numbers are dropped unless `drop` is NULL */
void bias_gelu(const number *x, const float *bias, long form, const dropout *drop, long tokens, number *out, long rows,
               long width, int threads) {
    _Pragma("omp parallel for num_threads(threads) if (rows > CHUNK)")
    for (long row = 0; row < rows; row++) {
        const number *restrict in = x + row * width;
        number *restrict to = out + row * width;
        place at = place_of(drop, NULL, tokens, row, width);
#define KEPT(i) (drops ? drawn(at, (uint32_t)(i)) : 1.0f)
#define LOOP(function) SIMD for (long i = 0; i < width; i++) to[i] = WRITE(function(READ(in[i]) + bias[i]) * KEPT(i));
        if (drop) {
            const int drops = 1;
            OF_FORM(form, gelu, LOOP)
        } else {
            const int drops = 0;
            OF_FORM(form, gelu, LOOP)
        }
#undef LOOP
    }
}

/* out = the gradient of x + bias; `sums` its columns' sums, `parts` room for (pieces, width). out may be grad. */
void bias_gelu_backward(const number *x, const float *bias, long form, const dropout *drop, long tokens,
                        const number *grad, number *out, float *sums, float *parts, long rows, long width,
                        int threads) {
    _Pragma("omp parallel for num_threads(threads)")
    for (long start = 0; start < rows; start += CHUNK) {
        float *restrict columns = parts + start / CHUNK * width;
        memset(columns, 0, width * sizeof(float));
        for (long row = start; row < END(start, rows); row++) {
            const number *restrict in = x + row * width;
            const number *g = grad + row * width;
            number *to = out + row * width;
            place at = place_of(drop, NULL, tokens, row, width);
#define LOOP(slope)                                                       \
    SIMD for (long i = 0; i < width; i++) {                               \
        float d = READ(g[i]) * KEPT(i) * slope(READ(in[i]) + bias[i]);    \
        to[i] = WRITE(d);                                                 \
        columns[i] += d;                                                  \
    }
            if (drop) {
                const int drops = 1;
                OF_FORM(form, gelu_slope, LOOP)
            } else {
                const int drops = 0;
                OF_FORM(form, gelu_slope, LOOP)
            }
        }
    }
    total(parts, sums, PIECES(rows), width);
}

#include "attention.c"
