/* A sparse spiking neural network in one C99 file, written by spikewire 0.1.0.
 *
 * Neurons: 6 - 12 - 4. Weights: 120 of 120.
 * Constants (flash): 744 bytes. Static variables (RAM): 192 bytes. No malloc, no library calls
 * but memcpy and memset. One network per process: the functions are not reentrant.
 *
 * Images, each shown for 20 time steps:
 *   int spikewire_predict(const uint8_t *pixels, float *scores)   pixels 0..255, normalised here
 *   int spikewire_predict_real(const float *inputs, float *scores)    inputs as in training
 * Data over time, one call per time step:
 *   void spikewire_reset(void)                                    before the first step of a sample
 *   int spikewire_step(const float *inputs, float *scores)        inputs as in training
 *
 * Inputs are 6 numbers, channel by channel and row by row. The functions return the class, 0 to
 * 3, of the time steps so far. Unless it is NULL, `scores` receives 4 means over
 * them. With -DSPIKEWIRE_TEST the file has a main() that returns 0 if the class of a stored input is
 * as expected.
 */
#include <stdint.h>
#include <string.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF /* one rounding per operation, as in spikewire */
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

typedef float weight_t;
typedef float sum_t;     /* of weights that arrive at one neuron in one time step */
typedef uint8_t index_t; /* number of an output */

enum { NO_NEURON, NO_LEAK, MULTIPLY, DIVIDE, MULTIPLY_THEN_ADD, DIVIDE_THEN_ADD, DECAY };
enum { HARD, SOFT, DELAYED_SOFT, DELAYED_HARD };
enum { NO_POOL, MAX_POOL, SUM_POOL };

typedef struct {
    int32_t kind, size, step, padding;
} pool_t;

/* The synapses of input channel c are first[c] to first[c + 1] - 1: output, position in the kernel
 * (times its dilation), weight. A fully connected layer is a convolution of 1 x 1 maps, and has no
 * positions. It reads spikes from SOURCES[first_source] on, and adds the currents of other layers. */
typedef struct {
    int32_t channels, height, width; /* inputs */
    int32_t outputs, rows, columns;  /* currents */
    int32_t out_height, out_width;   /* neurons of one output; fewer where currents are pooled */
    int32_t stride_y, stride_x, padding_y, padding_x;
    const uint32_t *first;
    const index_t *output;
    const uint8_t *row, *column;
    const weight_t *weight;
    const float *bias, *scale;
    int32_t leak, reset;
    float factor, fires_at, rest, fall; /* fall: subtracted by a soft reset */
    int32_t synapse;                    /* leak of the synaptic current, or 0 */
    float loss;                         /* its factor */
    pool_t current_pool, pool;          /* before and after the neurons */
    int32_t state, synaptic;            /* of its first neuron, in the arrays below */
    int32_t fired, pooled;              /* its spikes, in `spikes`, before and after pooling */
    int32_t first_source, last_source;  /* what it reads, in `spikes` */
    int32_t summed;                     /* the sum of that, if it is more than one map */
    int32_t first_added, last_added;    /* currents that it adds, in `membrane` */
} layer_t;

static const uint32_t FIRST_0[7] = {
    0, 12, 24, 36, 48, 60, 72
};
static const uint8_t OUTPUT_0[72] = {
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3,
    4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7,
    8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3,
    4, 5, 6, 7, 8, 9, 10, 11
};
static const float WEIGHT_0[72] = {
    -0.0122259269f, -0.032354787f, -1.56007767f, -1.10707319f, -0.26321134f, -0.636540651f, -0.953244209f, 0.276277453f, -0.724224389f, 1.09489965f, 0.738885403f, 0.0623502024f, 0.876008749f, 1.29478312f, -1.0815022f, -0.71110785f,
    0.172793701f, 1.41090739f, 1.40371776f, -1.52471709f, -0.0589222945f, -0.961510241f, 0.656725228f, 0.378372222f, -1.34402716f, -0.144918427f, -0.673157513f, 0.593131065f, 1.4786365f, -1.05847299f, 0.728671551f, -1.17994583f,
    1.04439831f, 0.30429852f, -0.967307627f, 1.0130707f, -1.20178342f, 0.432110518f, 0.0604919009f, 1.35601795f, -1.51487947f, -0.751720428f, 0.791467011f, -0.841856956f, 1.62341261f, -1.2660687f, 0.493338853f, 1.56799042f,
    -0.62895447f, -0.493511885f, 0.645579696f, -0.336070299f, -1.02803123f, -1.1408751f, 0.0858816653f, 1.03031743f, 0.648105919f, -1.13180494f, 0.896467566f, -1.25842309f, 0.437899143f, -0.320989937f, 0.979833126f, 1.22198808f,
    -0.413417131f, -1.52939773f, -0.837208688f, 0.957458615f, 0.220605716f, -0.843577445f, -0.206112102f, -0.598442614f
};
static const float BIAS_0[12] = {
    0.641782522f, 1.35301554f, 1.42104268f, 1.44088256f, 0.324989408f, -1.42002261f, 0.150223121f, -1.02160931f, -1.52187479f, 1.45090222f, 1.24166238f, -1.62895644f
};
static const uint32_t FIRST_1[13] = {
    0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48
};
static const uint8_t OUTPUT_1[48] = {
    0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
    0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
    0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3
};
static const float WEIGHT_1[48] = {
    0.216127664f, 0.576559305f, -0.0636235476f, 0.45313713f, -0.194520861f, 0.241680384f, 0.173372567f, 0.0691667497f, -0.190018848f, -0.900763392f, -0.472884834f, -0.563411593f, -0.528572083f, -0.664899051f, 0.685173392f, 0.546391606f,
    0.444047213f, 1.08628368f, -0.702680409f, -1.10764515f, -0.683933198f, 0.778057873f, 1.0477407f, -0.684398711f, 0.423303217f, -0.503478467f, 0.791316092f, -0.289056003f, 0.5839414f, -0.290620565f, -0.973739266f, -0.562470019f,
    0.826617301f, -1.09996557f, -0.287386864f, -0.403952777f, 0.431755394f, -0.0207547471f, 0.0521031171f, -0.94641757f, -1.14284778f, -0.8695575f, 0.168472052f, -0.245622292f, -0.749050617f, -0.890685976f, 0.273865253f, 0.246824682f
};
static const float BIAS_1[4] = {
    -0.75224787f, -0.0592584908f, 0.826593339f, -0.118703499f
};
static const int32_t SOURCES[1] = {
    0
};
static const int32_t ADDED[1] = {
    0
};
static const layer_t LAYERS[2] = {
    {.channels = 6, .height = 1, .width = 1, .outputs = 12, .rows = 1, .columns = 1, .out_height = 1, .out_width = 1, .stride_y = 1, .stride_x = 1, .padding_y = 0, .padding_x = 0, .first = FIRST_0, .output = OUTPUT_0, .weight = WEIGHT_0, .bias = BIAS_0, .leak = MULTIPLY, .reset = HARD, .factor = 0.5f, .fires_at = 1.0f, .rest = 0.0f, .fall = 1.0f, .current_pool = {NO_POOL, 1, 1, 0}, .pool = {NO_POOL, 1, 1, 0}, .state = 0, .synaptic = 0, .fired = 0, .pooled = 0, .summed = 0, .first_source = 0, .first_added = 0, .last_source = 0, .last_added = 0},
    {.channels = 12, .height = 1, .width = 1, .outputs = 4, .rows = 1, .columns = 1, .out_height = 1, .out_width = 1, .stride_y = 1, .stride_x = 1, .padding_y = 0, .padding_x = 0, .first = FIRST_1, .output = OUTPUT_1, .weight = WEIGHT_1, .bias = BIAS_1, .leak = MULTIPLY, .reset = HARD, .factor = 0.5f, .fires_at = 1.0f, .rest = 0.0f, .fall = 1.0f, .current_pool = {NO_POOL, 1, 1, 0}, .pool = {NO_POOL, 1, 1, 0}, .state = 12, .synaptic = 0, .fired = 0, .pooled = 0, .summed = 0, .first_source = 0, .first_added = 0, .last_source = 1, .last_added = 0}
};
static const float MEAN[6] = {
    0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f
};
static const float STD[6] = {
    255.0f, 255.0f, 255.0f, 255.0f, 255.0f, 255.0f
};
static float first_current[12];
static float membrane[16]; /* of a layer without neurons: its currents */
#if 0
static float synaptic[0];
#endif
static sum_t sums[12];
static uint8_t spikes[12]; /* of several layers, those of a recurrent one of the last step */
static float total[4]; /* outputs, added up over time */
static int32_t steps;         /* number of them */

/* Call deliver(neuron, weight) for every synapse of one input. */
#define FOR_EACH_SYNAPSE(l, channel, y, x, deliver)                                                \
    for (uint32_t j = (l)->first[channel]; j < (l)->first[(channel) + 1]; j++) {                   \
        int32_t at = (int32_t)(l)->output[j];                                                      \
        if ((l)->row) {                                                                            \
            int32_t oy = (y) + (l)->padding_y - (l)->row[j];                                       \
            int32_t ox = (x) + (l)->padding_x - (l)->column[j];                                    \
            if ((l)->stride_y > 1 || (l)->stride_x > 1) {                                          \
                if (oy % (l)->stride_y || ox % (l)->stride_x)                                      \
                    continue;                                                                      \
                oy /= (l)->stride_y;                                                               \
                ox /= (l)->stride_x;                                                               \
            }                                                                                      \
            if (oy < 0 || ox < 0 || oy >= (l)->rows || ox >= (l)->columns)                         \
                continue;                                                                          \
            at = (at * (l)->rows + oy) * (l)->columns + ox;                                        \
        }                                                                                          \
        deliver;                                                                                   \
    }

static int32_t count_currents(const layer_t *l)
{
    return l->outputs * l->rows * l->columns;
}

static int32_t count_neurons(const layer_t *l)
{
    return l->outputs * l->out_height * l->out_width;
}

/* The first layer: real inputs, computed once per image, or at each time step of data over time. */
static void start_inputs(void)
{
    const layer_t *l = LAYERS;
    for (int32_t i = 0; i < count_currents(l); i++)
        first_current[i] = l->bias[i / (l->rows * l->columns)];
}

static void add_input(int32_t number, float value)
{
    const layer_t *l = LAYERS;
    const int32_t map = l->height * l->width, channel = number / map;
    const int32_t y = number % map / l->width, x = number % l->width;
    if (value != 0.0f)
        FOR_EACH_SYNAPSE(l, channel, y, x, first_current[at] += value * (l->weight[j]))
}

/* Later layers: additions only, for the inputs that fired. */
static const uint8_t *find_spikes(const layer_t *l)
{
    const uint8_t *first = spikes + SOURCES[l->first_source];
    if (l->last_source - l->first_source == 1)
        return first;
    const int32_t count = l->channels * l->height * l->width;
    uint8_t *sum = spikes + l->summed;
    memcpy(sum, first, (size_t)count);
    for (int32_t s = l->first_source + 1; s < l->last_source; s++)
        for (int32_t i = 0; i < count; i++)
            sum[i] = (uint8_t)(sum[i] + spikes[SOURCES[s] + i]);
    return sum;
}

static void add_spikes(const layer_t *l)
{
    const uint8_t *arriving = find_spikes(l);
    for (int32_t i = 0; i < count_currents(l); i++)
        sums[i] = l->bias[i / (l->rows * l->columns)];
    int32_t number = 0;
    for (int32_t channel = 0; channel < l->channels; channel++)
        for (int32_t y = 0; y < l->height; y++)
            for (int32_t x = 0; x < l->width; x++)
                for (uint8_t left = arriving[number++]; left > 0; left--)
                    FOR_EACH_SYNAPSE(l, channel, y, x, sums[at] += l->weight[j])
}

static float current_at(const layer_t *l, const float *currents, int32_t i)
{
    (void)l;
    return currents[i];
}

/* Return the position of number i of a window within its map, or -1 where it is padding. */
static int32_t find_position(const pool_t *p, int32_t height, int32_t width, int32_t y, int32_t x,
                             int32_t i)
{
    const int32_t row = y * p->step - p->padding + i / p->size;
    const int32_t column = x * p->step - p->padding + i % p->size;
    return row < 0 || column < 0 || row >= height || column >= width ? -1 : row * width + column;
}

#if 0
static float pooled_currents[0];

static const float *pool_currents(const layer_t *l, const float *currents)
{
    const pool_t *p = &l->current_pool;
    int32_t to = 0;
    for (int32_t c = 0; c < l->outputs; c++)
        for (int32_t y = 0; y < l->out_height; y++)
            for (int32_t x = 0; x < l->out_width; x++, to++) {
                int32_t seen = 0;
                for (int32_t i = 0; i < p->size * p->size; i++) {
                    const int32_t at = find_position(p, l->rows, l->columns, y, x, i);
                    if (at < 0)
                        continue;
                    const float now = current_at(l, currents, c * l->rows * l->columns + at);
                    if (seen++ == 0)
                        pooled_currents[to] = now;
                    else if (p->kind == SUM_POOL)
                        pooled_currents[to] += now;
                    else if (now > pooled_currents[to])
                        pooled_currents[to] = now;
                }
            }
    return pooled_currents;
}
#endif

/* The currents of a layer; NULL where they have to be computed from sums of integers. */
static const float *find_currents(const layer_t *l)
{
    const float *currents = l == LAYERS ? first_current : sums;
#if 0
    if (l->current_pool.kind != NO_POOL)
        currents = pool_currents(l, currents);
#endif
    if (l->first_added < l->last_added) {
        float *sum = membrane + ADDED[l->first_added]; /* no other layer adds these */
        for (int32_t i = 0; i < count_neurons(l); i++) {
            float now = current_at(l, currents, i);
            for (int32_t a = l->first_added; a < l->last_added; a++)
                now += membrane[ADDED[a] + i];
            sum[i] = now;
        }
        currents = sum;
    }
#if 0
    if (l->synapse) {
        float *kept = synaptic + l->synaptic;
        for (int32_t i = 0; i < count_neurons(l); i++) {
            const float lost = l->loss * kept[i];
            kept[i] = (l->synapse == DECAY ? lost : kept[i] - lost) + current_at(l, currents, i);
        }
        currents = kept;
    }
#endif
    return currents;
}

/* The membrane potential that a current leads to. */
static float charge(const layer_t *l, float current, float u)
{
    switch (MULTIPLY) {
    case MULTIPLY:
        return (current - (u - l->rest)) * l->factor + u;
    case DIVIDE:
        return (current - (u - l->rest)) / l->factor + u;
    case MULTIPLY_THEN_ADD:
        return u - (u - l->rest) * l->factor + current;
    case DIVIDE_THEN_ADD:
        return u - (u - l->rest) / l->factor + current;
    case DECAY:
        return l->factor * u + current;
    default:
        return u + current;
    }
}

/* S = m >= threshold;  u = S ? rest : m.  Soft reset: u = S ? m - fall : m.  Delayed: u = m, and m
 * of the next time step is lowered, or rest. */
static void fire(const layer_t *l, const float *restrict currents, float *restrict u)
{
    uint8_t *fired = spikes + l->fired;
    const int32_t reset = HARD;
    for (int32_t i = 0; i < count_neurons(l); i++) {
        float m = charge(l, current_at(l, currents, i), u[i]);
        if (reset >= DELAYED_SOFT && u[i] >= l->fires_at)
            m = reset == DELAYED_SOFT ? m - l->fall : l->rest;
        fired[i] = m >= l->fires_at;
        u[i] = !fired[i] || reset >= DELAYED_SOFT ? m : reset == HARD ? l->rest : m - l->fall;
    }
}

static void pool(const layer_t *l)
{
    const pool_t *p = &l->pool;
    const uint8_t *fired = spikes + l->fired;
    uint8_t *pooled = spikes + l->pooled;
    const int32_t rows = (l->out_height + 2 * p->padding - p->size) / p->step + 1;
    const int32_t columns = (l->out_width + 2 * p->padding - p->size) / p->step + 1;
    int32_t to = 0;
    for (int32_t c = 0; c < l->outputs; c++)
        for (int32_t y = 0; y < rows; y++)
            for (int32_t x = 0; x < columns; x++, to++) {
                int32_t count = 0;
                for (int32_t i = 0; i < p->size * p->size; i++) {
                    const int32_t at = find_position(p, l->out_height, l->out_width, y, x, i);
                    if (at >= 0)
                        count += fired[c * l->out_height * l->out_width + at];
                }
                pooled[to] = (uint8_t)(p->kind == SUM_POOL ? count : count > 0);
            }
}

static void run_time_step(void)
{
    for (int32_t k = 0; k < 2; k++) {
        const layer_t *l = &LAYERS[k];
        if (k > 0)
            add_spikes(l);
        const float *currents = find_currents(l);
        float *u = membrane + l->state;
        if (l->leak != NO_NEURON)
            fire(l, currents, u);
        else
            for (int32_t i = 0; i < count_neurons(l); i++)
                u[i] = current_at(l, currents, i);
        if (l->pool.kind != NO_POOL)
            pool(l);
    }
    for (int32_t i = 0; i < 4 * 1; i++)
        total[i / 1] += (float)spikes[LAYERS[1].fired + i];
    steps++;
}

static int decide(float *scores)
{
    int best = 0;
    for (int i = 0; i < 4; i++) {
        if (total[i] > total[best])
            best = i;
        if (scores)
            scores[i] = total[i] / (float)(steps * 1);
    }
    return best;
}

void spikewire_reset(void);
int spikewire_step(const float *inputs, float *scores);
int spikewire_predict_real(const float *inputs, float *scores);
int spikewire_predict(const uint8_t *pixels, float *scores);

void spikewire_reset(void)
{
    float *u = membrane;
    for (int32_t k = 0; k < 2; k++)
        for (int32_t i = 0; i < count_neurons(&LAYERS[k]); i++)
            *u++ = LAYERS[k].rest;
#if 0
    memset(synaptic, 0, sizeof synaptic);
#endif
    memset(spikes, 0, sizeof spikes);
    memset(total, 0, sizeof total);
    steps = 0;
}

static void read_inputs(const float *inputs)
{
    start_inputs();
    for (int32_t i = 0; i < 6; i++)
        add_input(i, inputs[i]);
}

int spikewire_step(const float *inputs, float *scores)
{
    read_inputs(inputs);
    run_time_step();
    return decide(scores);
}

static int show_image(float *scores)
{
    spikewire_reset();
    while (steps < 20)
        run_time_step();
    return decide(scores);
}

int spikewire_predict_real(const float *inputs, float *scores)
{
    read_inputs(inputs);
    return show_image(scores);
}

int spikewire_predict(const uint8_t *pixels, float *scores)
{
    start_inputs();
    for (int32_t i = 0; i < 6; i++)
        add_input(i, ((float)pixels[i] - MEAN[i / 1]) / STD[i / 1]);
    return show_image(scores);
}

