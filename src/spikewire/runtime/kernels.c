/* Event-driven inference: only arriving spikes cost work.
 *
 * Spikes are bits, 16 per word: [map][plane][channel][row][word], where a map is one time step of
 * one sample. A sum pool keeps the positions of its window as planes; a maximum pool merges them.
 *
 * Every path adds to a current in ascending order of (input, plane), with one rounding per
 * addition, so that all paths, and the torch twin in fallback.py, give bit-identical spikes. Build
 * with -ffp-contract=off. Sizes, types and addresses of arrays are checked by the caller, layers.py;
 * bits beyond the width of a row are ignored.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define TILE 16 /* vectors whose currents stay in registers */

#if defined(__x86_64__) && defined(__GNUC__)
#define X86 1
#include <immintrin.h>
#endif

enum { PORTABLE, AVX2, AVX512 };
enum { NO_LEAK, MULTIPLY, DIVIDE, MULTIPLY_ADD, DIVIDE_ADD, DECAY };
enum { HARD, SOFT, DELAYED_SOFT, DELAYED_HARD };

typedef struct {
    int32_t leak, reset;
    float factor; /* of the leak; a power of two is multiplied by, which is exact and faster */
    float threshold, rest;
    float fall; /* what a spike subtracts in a soft reset */
} neuron_t;

typedef struct {
    int64_t batch, steps, planes, plane_words; /* words of one plane of one input map */
    int64_t channels, vectors, row_words;      /* of the output; a channel is `vectors` words */
    uint32_t tail;                             /* bits that exist in the last word of a row */
    int32_t path;
    neuron_t neuron, synapse; /* synapse: leak and factor of the synaptic current */
    float *synaptic;          /* synaptic currents, arranged as the state; NULL for none */
    const int64_t *start;   /* conv: taps of an output; linear: synapses of an input */
    const uint32_t *offset; /* conv: where the words of a tap begin in a plane */
    const uint16_t *post;   /* linear: output within the block */
    const float *weight;
    const float *bias;
} layer_t;

/* Size of the record of a layer: a library that was built from other sources has another one. */
int64_t spikewire_record_size(void)
{
    return (int64_t)sizeof(layer_t);
}

int spikewire_best_path(void)
{
#ifdef X86
    if (__builtin_cpu_supports("avx512f"))
        return AVX512;
    if (__builtin_cpu_supports("avx2"))
        return AVX2;
#endif
    return PORTABLE;
}

/* ---------------------------------------------------------------- fire
 * m as in formats/neuron.py;  S = m >= threshold;  u = S ? rest : m
 * soft reset: u = S ? m - fall : m
 * delayed, where u was above the threshold: m is lowered, or rest if hard; u = m */

static inline float charge(const neuron_t *n, float current, float u)
{
    switch (n->leak) {
    case NO_LEAK:
        return u + current;
    case MULTIPLY:
        return (current - (u - n->rest)) * n->factor + u;
    case DIVIDE:
        return (current - (u - n->rest)) / n->factor + u;
    case MULTIPLY_ADD:
        return u - (u - n->rest) * n->factor + current;
    case DIVIDE_ADD:
        return u - (u - n->rest) / n->factor + current;
    default:
        return n->factor * u + current;
    }
}

/* Advance one neuron by a time step; return the membrane potential before the reset. */
static inline float advance(const neuron_t *n, float current, float *u)
{
    float m = charge(n, current, *u);
    const int delayed = n->reset >= DELAYED_SOFT;
    if (delayed && *u >= n->threshold)
        m = n->reset == DELAYED_SOFT ? m - n->fall : n->rest;
    *u = m < n->threshold || delayed ? m : n->reset == SOFT ? m - n->fall : n->rest;
    return m;
}

static void fire_portable(const neuron_t *n, const float *current, float *u, uint16_t *spikes,
                          int64_t vectors)
{
    for (int64_t v = 0; v < vectors; v++) {
        unsigned bits = 0;
        for (int k = 0; k < LANES; k++) {
            const int64_t i = v * LANES + k;
            bits |= (unsigned)(advance(n, current[i], u + i) >= n->threshold) << k;
        }
        spikes[v] = (uint16_t)bits;
    }
}

#ifdef X86
__attribute__((target("avx2"))) static inline __m256 charge8(const neuron_t *n, __m256 current,
                                                             __m256 u)
{
    const __m256 factor = _mm256_set1_ps(n->factor);
    const __m256 above = _mm256_sub_ps(u, _mm256_set1_ps(n->rest));
    switch (n->leak) {
    case NO_LEAK:
        return _mm256_add_ps(u, current);
    case MULTIPLY:
        return _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(current, above), factor), u);
    case DIVIDE:
        return _mm256_add_ps(_mm256_div_ps(_mm256_sub_ps(current, above), factor), u);
    case MULTIPLY_ADD:
        return _mm256_add_ps(_mm256_sub_ps(u, _mm256_mul_ps(above, factor)), current);
    case DIVIDE_ADD:
        return _mm256_add_ps(_mm256_sub_ps(u, _mm256_div_ps(above, factor)), current);
    default:
        return _mm256_add_ps(_mm256_mul_ps(factor, u), current);
    }
}

__attribute__((target("avx2"))) static unsigned fire8(const neuron_t *n, __m256 current, float *at)
{
    const __m256 u = _mm256_loadu_ps(at), fall = _mm256_set1_ps(n->fall);
    const __m256 threshold = _mm256_set1_ps(n->threshold), rest = _mm256_set1_ps(n->rest);
    __m256 m = charge8(n, current, u);
    if (n->reset >= DELAYED_SOFT) {
        const __m256 late = n->reset == DELAYED_SOFT ? _mm256_sub_ps(m, fall) : rest;
        m = _mm256_blendv_ps(m, late, _mm256_cmp_ps(u, threshold, _CMP_GE_OQ));
    }
    const __m256 fired = _mm256_cmp_ps(m, threshold, _CMP_GE_OQ);
    const __m256 after = n->reset == HARD   ? rest
                         : n->reset == SOFT ? _mm256_sub_ps(m, fall)
                                            : m;
    _mm256_storeu_ps(at, _mm256_blendv_ps(m, after, fired));
    return (unsigned)_mm256_movemask_ps(fired);
}

__attribute__((target("avx2"))) static void fire_avx2(const neuron_t *n, const float *current,
                                                      float *u, uint16_t *spikes, int64_t vectors)
{
    for (int64_t v = 0; v < vectors; v++) {
        const int64_t i = v * LANES;
        const unsigned low = fire8(n, _mm256_loadu_ps(current + i), u + i);
        const unsigned high = fire8(n, _mm256_loadu_ps(current + i + 8), u + i + 8);
        spikes[v] = (uint16_t)(low | high << 8);
    }
}

__attribute__((target("avx512f"))) static inline __m512 charge16(const neuron_t *n, __m512 current,
                                                                 __m512 u)
{
    const __m512 factor = _mm512_set1_ps(n->factor);
    const __m512 above = _mm512_sub_ps(u, _mm512_set1_ps(n->rest));
    switch (n->leak) {
    case NO_LEAK:
        return _mm512_add_ps(u, current);
    case MULTIPLY:
        return _mm512_add_ps(_mm512_mul_ps(_mm512_sub_ps(current, above), factor), u);
    case DIVIDE:
        return _mm512_add_ps(_mm512_div_ps(_mm512_sub_ps(current, above), factor), u);
    case MULTIPLY_ADD:
        return _mm512_add_ps(_mm512_sub_ps(u, _mm512_mul_ps(above, factor)), current);
    case DIVIDE_ADD:
        return _mm512_add_ps(_mm512_sub_ps(u, _mm512_div_ps(above, factor)), current);
    default:
        return _mm512_add_ps(_mm512_mul_ps(factor, u), current);
    }
}

__attribute__((target("avx512f"))) static inline uint16_t fire16(const neuron_t *n, __m512 current,
                                                                 float *at)
{
    const __m512 u = _mm512_loadu_ps(at), fall = _mm512_set1_ps(n->fall);
    const __m512 threshold = _mm512_set1_ps(n->threshold), rest = _mm512_set1_ps(n->rest);
    __m512 m = charge16(n, current, u);
    if (n->reset >= DELAYED_SOFT) {
        const __m512 late = n->reset == DELAYED_SOFT ? _mm512_sub_ps(m, fall) : rest;
        m = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(u, threshold, _CMP_GE_OQ), m, late);
    }
    const __mmask16 fired = _mm512_cmp_ps_mask(m, threshold, _CMP_GE_OQ);
    const __m512 after = n->reset == HARD   ? rest
                         : n->reset == SOFT ? _mm512_sub_ps(m, fall)
                                            : m;
    _mm512_storeu_ps(at, _mm512_mask_blend_ps(fired, m, after));
    return fired;
}

__attribute__((target("avx512f"))) static void fire_avx512(const neuron_t *n, const float *current,
                                                           float *u, uint16_t *spikes,
                                                           int64_t vectors)
{
    for (int64_t v = 0; v < vectors; v++)
        spikes[v] = fire16(n, _mm512_loadu_ps(current + v * LANES), u + v * LANES);
}
#endif

typedef void fire_t(const neuron_t *, const float *, float *, uint16_t *, int64_t);

static fire_t *const FIRE[] = {
    fire_portable,
#ifdef X86
    fire_avx2, fire_avx512,
#endif
};

/* Clear the bits of lanes beyond the width of a map: they are not neurons. */
static void trim(const layer_t *l, uint16_t *spikes, int64_t words)
{
    if (l->tail != 0xffff)
        for (int64_t v = l->row_words - 1; v < words; v += l->row_words)
            spikes[v] &= (uint16_t)l->tail;
}

/* Return the current that charges `lanes` neurons, the first of which is number `at`: what their
 * synapses deliver, or the synaptic current that this adds to. */
static const float *receive(const layer_t *l, const float *delivered, int64_t at, int64_t lanes)
{
    if (!l->synaptic)
        return delivered;
    const float factor = l->synapse.factor;
    float *restrict current = l->synaptic + at;
    if (l->synapse.leak == DECAY)
        for (int64_t i = 0; i < lanes; i++)
            current[i] = factor * current[i] + delivered[i];
    else
        for (int64_t i = 0; i < lanes; i++)
            current[i] = current[i] - factor * current[i] + delivered[i];
    return current;
}

/* Feed currents [batch][step][channel][vectors][LANES]; if `constant`, [batch][channel]... instead,
 * the same ones at each step. */
void spikewire_fire(const layer_t *l, const float *currents, int32_t constant, float *state,
                    uint16_t *spikes)
{
    const int64_t words = l->channels * l->vectors;
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t t = 0; t < l->steps; t++) {
            const int64_t map = b * l->steps + t, at = b * words * LANES;
            const float *current = currents + (constant ? b : map) * words * LANES;
            current = receive(l, current, at, words * LANES);
            FIRE[l->path](&l->neuron, current, state + at, spikes + map * words, words);
            trim(l, spikes + map * words, words);
        }
}

/* Like spikewire_fire, but write the membrane potentials before the reset. */
void spikewire_integrate(const layer_t *l, const float *currents, int32_t constant, float *state,
                         float *membrane)
{
    const int64_t lanes = l->channels * l->vectors * LANES;
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t t = 0; t < l->steps; t++) {
            const int64_t map = b * l->steps + t;
            const float *current = currents + (constant ? b : map) * lanes;
            current = receive(l, current, b * lanes, lanes);
            for (int64_t i = 0; i < lanes; i++)
                membrane[map * lanes + i] = advance(&l->neuron, current[i], state + b * lanes + i);
        }
}

/* ---------------------------------------------------------------- convolution
 * One tile of currents: add the weight of a tap wherever its shifted spike bit is set. */

typedef void add_t(const layer_t *, int64_t, const uint16_t *, float *, int64_t);

typedef float four_t __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t bits_t __attribute__((vector_size(16)));

/* Most machines have vectors of four floats; elsewhere the compiler splits them. */
static void add_portable(const layer_t *l, int64_t channel, const uint16_t *masks, float *current,
                         int64_t vectors)
{
    const bits_t first = {1, 2, 4, 8};
    const bits_t lane[] = {first, first << 4, first << 8, first << 12};
    for (int64_t v = 0; v < vectors; v++) {
        four_t *at = (four_t *)(current + v * LANES), sum[] = {at[0], at[1], at[2], at[3]};
        for (int64_t j = l->start[channel]; j < l->start[channel + 1]; j++) {
            const bits_t w = (bits_t)(l->weight[j] + (four_t){0});
            for (int64_t p = 0; p < l->planes; p++) {
                const bits_t bits = masks[p * l->plane_words + l->offset[j] + v] + (bits_t){0};
                for (int k = 0; k < 4; k++)
                    sum[k] += (four_t)(((bits & lane[k]) == lane[k]) & w);
            }
        }
        for (int k = 0; k < 4; k++)
            at[k] = sum[k];
    }
}

#ifdef X86
__attribute__((target("avx2"))) static inline __m256 where(__m256i bits, __m256i lane, __m256 w)
{
    const __m256i hit = _mm256_cmpeq_epi32(_mm256_and_si256(bits, lane), lane);
    return _mm256_and_ps(_mm256_castsi256_ps(hit), w);
}

/* Four vectors fill half of the sixteen registers and leave room for the masks. */
__attribute__((target("avx2"))) static void add_avx2(const layer_t *l, int64_t channel,
                                                     const uint16_t *masks, float *current,
                                                     int64_t vectors)
{
    enum { PART = 4 };
    const __m256i first = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i lane[] = {first, _mm256_slli_epi32(first, 8), _mm256_slli_epi32(first, 16),
                            _mm256_slli_epi32(first, 24)};
    int64_t v = 0;
    for (; v + PART <= vectors; v += PART) {
        __m256 sum[2 * PART];
        for (int k = 0; k < 2 * PART; k++)
            sum[k] = _mm256_loadu_ps(current + v * LANES + 8 * k);
        for (int64_t j = l->start[channel]; j < l->start[channel + 1]; j++) {
            const __m256 w = _mm256_set1_ps(l->weight[j]);
            for (int64_t p = 0; p < l->planes; p++) {
                const uint16_t *m = masks + p * l->plane_words + l->offset[j] + v;
                for (int k = 0; k < 2 * PART; k += 4) {
                    int32_t two;
                    memcpy(&two, m + k / 2, sizeof two);
                    const __m256i bits = _mm256_set1_epi32(two);
                    for (int i = 0; i < 4; i++)
                        sum[k + i] = _mm256_add_ps(sum[k + i], where(bits, lane[i], w));
                }
            }
        }
        for (int k = 0; k < 2 * PART; k++)
            _mm256_storeu_ps(current + v * LANES + 8 * k, sum[k]);
    }
    add_portable(l, channel, masks + v, current + v * LANES, vectors - v);
}

__attribute__((target("avx512f"))) static void add_avx512(const layer_t *l, int64_t channel,
                                                          const uint16_t *masks, float *current,
                                                          int64_t vectors)
{
    /* Testing one broadcast pair of words against the bits of the lanes gives two masks, and is
     * faster than moving each mask through a general register. */
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i even = _mm512_sllv_epi32(_mm512_set1_epi32(1), lane);
    const __m512i odd = _mm512_slli_epi32(even, LANES);
    int64_t v = 0;
    for (; v + TILE <= vectors; v += TILE) {
        __m512 sum[TILE];
        for (int k = 0; k < TILE; k++)
            sum[k] = _mm512_loadu_ps(current + (v + k) * LANES);
        for (int64_t j = l->start[channel]; j < l->start[channel + 1]; j++) {
            const __m512 w = _mm512_set1_ps(l->weight[j]);
            for (int64_t p = 0; p < l->planes; p++) {
                const uint16_t *m = masks + p * l->plane_words + l->offset[j] + v;
                for (int k = 0; k < TILE; k += 2) {
                    uint32_t both;
                    memcpy(&both, m + k, sizeof both);
                    const __m512i bits = _mm512_set1_epi32((int)both);
                    const __mmask16 low = _mm512_test_epi32_mask(bits, even);
                    const __mmask16 high = _mm512_test_epi32_mask(bits, odd);
                    sum[k] = _mm512_mask_add_ps(sum[k], low, sum[k], w);
                    sum[k + 1] = _mm512_mask_add_ps(sum[k + 1], high, sum[k + 1], w);
                }
            }
        }
        for (int k = 0; k < TILE; k++)
            _mm512_storeu_ps(current + (v + k) * LANES, sum[k]);
    }
    for (; v < vectors; v++) {
        __m512 sum = _mm512_loadu_ps(current + v * LANES);
        for (int64_t j = l->start[channel]; j < l->start[channel + 1]; j++) {
            const __m512 w = _mm512_set1_ps(l->weight[j]);
            for (int64_t p = 0; p < l->planes; p++)
                sum = _mm512_mask_add_ps(sum, masks[p * l->plane_words + l->offset[j] + v], sum, w);
        }
        _mm512_storeu_ps(current + v * LANES, sum);
    }
}
#endif

static add_t *const ADD[] = {
    add_portable,
#ifdef X86
    add_avx2, add_avx512,
#endif
};

static void fill(float *current, float bias, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        current[i] = bias;
}

/* Compute output channels first..last of all maps. masks come from spikewire_spread; scratch holds
 * the current of one channel; if spikes is NULL, write currents
 * [batch][step][channel][vectors][LANES] instead. */
void spikewire_conv(const layer_t *l, const uint16_t *masks, float *state, float *scratch,
                    uint16_t *spikes, float *currents, int64_t first, int64_t last)
{
    const int64_t lanes = l->vectors * LANES;
    for (int64_t o = first; o < last; o++)
        for (int64_t b = 0; b < l->batch; b++)
            for (int64_t t = 0; t < l->steps; t++) {
                const int64_t map = b * l->steps + t, at = map * l->channels + o;
                float *current = spikes ? scratch : currents + at * lanes;
                fill(current, l->bias[o], lanes);
                ADD[l->path](l, o, masks + map * l->planes * l->plane_words, current, l->vectors);
                if (!spikes)
                    continue;
                const int64_t neuron = (b * l->channels + o) * lanes;
                FIRE[l->path](&l->neuron, receive(l, current, neuron, lanes), state + neuron,
                              spikes + at * l->vectors, l->vectors);
                trim(l, spikes + at * l->vectors, l->vectors);
            }
}

/* Compute the currents of real-valued images [batch][in][rows][width], zero-padded; offset counts
 * floats; rows of the output have LANES * row_words floats, and begin `down` rows apart, `right`
 * columns between two outputs. */
void spikewire_conv_analogue(const layer_t *l, const float *images, int64_t image, int64_t width,
                             int64_t down, int64_t right, float *currents, int64_t first,
                             int64_t last)
{
    const int64_t line = l->row_words * LANES, rows = l->vectors / l->row_words;
    for (int64_t o = first; o < last; o++)
        for (int64_t b = 0; b < l->batch; b++) {
            float *current = currents + (b * l->channels + o) * l->vectors * LANES;
            fill(current, l->bias[o], l->vectors * LANES);
            for (int64_t j = l->start[o]; j < l->start[o + 1]; j++) {
                const float w = l->weight[j], *x = images + b * image + l->offset[j];
                for (int64_t y = 0; y < rows; y++, x += down * width) {
                    float *to = current + y * line;
                    if (right == 1)
                        for (int64_t i = 0; i < line; i++)
                            to[i] += w * x[i];
                    else
                        for (int64_t i = 0; i < line; i++)
                            to[i] += w * x[i * right];
                }
            }
        }
}

/* ---------------------------------------------------------------- fully connected
 * A block of `vectors` words of outputs, starting at word `begin` of `total` words. */

/* Up to GROUP steps of a sample run together: a column is fetched once, and each of its weights is
 * added to the currents of the steps in which the input fires. */
enum { GROUP = 8 };

typedef struct {
    uint32_t input, steps; /* one bit per step */
} event_t;

/* List the inputs that fire in `steps` maps, in order, once per plane; return their number. */
static int64_t list_events(const layer_t *l, const uint16_t *maps, int64_t steps, int64_t rows,
                           int64_t row_words, int64_t width, event_t *events)
{
    const int64_t map = l->planes * l->plane_words;
    const unsigned last = 0xffffu >> (-width & (LANES - 1)); /* bits of the last word of a row */
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < row_words; k++) {
            const uint16_t *word = maps + r * row_words + k;
            unsigned any = 0;
            for (int64_t t = 0; t < steps; t++)
                for (int64_t p = 0; p < l->planes; p++)
                    any |= word[t * map + p * l->plane_words];
            if (k == row_words - 1)
                any &= last;
            for (; any; any &= any - 1) {
                const int bit = __builtin_ctz(any);
                for (int64_t p = 0; p < l->planes; p++) {
                    event_t event = {(uint32_t)(r * width + k * LANES + bit), 0};
                    for (int64_t t = 0; t < steps; t++)
                        event.steps |= (word[t * map + p * l->plane_words] >> bit & 1u) << t;
                    if (event.steps)
                        events[count++] = event;
                }
            }
        }
    return count;
}

/* Columns are far apart in memory: prefetch them, a short one completely. */
static inline void fetch(const layer_t *l, const event_t *events, int64_t e, int64_t count)
{
    enum { AHEAD = 8, LINE = 16, MOST = 8 * LINE };
    if (e + 2 * AHEAD < count)
        __builtin_prefetch(l->start + events[e + 2 * AHEAD].input);
    if (e + AHEAD < count) {
        const int64_t *next = l->start + events[e + AHEAD].input;
        const int64_t end = next[1] - next[0] < MOST ? next[1] : next[0] + MOST;
        for (int64_t j = next[0]; j < end; j += LINE) {
            __builtin_prefetch(l->weight + j);
            __builtin_prefetch(l->post + j);
        }
    }
}

typedef void columns_t(const layer_t *, const event_t *, int64_t, float *);

static void columns_single(const layer_t *l, const event_t *events, int64_t count, float *current)
{
    for (int64_t e = 0; e < count; e++) {
        fetch(l, events, e, count);
        for (int64_t j = l->start[events[e].input]; j < l->start[events[e].input + 1]; j++)
            current[l->post[j]] += l->weight[j];
    }
}

typedef float group_t __attribute__((vector_size(4 * GROUP), aligned(4), may_alias));

/* current: [output][GROUP]. Adding a weight times 0 does not change a sum; a weight times 1 is
 * exact. */
static inline __attribute__((always_inline)) void
columns(const layer_t *l, const event_t *events, int64_t count, float *current)
{
    for (int64_t e = 0; e < count; e++) {
        fetch(l, events, e, count);
        group_t fires;
        for (int k = 0; k < GROUP; k++)
            fires[k] = (float)(events[e].steps >> k & 1);
        for (int64_t j = l->start[events[e].input]; j < l->start[events[e].input + 1]; j++)
            *(group_t *)(current + l->post[j] * GROUP) += l->weight[j] * fires;
    }
}

static void columns_portable(const layer_t *l, const event_t *events, int64_t count, float *current)
{
    columns(l, events, count, current);
}

#ifdef X86
__attribute__((target("avx2"))) static void
columns_avx2(const layer_t *l, const event_t *events, int64_t count, float *current)
{
    columns(l, events, count, current);
}
#endif

static columns_t *const COLUMNS[] = {
    columns_portable,
#ifdef X86
    columns_avx2, columns_avx2,
#endif
};

/* Input rows have `width` neurons; `events` has room for all inputs in all planes, `scratch` for
 * 1 + GROUP currents; if spikes is NULL, write currents [batch][step][total][LANES] instead. */
void spikewire_linear(const layer_t *l, const uint16_t *input, int64_t rows, int64_t row_words,
                      int64_t width, int64_t begin, int64_t total, float *state, float *scratch,
                      event_t *events, uint16_t *spikes, float *currents)
{
    const int64_t lanes = l->vectors * LANES, stride = l->steps == 1 ? 1 : GROUP;
    columns_t *add = l->steps == 1 ? columns_single : COLUMNS[l->path];
    float *sums = scratch + lanes;
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t first = 0; first < l->steps; first += GROUP) {
            const int64_t left = l->steps - first, steps = left < GROUP ? left : GROUP;
            const int64_t map = b * l->steps + first;
            for (int64_t i = 0; i < lanes; i++)
                fill(sums + i * stride, l->bias[begin * LANES + i], stride);
            const uint16_t *arriving = input + map * l->planes * l->plane_words;
            add(l, events, list_events(l, arriving, steps, rows, row_words, width, events), sums);
            for (int64_t t = 0; t < steps; t++) {
                const int64_t at = (map + t) * total + begin;
                float *current = spikes ? scratch : currents + at * LANES;
                for (int64_t i = 0; i < lanes; i++)
                    current[i] = sums[i * stride + t];
                if (!spikes)
                    continue;
                const int64_t neuron = (b * total + begin) * LANES;
                FIRE[l->path](&l->neuron, receive(l, current, neuron, lanes), state + neuron,
                              spikes + at, l->vectors);
            }
        }
    if (spikes && begin + l->vectors == total)
        for (int64_t map = 0; map < l->batch * l->steps; map++)
            spikes[map * total + total - 1] &= (uint16_t)l->tail;
}

/* Compute the currents of real-valued images [batch][inputs]. */
void spikewire_linear_analogue(const layer_t *l, const float *images, int64_t inputs, int64_t begin,
                               int64_t total, float *currents)
{
    for (int64_t b = 0; b < l->batch; b++) {
        const float *x = images + b * inputs;
        float *current = currents + (b * total + begin) * LANES;
        memcpy(current, l->bias + begin * LANES, sizeof(float) * (size_t)(l->vectors * LANES));
        for (int64_t i = 0; i < inputs; i++)
            if (x[i] != 0.0f)
                for (int64_t j = l->start[i]; j < l->start[i + 1]; j++)
                    current[l->post[j]] += l->weight[j] * x[i];
    }
}

/* ---------------------------------------------------------------- between layers */

/* Return sixteen bits starting at bit `at`; bits outside the row are 0. */
static unsigned bits_at(const uint16_t *row, int64_t words, int64_t at)
{
    const int64_t word = at >> 4;
    const int shift = (int)(at & 15);
    const unsigned low = word >= 0 && word < words ? row[word] : 0;
    const unsigned high = word + 1 >= 0 && word + 1 < words ? row[word + 1] : 0;
    return (low >> shift | high << (LANES - shift)) & 0xffff;
}

/* A row of up to 64 bits fits in a register: shift it once per tap. */
static void spread_short(const uint16_t *row, int64_t words, int64_t taps, int64_t apart,
                         int64_t padding, uint16_t *out, int64_t stride, int64_t out_words)
{
    uint64_t bits = 0;
    for (int64_t v = 0; v < words; v++)
        bits |= (uint64_t)row[v] << (LANES * v);
    for (int64_t k = 0; k < taps; k++) {
        const int64_t shift = k * apart - padding;
        const uint64_t x = shift < 0 ? bits << -shift : bits >> shift;
        for (int64_t v = 0; v < out_words; v++)
            out[k * stride + v] = (uint16_t)(x >> (LANES * v));
    }
}

/* Return the sixteen bits of x at even positions. */
static unsigned even_bits(uint32_t x)
{
    x &= 0x55555555;
    x = (x | x >> 1) & 0x33333333;
    x = (x | x >> 2) & 0x0f0f0f0f;
    x = (x | x >> 4) & 0x00ff00ff;
    return (x | x >> 8) & 0xffff;
}

/* Return sixteen bits of a row, `apart` from each other, starting at bit `at`. */
static unsigned strided_bits(const uint16_t *row, int64_t words, int64_t at, int64_t apart)
{
    if (apart == 1)
        return bits_at(row, words, at);
    if (apart == 2)
        return even_bits(bits_at(row, words, at) | bits_at(row, words, at + LANES) << LANES);
    unsigned bits = 0;
    for (int k = 0; k < LANES; k++)
        bits |= (bits_at(row, words, at + k * apart) & 1) << k;
    return bits;
}

/* Windows of a convolution or a pool: rows, columns. */
typedef struct {
    int64_t size[2], stride[2], padding[2], dilation[2];
} window_t;

/* Shift the spikes: bit x of masks[map][k][slot(padding + y)] is
 * spike[map][y][x * stride + k * dilation - padding]; rows of padding are 0. Rows that are a stride
 * apart are neighbours: slot(r) = r % stride * lines + r / stride. Bits beyond the width of the
 * output only reach lanes that are not neurons. */
void spikewire_spread(const uint16_t *spikes, uint16_t *masks, int64_t maps, int64_t height,
                      int64_t words, const window_t *w, int64_t lines, int64_t out_words)
{
    const int64_t taps = w->size[1], apart = w->dilation[1], padding = w->padding[1];
    const int64_t stride = w->stride[0] * lines * out_words;
    const int is_short = words <= 4 && out_words <= 4 && w->stride[1] == 1
                         && (taps - 1) * apart < 64 && padding < 64;
    memset(masks, 0, sizeof(uint16_t) * (size_t)(maps * taps * stride));
    for (int64_t i = 0; i < maps; i++)
        for (int64_t y = 0; y < height; y++) {
            const uint16_t *row = spikes + (i * height + y) * words;
            const int64_t r = w->padding[0] + y;
            const int64_t slot = r % w->stride[0] * lines + r / w->stride[0];
            uint16_t *out = masks + i * taps * stride + slot * out_words;
            if (is_short) {
                spread_short(row, words, taps, apart, padding, out, stride, out_words);
                continue;
            }
            for (int64_t k = 0; k < taps; k++)
                for (int64_t v = 0; v < out_words; v++)
                    out[k * stride + v] = (uint16_t)strided_bits(
                        row, words, v * LANES * w->stride[1] + k * apart - padding, w->stride[1]);
        }
}

/* Pool windows: one plane per position, or all positions merged. A plane of the input is
 * [channel][height][words]; a map of out is [positions or 1][channel][out_height][out_words]. */
void spikewire_pool(const uint16_t *spikes, uint16_t *out, int64_t maps, int64_t channels,
                    int64_t height, int64_t words, const window_t *w, int64_t out_height,
                    int64_t out_words, uint32_t tail, int32_t merge)
{
    const int64_t rows = w->size[0], columns = w->size[1], stride = w->stride[1];
    const int64_t plane = channels * out_height * out_words, planes = merge ? 1 : rows * columns;
    memset(out, 0, sizeof(uint16_t) * (size_t)(maps * planes * plane));
    for (int64_t i = 0; i < maps * channels; i++)
        for (int64_t y = 0; y < out_height; y++)
            for (int64_t k = 0; k < rows * columns; k++) {
                const int64_t r = y * w->stride[0] + k / columns - w->padding[0];
                if (r < 0 || r >= height)
                    continue;
                const uint16_t *row = spikes + (i * height + r) * words;
                uint16_t *to = out + (i / channels * planes + (merge ? 0 : k)) * plane
                               + (i % channels * out_height + y) * out_words;
                const int64_t at = k % columns - w->padding[1];
                for (int64_t v = 0; v < out_words; v++)
                    to[v] |= (uint16_t)strided_bits(row, words, v * LANES * stride + at, stride);
                to[out_words - 1] &= (uint16_t)tail;
            }
}

/* Pool currents [map][height][line], `width` of a line exist: the largest of a window, or the sum
 * in the order of rows and columns. Lanes beyond `out_width` become 0. */
void spikewire_pool_currents(const float *currents, float *out, int64_t maps, int64_t height,
                             int64_t width, int64_t line, const window_t *w, int64_t out_height,
                             int64_t out_width, int64_t out_line, int32_t largest)
{
    for (int64_t i = 0; i < maps; i++)
        for (int64_t y = 0; y < out_height; y++) {
            float *to = out + (i * out_height + y) * out_line;
            memset(to, 0, sizeof(float) * (size_t)out_line);
            for (int64_t x = 0; x < out_width; x++) {
                float found = largest ? -INFINITY : 0.0f;
                for (int64_t k = 0; k < w->size[0] * w->size[1]; k++) {
                    const int64_t r = y * w->stride[0] + k / w->size[1] - w->padding[0];
                    const int64_t c = x * w->stride[1] + k % w->size[1] - w->padding[1];
                    if (r < 0 || r >= height || c < 0 || c >= width)
                        continue;
                    const float value = currents[(i * height + r) * line + c];
                    found = !largest ? found + value : value > found ? value : found;
                }
                to[x] = found;
            }
        }
}

/* Copy `bytes` from [outer][row] to [outer][row], each with own distances in bytes. */
void spikewire_copy(void *to, const void *from, int64_t outer, int64_t rows, int64_t bytes,
                    int64_t to_outer, int64_t to_row, int64_t from_outer, int64_t from_row)
{
    for (int64_t i = 0; i < outer; i++)
        for (int64_t j = 0; j < rows; j++)
            memcpy((char *)to + i * to_outer + j * to_row,
                   (const char *)from + i * from_outer + j * from_row, (size_t)bytes);
}

/* Add currents to others. */
void spikewire_add(float *to, const float *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += from[i];
}

/* Read spikes [batch][step][row][words], or currents [batch][step][row][words][LANES] if spikes is
 * NULL, as floats [step][batch][row][width]. */
void spikewire_read(const uint16_t *spikes, const float *currents, float *out, int64_t batch,
                    int64_t steps, int64_t rows, int64_t width, int64_t words)
{
    for (int64_t t = 0; t < steps; t++)
        for (int64_t b = 0; b < batch; b++)
            for (int64_t r = 0; r < rows; r++, out += width) {
                const int64_t at = ((b * steps + t) * rows + r) * words;
                if (!spikes)
                    memcpy(out, currents + at * LANES, sizeof(float) * (size_t)width);
                else
                    for (int64_t x = 0; x < width; x++)
                        out[x] = (float)(spikes[at + x / LANES] >> x % LANES & 1);
            }
}

/* ---------------------------------------------------------------- programs
 * Recorded calls: program.py writes them, in the order of SIGNATURES in library.py. */

typedef struct {
    int64_t function, arguments[12];
} call_t;

void spikewire_run(const call_t *calls, int64_t count)
{
    for (const call_t *c = calls; c < calls + count; c++) {
        const int64_t *a = c->arguments;
        void *p[12];
        for (int i = 0; i < 12; i++)
            p[i] = (void *)(intptr_t)a[i];
        switch (c->function) {
        case 0:
            spikewire_fire(p[0], p[1], (int32_t)a[2], p[3], p[4]);
            break;
        case 1:
            spikewire_conv(p[0], p[1], p[2], p[3], p[4], p[5], a[6], a[7]);
            break;
        case 2:
            spikewire_conv_analogue(p[0], p[1], a[2], a[3], a[4], a[5], p[6], a[7], a[8]);
            break;
        case 3:
            spikewire_linear(p[0], p[1], a[2], a[3], a[4], a[5], a[6], p[7], p[8], p[9], p[10],
                             p[11]);
            break;
        case 4:
            spikewire_linear_analogue(p[0], p[1], a[2], a[3], a[4], p[5]);
            break;
        case 5:
            spikewire_spread(p[0], p[1], a[2], a[3], a[4], p[5], a[6], a[7]);
            break;
        case 6:
            spikewire_pool(p[0], p[1], a[2], a[3], a[4], a[5], p[6], a[7], a[8], (uint32_t)a[9],
                           (int32_t)a[10]);
            break;
        case 7:
            spikewire_pool_currents(p[0], p[1], a[2], a[3], a[4], a[5], p[6], a[7], a[8], a[9],
                                    (int32_t)a[10]);
            break;
        case 8:
            spikewire_copy(p[0], p[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]);
            break;
        case 9:
            spikewire_read(p[0], p[1], p[2], a[3], a[4], a[5], a[6], a[7]);
            break;
        case 10:
            spikewire_integrate(p[0], p[1], (int32_t)a[2], p[3], p[4]);
            break;
        default:
            spikewire_add(p[0], p[1], a[2]);
        }
    }
}
