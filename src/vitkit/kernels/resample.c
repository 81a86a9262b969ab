/* Pillow's resize of 8-bit RGB to the same bits, of a part of the result and into the caller's array.
 *
 * Pillow resizes in two passes, rounding to whole levels in between (its libImaging/Resample.c). Weights are computed in
 * double precision and rounded to 22 bits after the point; sums are 32-bit integers, which have no order of summation,
 * so that vectors give what Pillow's loops give. What is gained: vectors of AVX2, and no work for what is cut off.
 * It is compiled without contraction of a * b + c, which would change the weights' last bits.
 */
#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PRECISION_BITS (32 - 8 - 2)
#define HALF (1 << (PRECISION_BITS - 1))

/* The numbers of the filters are flags, which resample.py gives. */
static const double SUPPORTS[] = {[BOX] = 0.5, [BILINEAR] = 1.0, [HAMMING] = 1.0, [BICUBIC] = 2.0, [LANCZOS] = 3.0};

static double sinc(double x) {
    if (x == 0.0) return 1.0;
    x *= M_PI;
    return sin(x) / x;
}

static double weight(int filter, double x) {
    switch (filter) {
    case BOX:
        return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case BILINEAR:
        if (x < 0.0) x = -x;
        return x < 1.0 ? 1.0 - x : 0.0;
    case HAMMING:
        if (x < 0.0) x = -x;
        if (x == 0.0) return 1.0;
        if (x >= 1.0) return 0.0;
        x *= M_PI;
        /* Pillow's constants have single precision. */
        return sin(x) / x * (0.54f + 0.46f * cos(x));
    case BICUBIC: {
        const double a = -0.5;
        if (x < 0.0) x = -x;
        if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
        return 0.0;
    }
    default:
        return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    }
}

/* One axis of the result: which source pixels each index is made of, and by what weights. */
typedef struct {
    int taps;         /* places for weights, an even number; those not used are 0 */
    int *first;       /* (count,) index of the first source pixel */
    int *used;        /* (count,) number of source pixels */
    int32_t *weights; /* (count, taps) */
} Axis;

static void free_axis(Axis *axis) {
    free(axis->first);
    free(axis->used);
    free(axis->weights);
}

/* Indices begin..end-1 of `out_size` that the source pixels in0..in1 of `in_size` become. Mirrored: the source lies in
 * memory from its last pixel to its first. Returns 0 where memory lacks. */
static int make_axis(Axis *axis, int filter, int in_size, float in0, float in1, int out_size, int begin, int end,
                     int mirrored) {
    double scale = (double)(in1 - in0) / out_size;
    double filterscale = scale < 1.0 ? 1.0 : scale;
    double support = SUPPORTS[filter] * filterscale, ss = 1.0 / filterscale;
    int taps = (int)ceil(support) * 2 + 1, count = end - begin;
    axis->taps = (taps + 1) / 2 * 2;
    axis->first = malloc(sizeof(int) * count);
    axis->used = malloc(sizeof(int) * count);
    axis->weights = calloc((size_t)count * axis->taps, sizeof(int32_t));
    double *real = malloc(sizeof(double) * axis->taps);
    if (!axis->first || !axis->used || !axis->weights || !real) {
        free(real);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        double center = in0 + (begin + i + 0.5) * scale, sum = 0.0;
        int low = (int)(center - support + 0.5), high = (int)(center + support + 0.5);
        if (low < 0) low = 0;
        if (high > in_size) high = in_size;
        for (int t = 0; t < high - low; t++) {
            real[t] = weight(filter, (t + low - center + 0.5) * ss);
            sum += real[t];
        }
        int32_t *whole = axis->weights + (size_t)i * axis->taps;
        for (int t = 0; t < high - low; t++) {
            double w = sum != 0.0 ? real[t] / sum : real[t];
            whole[mirrored ? high - low - 1 - t : t] = (int)((w < 0 ? -0.5 : 0.5) + w * (1 << PRECISION_BITS));
        }
        axis->first[i] = mirrored ? in_size - high : low;
        axis->used[i] = high - low;
    }
    free(real);
    return 1;
}

static inline uint8_t level(int32_t sum) {
    int32_t value = sum >> PRECISION_BITS;
    return value < 0 ? 0 : value > 255 ? 255 : (uint8_t)value;
}

/* The columns of one row, whose pixels have 3 bytes and 16 bytes to spare behind the last tap. `spread` has each
 * weight four times, so that two pixels of three channels and a filler meet their weights in one vector. */
static void make_columns(const uint8_t *row, uint8_t *out, const Axis *axis, int offset, const int32_t *spread, int count) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i pack = _mm_setr_epi8(0, 4, 8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    for (int i = 0; i < count; i++) {
        const uint8_t *pixel = row + 3 * (ptrdiff_t)(axis->first[i] - offset);
        const int32_t *weights = spread + 4 * (size_t)i * axis->taps;
        __m256i sum = _mm256_setzero_si256();
        for (int t = 0; t < axis->used[i]; t += 2) {
            __m128i two = _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)(pixel + 3 * t)), order);
            __m256i w = _mm256_loadu_si256((const __m256i *)(weights + 4 * t));
            sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(two), w));
        }
        __m128i all = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        all = _mm_srai_epi32(_mm_add_epi32(all, _mm_set1_epi32(HALF)), PRECISION_BITS);
        all = _mm_min_epi32(_mm_max_epi32(all, _mm_setzero_si128()), _mm_set1_epi32(255));
        uint32_t levels = (uint32_t)_mm_cvtsi128_si32(_mm_shuffle_epi8(all, pack));
        memcpy(out + 3 * i, &levels, 4); /* the fourth byte is the next pixel's, or to spare */
    }
}

/* One row from the rows it is made of. */
static void make_row(const uint8_t *in, ptrdiff_t stride, const int32_t *weights, int used, uint8_t *out, int bytes) {
    int i = 0;
    const __m256i none = _mm256_setzero_si256(), most = _mm256_set1_epi32(255), half = _mm256_set1_epi32(HALF);
    for (; i + 16 <= bytes; i += 16) {
        __m256i left = half, right = half;
        for (int t = 0; t < used; t++) {
            __m128i part = _mm_loadu_si128((const __m128i *)(in + t * stride + i));
            __m256i w = _mm256_set1_epi32(weights[t]);
            left = _mm256_add_epi32(left, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(part), w));
            right = _mm256_add_epi32(right, _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_srli_si128(part, 8)), w));
        }
        left = _mm256_min_epi32(_mm256_max_epi32(_mm256_srai_epi32(left, PRECISION_BITS), none), most);
        right = _mm256_min_epi32(_mm256_max_epi32(_mm256_srai_epi32(right, PRECISION_BITS), none), most);
        __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(left, right), 0xD8);
        __m128i levels = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
        _mm_storeu_si128((__m128i *)(out + i), levels);
    }
    for (; i < bytes; i++) {
        int32_t sum = HALF;
        for (int t = 0; t < used; t++) sum += in[t * stride + i] * weights[t];
        out[i] = level(sum);
    }
}

static void put_row(const uint8_t *row, int count, uint8_t *out, ptrdiff_t by_column, ptrdiff_t by_channel) {
    if (by_channel == 1 && by_column == 3)
        memcpy(out, row, 3 * (size_t)count);
    else
        for (int c = 0; c < 3; c++)
            for (int x = 0; x < count; x++) out[c * by_channel + x * by_column] = row[3 * x + c];
}

/* The part [y0, y1) x [x0, x1) of an image (height, width) whose box is resized to (rows, columns).
 *
 * in: pixels of 3 bytes, row_stride bytes from row to row; mirrored: left and right change places before.
 * box: left, top, right, bottom, as Pillow takes it. rows_first: the order of the passes.
 * out: strides in bytes by row, column and channel. Returns 0 where memory lacks. */
int resample(const uint8_t *in, ptrdiff_t row_stride, int height, int width, int mirrored, const float *box, int filter,
             int rows_first, int rows, int columns, int y0, int y1, int x0, int x1, uint8_t *out, ptrdiff_t by_row,
             ptrdiff_t by_column, ptrdiff_t by_channel) {
    Axis down = {0}, across = {0};
    int cut_rows = y1 - y0, cut_columns = x1 - x0, ok = 0;
    uint8_t *between = NULL, *row = NULL, *line = NULL;
    int32_t *spread = NULL;
    if (!make_axis(&down, filter, height, box[1], box[3], rows, y0, y1, 0)) goto end;
    if (!make_axis(&across, filter, width, box[0], box[2], columns, x0, x1, mirrored)) goto end;
    int top = down.first[0], bottom = down.first[cut_rows - 1] + down.used[cut_rows - 1];
    int begin = mirrored ? cut_columns - 1 : 0, end = cut_columns - 1 - begin; /* leftmost, rightmost */
    int left = across.first[begin], right = across.first[end] + across.used[end];
    size_t narrow = 3 * (size_t)cut_columns, wide = 3 * (size_t)(right - left), spare = 32 + 3 * (size_t)across.taps;
    size_t weights = (size_t)cut_columns * across.taps;
    if (!rows_first) between = malloc((bottom - top) * narrow + spare);
    row = calloc(wide + spare, 1);
    line = malloc(narrow + spare);
    spread = malloc(4 * sizeof(int32_t) * weights);
    if ((!between && !rows_first) || !row || !line || !spread) goto end;
    for (size_t w = 0; w < weights; w++)
        for (int l = 0; l < 4; l++) spread[4 * w + l] = l == 3 ? 0 : across.weights[w];
    if (!rows_first)
        for (int y = top; y < bottom; y++) {
            memcpy(row, in + y * row_stride + 3 * (ptrdiff_t)left, wide);
            make_columns(row, between + (y - top) * narrow, &across, left, spread, cut_columns);
        }
    for (int y = 0; y < cut_rows; y++) {
        const int32_t *w = down.weights + (size_t)y * down.taps;
        if (rows_first) {
            make_row(in + down.first[y] * row_stride + 3 * (ptrdiff_t)left, row_stride, w, down.used[y], row, (int)wide);
            make_columns(row, line, &across, left, spread, cut_columns);
        } else
            make_row(between + (down.first[y] - top) * narrow, (ptrdiff_t)narrow, w, down.used[y], line, (int)narrow);
        put_row(line, cut_columns, out + y * by_row, by_column, by_channel);
    }
    ok = 1;
end:
    free_axis(&down);
    free_axis(&across);
    free(between);
    free(row);
    free(line);
    free(spread);
    return ok;
}

/* Bilinear samples between four pixels each, in single precision: first between rows, then between columns.
 *
 * above, below, down: for each row of the result the source rows beside it and the weight of the second one; before,
 * after, across: the same for columns. out as above. Returns 0 where memory lacks. */
int sample(const uint8_t *in, ptrdiff_t row_stride, int width, const int64_t *above, const int64_t *below,
           const float *down, int rows, const int64_t *before, const int64_t *after, const float *across, int columns,
           uint8_t *out, ptrdiff_t by_row, ptrdiff_t by_column, ptrdiff_t by_channel) {
    float *line = malloc(3 * (size_t)width * sizeof(float));
    if (!line) return 0;
    for (int y = 0; y < rows; y++) {
        const uint8_t *first = in + above[y] * row_stride, *second = in + below[y] * row_stride;
        float weight = down[y];
        for (ptrdiff_t i = 0; i < 3 * (ptrdiff_t)width; i++)
            line[i] = ((float)second[i] - (float)first[i]) * weight + (float)first[i];
        for (int x = 0; x < columns; x++)
            for (int c = 0; c < 3; c++) {
                float left = line[3 * before[x] + c], right = line[3 * after[x] + c];
                out[y * by_row + x * by_column + c * by_channel] = (uint8_t)((right - left) * across[x] + left + 0.5f);
            }
    }
    free(line);
    return 1;
}

static int inside(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

/* Shift an image down and to the right, its edges repeated, and turn it: result (y, x) is taken from the place of the
 * shifted image, with `pad` more rows and columns around it, to which `matrix` takes (x + 0.5, y + 0.5). Bilinear, in
 * double precision and without rounding, as in Pillow's libImaging/Geometry.c. out is contiguous. */
void turn(const uint8_t *in, ptrdiff_t by_row, ptrdiff_t by_column, ptrdiff_t by_channel, int height, int width,
          int channels, int down, int right, int pad, const double *matrix, uint8_t *out) {
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            double across = matrix[0] * (x + 0.5) + matrix[1] * (y + 0.5) + matrix[2] - 0.5;
            double along = matrix[3] * (x + 0.5) + matrix[4] * (y + 0.5) + matrix[5] - 0.5;
            int column = (int)floor(across), row = (int)floor(along);
            across -= column, along -= row;
            ptrdiff_t left = inside(column - pad - right, width) * by_column;
            ptrdiff_t after = inside(column + 1 - pad - right, width) * by_column;
            const uint8_t *above = in + inside(row - pad - down, height) * by_row;
            const uint8_t *below = in + inside(row + 1 - pad - down, height) * by_row;
            for (int c = 0; c < channels; c++, above += by_channel, below += by_channel) {
                double first = above[left] + (above[after] - above[left]) * across;
                double second = below[left] + (below[after] - below[left]) * across;
                *out++ = (uint8_t)(first + (second - first) * along);
            }
        }
}

/* The views of a batch (count, 3, rows, columns): parts of images resized, mirrored, shifted and turned.
 *
 * numbers: for each view the address of its part, bytes from row to row, height, width, mirrored, rows_first, whether it
 * is moved, and by how many pixels down and to the right. matrices: six numbers for each, as `turn` takes them. Returns
 * 0 where memory lacks. */
int views(const int64_t *numbers, const double *matrices, int count, int filter, int pad, uint8_t *out, int rows,
          int columns) {
    ptrdiff_t plane = (ptrdiff_t)rows * columns;
    uint8_t *flat = malloc(3 * plane), *turned = malloc(3 * plane);
    int ok = flat && turned;
    for (int i = 0; ok && i < count; i++, numbers += 9, matrices += 6) {
        const uint8_t *in = (const uint8_t *)numbers[0];
        int height = (int)numbers[2], width = (int)numbers[3], moves = (int)numbers[6];
        float box[] = {0, 0, (float)width, (float)height};
        uint8_t *place = out + 3 * plane * i;
        ok = resample(in, numbers[1], height, width, (int)numbers[4], box, filter, (int)numbers[5], rows, columns, 0, rows,
                      0, columns, moves ? flat : place, moves ? 3 * columns : columns, moves ? 3 : 1, moves ? 1 : plane);
        if (!ok || !moves) continue;
        turn(flat, 3 * columns, 3, 1, rows, columns, 3, (int)numbers[7], (int)numbers[8], pad, matrices, turned);
        for (int y = 0; y < rows; y++) put_row(turned + 3 * y * columns, columns, place + y * columns, 1, plane);
    }
    free(flat);
    free(turned);
    return ok;
}

int trial(void) {
    uint8_t in[3 * 8 * 8] = {0}, out[3 * 5 * 5];
    float box[] = {0, 0, 8, 8};
    return resample(in, 3 * 8, 8, 8, 0, box, BICUBIC, 0, 5, 5, 0, 5, 0, 5, out, 3 * 5, 3, 1);
}
