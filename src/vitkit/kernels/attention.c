/* Attention of all images and heads, forward and backward, with the small matrix products that it is made of.
   Included by `block.c`, which says what a number and a word are. */

/* Write a vector of floats as numbers. */
INLINE void store(number *out, vector values) {
#ifdef BFLOAT16
    _mm256_storeu_si256((__m256i *)out, (__m256i)_mm512_cvtneps_pbh((__m512)values));
#else
    *(vector *)out = values;
#endif
}

/* Read numbers as a vector of floats. */
INLINE vector load(const number *in) {
#ifdef BFLOAT16
    return (vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)in)), 16);
#else
    return *(const vector *)in;
#endif
}

/* Add up the numbers of a vector. */
INLINE float sum_of(vector values) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += values[i];
    return sum;
}

/* ---- Small matrix products ---- */

/* sums += the products of a word and a vector of words. */
#ifdef BFLOAT16
#define MULTIPLY(sums, word, words) \
    (vector) _mm512_dpbf16_ps((__m512)(sums), (__m512bh)_mm512_set1_ps(word), (__m512bh)(words))
#else
#define MULTIPLY(sums, word, words) ((sums) + (word) * (words))
#endif

/* A tile of out = a b: a's word (m, k) is a[m * row_step + k * step], b's (k, n) is b[k * width + n]. */
INLINE void tile(const int rows, const int vectors, const float *a, long row_step, long step, const float *b,
                 long width, long depth, float *out, long stride) {
    vector sums[ROWS][VECTORS];
    _Pragma("GCC unroll 8") for (int m = 0; m < rows; m++)
        _Pragma("GCC unroll 8") for (int n = 0; n < vectors; n++) sums[m][n] = (vector){0};
    for (long k = 0; k < depth; k++) {
        vector words[VECTORS];
        _Pragma("GCC unroll 8") for (int n = 0; n < vectors; n++)
            words[n] = *(const vector *)(b + k * width + n * LANES);
        _Pragma("GCC unroll 8") for (int m = 0; m < rows; m++) {
            float word = a[m * row_step + k * step];
            _Pragma("GCC unroll 8") for (int n = 0; n < vectors; n++)
                sums[m][n] = MULTIPLY(sums[m][n], word, words[n]);
        }
    }
    _Pragma("GCC unroll 8") for (int m = 0; m < rows; m++)
        _Pragma("GCC unroll 8") for (int n = 0; n < vectors; n++)
            *(vector *)(out + m * stride + n * LANES) = sums[m][n];
}

INLINE void strip(const int rows, const float *a, long row_step, long step, const float *b, long width, long depth,
                  float *out, long stride) {
    long n = 0, left = width / LANES;
    for (; left >= VECTORS; left -= VECTORS, n += VECTORS * LANES)
        tile(rows, VECTORS, a, row_step, step, b + n, width, depth, out + n, stride);
    if (left == 3) tile(rows, VECTORS < 3 ? VECTORS : 3, a, row_step, step, b + n, width, depth, out + n, stride);
    if (left == 2) tile(rows, 2, a, row_step, step, b + n, width, depth, out + n, stride);
    if (left == 1) tile(rows, 1, a, row_step, step, b + n, width, depth, out + n, stride);
}

/* out = a b of `rows` rows, which are at most ROWS, and `width` columns, a multiple of LANES. */
static void few_rows(long rows, const float *a, long row_step, long step, const float *b, long width, long depth,
                     float *out, long stride) {
    if (rows == ROWS)
        strip(ROWS, a, row_step, step, b, width, depth, out, stride);
    else
        for (long m = 0; m < rows; m++)
            strip(1, a + m * row_step, row_step, step, b, width, depth, out + m * stride, stride);
}

/* Rows of the block that begins at `start`: the last of many begins earlier, so that it is whole as well. */
#define FEW(start, rows) ((rows) < ROWS ? (rows) : ROWS)
#define FROM(start, rows) ((start) + ROWS <= (rows) || (rows) < ROWS ? (start) : (rows) - ROWS)

/* ---- Attention ---- */

/* Rotary positions: pairs of a head's numbers are turned by the angles of their token; NULL: nothing is. */
typedef struct {
    const float *cos, *sin; /* (T, d), equal for both members of a pair */
    long neighbours;        /* whether numbers 2i and 2i + 1 are a pair; else i and i + d / 2 */
} rotary;

/* Turn the numbers of a head at a token by its angles, or back where `direction` is -1. */
static void turn_row(float *row, const rotary *turns, long token, float direction, long size) {
    const float *cos = turns->cos + token * size, *sin = turns->sin + token * size;
    long half = size / 2, step = turns->neighbours ? 2 : 1, other = turns->neighbours ? 1 : half;
    SIMD for (long i = 0; i < half; i++) {
        float a = row[i * step], b = row[i * step + other], c = cos[i * step], s = sin[i * step] * direction;
        row[i * step] = a * c - b * s;
        row[i * step + other] = b * c + a * s;
    }
}

/* out[row] = (in[row] + bias) * scale, turned, `(T, d)`. */
static void take(const number *in, long stride, const float *bias, float scale, const rotary *turns, number *out,
                 long tokens, long size) {
    if (turns) {
        float values[size];
        for (long row = 0; row < tokens; row++) {
            for (long i = 0; i < size; i += LANES)
                *(vector *)(values + i) = (load(in + row * stride + i) + *(const vector *)(bias + i)) * scale;
            turn_row(values, turns, row, 1.0f, size);
            for (long i = 0; i < size; i += LANES) store(out + row * size + i, *(vector *)(values + i));
        }
    } else
        for (long row = 0; row < tokens; row++)
            for (long i = 0; i < size; i += LANES) {
                vector values = load(in + row * stride + i);
                if (bias) values = (values + *(const vector *)(bias + i)) * scale;
                store(out + row * size + i, values);
            }
}

/* Have rows of the next task come into the cache: they lie so far apart that the processor does not foresee them. */
INLINE void fetch(const number *in, long stride, long row, long rows, long size) {
    for (long m = row; m < row + rows; m++)
        for (long i = 0; i < size; i += 64 / (long)sizeof(number)) __builtin_prefetch(in + m * stride + i, 0, 2);
}

/* `(T, d)` as words of rows that stand together, (T / group, d): what is summed over are tokens. */
static const float *by_rows(const number *in, float *room, long tokens, long size) {
    if (GROUP == 1) return (const float *)in;
    const uint16_t *half = (const uint16_t *)in;
    uint32_t *out = (uint32_t *)room;
    for (long pair = 0; pair < tokens / 2; pair++)
        SIMD for (long i = 0; i < size; i++)
            out[pair * size + i] = half[2 * pair * size + i] | (uint32_t)half[(2 * pair + 1) * size + i] << 16;
    if (tokens % 2) /* with a row of zeros */
        SIMD for (long i = 0; i < size; i++) out[tokens / 2 * size + i] = half[(tokens - 1) * size + i];
    return room;
}

/* `(T, d)` as words of columns, (d / group, T padded): what is summed over are the numbers of a head. */
static void by_columns(const number *in, float *out, long tokens, long size) {
    long words = size / GROUP, wide = padded(tokens);
    const float *from = (const float *)in;
    for (long word = 0; word < words; word++) {
        for (long row = 0; row < tokens; row++) out[word * wide + row] = from[row * words + word];
        for (long row = tokens; row < wide; row++) out[word * wide + row] = 0;
    }
}

static void softmax(float *logits, number *weights, long tokens, long wide) {
    float most = logits[0], sum = 0;
    for (long i = tokens; i < wide; i++) logits[i] = -FLT_MAX; /* whole vectors, and no numbers left at the end */
    _Pragma("omp simd reduction(max : most)") for (long i = 0; i < wide; i++)
        most = logits[i] > most ? logits[i] : most;
    _Pragma("omp simd reduction(+ : sum)") for (long i = 0; i < wide; i++) {
        float below = logits[i] - most;
        logits[i] = exponential(below < -87.0f ? -87.0f : below);
        sum += logits[i];
    }
    float inverse = 1.0f / sum;
    for (long i = 0; i < wide; i += LANES) store(weights + i, *(vector *)(logits + i) * inverse);
    memset(weights + tokens, 0, (wide - tokens) * sizeof(number));
}

/* Bytes of an array of words, and of one of numbers, in whole cache lines. */
#define ROOM(count) (((count) * (long)sizeof(float) + 63) / 64 * 64)

/* mixed = softmax(q k^T scale) v of every image and head: qkv `(B, T, 3, h, d)` without its bias `(3, h, d)`,
   mixed `(B, T, h, d)`; `weights` receives `(B, h, T, T padded)`. Returns 0 if there is no memory. */
int attention(const number *qkv, const float *bias, const rotary *turns, number *mixed, number *weights, long images,
              long heads, long tokens, long size, float scale, int threads) {
    long width = heads * size, wide = padded(tokens), own = (tokens + 1) * size;
    int failed = 0;
    _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {
        char *room = aligned_alloc(64, 3 * ROOM(own) + ROOM(wide * size) + 2 * ROOM(ROWS * (wide + size)));
        failed |= !room;
        number *q = (number *)room, *k = (number *)(room + ROOM(own));
        float *keys = (float *)(room + 2 * ROOM(own)), *values = (float *)((char *)keys + ROOM(wide * size));
        float *logits = (float *)((char *)values + ROOM(own)), *out = logits + ROWS * wide;
        _Pragma("omp for") for (long task = 0; task < images * heads; task++) {
            if (!room) continue;
            long image = task / heads, head = task % heads;
            const number *from = qkv + image * tokens * 3 * width + head * size;
            const number *next = from + (head + 1 < heads ? size : tokens * 3 * width - head * size);
            const float *b = bias + head * size;
            take(from + width, 3 * width, b + width, 1.0f, turns, k, tokens, size);
            by_columns(k, keys, tokens, size);
            take(from + 2 * width, 3 * width, b + 2 * width, 1.0f, NULL, k, tokens, size);
            const float *v = by_rows(k, values, tokens, size);
            take(from, 3 * width, b, scale, turns, q, tokens, size);
            number *w = weights + task * tokens * wide;
            for (long start = 0; start < tokens; start += ROWS) {
                long row = FROM(start, tokens), rows = FEW(start, tokens);
                few_rows(rows, (float *)(q + row * size), size / GROUP, 1, keys, wide, size / GROUP, logits, wide);
                for (long m = 0; m < rows; m++) softmax(logits + m * wide, w + (row + m) * wide, tokens, wide);
                few_rows(rows, (float *)(w + row * wide), wide / GROUP, 1, v, size, (tokens + GROUP - 1) / GROUP, out,
                         size);
                for (int part = 0; part < 3; part++)
                    fetch(next + part * width, 3 * width, row, rows, size);
                for (long m = 0; m < rows; m++) {
                    number *to = mixed + (image * tokens + row + m) * width + head * size;
                    for (long i = 0; i < size; i += LANES) store(to + i, *(vector *)(out + m * size + i));
                }
            }
        }
        free(room);
    }
    return !failed;
}

/* Write the gradients of `rows` tokens, times a factor and turned back, and add them to the sums of its columns. */
INLINE void give(float *from, number *to, long stride, float *sums, float factor, const rotary *turns, long token,
                 long rows, long size) {
    for (long m = 0; m < rows; m++) {
        if (turns) turn_row(from + m * size, turns, token + m, -1.0f, size);
        for (long i = 0; i < size; i += LANES) {
            vector values = *(vector *)(from + m * size + i) * factor;
            store(to + m * stride + i, values);
            *(vector *)(sums + i) += values;
        }
    }
}

/* out = a^T b, `(T, d)`, of a `(T, T padded)` and words of b's rows; and the sums of its columns. */
static void transposed(const float *a, const float *b, number *to, long stride, float *sums, const rotary *turns,
                       float *out, long tokens, long size) {
    long wide = padded(tokens), depth = (tokens + GROUP - 1) / GROUP;
    for (long start = 0; start < tokens; start += ROWS) {
        long row = FROM(start, tokens), rows = FEW(start, tokens), again = start - row;
        few_rows(rows, a + row, 1, wide, b, size, depth, out, size);
        give(out + again * size, to + start * stride, stride, sums, 1.0f, turns, start, rows - again, size);
    }
}

/* The gradient of `attention`: of qkv, `(B, T, 3, h, d)`, and in `sums` `(B, 3, h, d)` of its bias, by image. */
int attention_backward(const number *grad, const number *qkv, const float *bias, const rotary *turns,
                       const number *weights, number *dqkv, float *sums, long images, long heads, long tokens,
                       long size, float scale, int threads) {
    long width = heads * size, wide = padded(tokens), own = (tokens + 1) * size, square = (tokens + 1) * wide;
    int failed = 0;
    _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {
        char *room = aligned_alloc(
            64, 3 * ROOM(own) + ROOM(wide * size) + 2 * ROOM(square) + 2 * ROOM(ROWS * (wide + size)));
        failed |= !room;
        char *next = room;
#define TAKE(type, name, count) type *name = (type *)next; next += ROOM(count)
        TAKE(number, plain, own);
        TAKE(float, other, own);
        TAKE(number, dlogits, square);
        TAKE(float, paired, square);
        TAKE(float, columns, wide * size);
        TAKE(float, values, ROWS * (wide + size));
        TAKE(number, douts, own);
        float *out = values + ROWS * wide;
        _Pragma("omp for") for (long task = 0; task < images * heads; task++) {
            if (!room) continue;
            long image = task / heads, head = task % heads;
            const number *from = qkv + image * tokens * 3 * width + head * size;
            const float *b = bias + head * size;
            const number *came = grad + image * tokens * width + head * size; /* the gradient of this head */
            long next = head + 1 < heads ? size : tokens * width - head * size;
            const number *following = from + (head + 1 < heads ? size : tokens * 3 * width - head * size);
            number *to = dqkv + image * tokens * 3 * width + head * size;
            float *sum = sums + image * 3 * width + head * size;
            const number *w = weights + task * tokens * wide;
            for (int part = 0; part < 3; part++) memset(sum + part * width, 0, size * sizeof(float));
            /* Values: dv = weights^T dout. */
            take(came, width, NULL, 1.0f, NULL, douts, tokens, size);
            transposed(by_rows(w, paired, tokens, wide), by_rows(douts, other, tokens, size), to + 2 * width,
                       3 * width, sum + 2 * width, NULL, out, tokens, size);
            /* Logits: w (dw - sum(w dw)), with dw = dout v^T. */
            take(from + 2 * width, 3 * width, b + 2 * width, 1.0f, NULL, plain, tokens, size);
            by_columns(plain, columns, tokens, size);
            for (long start = 0; start < tokens; start += ROWS) {
                long row = FROM(start, tokens), rows = FEW(start, tokens);
                fetch(came + next, width, row, rows, size);
                few_rows(rows, (float *)(douts + row * size), size / GROUP, 1, columns, wide, size / GROUP, values,
                         wide);
                for (long m = 0; m < rows; m++) {
                    const float *dw = values + m * wide;
                    const number *p = w + (row + m) * wide;
                    number *restrict d = dlogits + (row + m) * wide;
                    vector dots = {0};
                    for (long i = 0; i < wide; i += LANES) dots += load(p + i) * *(const vector *)(dw + i);
                    float dot = sum_of(dots);
                    for (long i = 0; i < wide; i += LANES)
                        store(d + i, load(p + i) * (*(const vector *)(dw + i) - dot));
                }
            }
            /* Queries: dq = dlogits k scale. */
            take(from + width, 3 * width, b + width, 1.0f, turns, plain, tokens, size);
            const float *keys = by_rows(plain, other, tokens, size);
            for (long start = 0; start < tokens; start += ROWS) {
                long row = FROM(start, tokens), rows = FEW(start, tokens), again = start - row;
                few_rows(rows, (float *)(dlogits + row * wide), wide / GROUP, 1, keys, size,
                         (tokens + GROUP - 1) / GROUP, out, size);
                for (int part = 0; part < 3; part++)
                    fetch(following + part * width, 3 * width, row, rows, size);
                give(out + again * size, to + start * 3 * width, 3 * width, sum, scale, turns, start, rows - again, size);
            }
            /* Keys: dk = dlogits^T q scale. */
            take(from, 3 * width, b, scale, turns, plain, tokens, size);
            transposed(by_rows(dlogits, paired, tokens, wide), by_rows(plain, other, tokens, size), to + width,
                       3 * width, sum + width, turns, out, tokens, size);
        }
        free(room);
    }
    return !failed;
}
