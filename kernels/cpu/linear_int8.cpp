// Linear layers whose weights are quantised.
//
// Inputs are quantised too, row by row in groups of 32: the largest magnitude of a group becomes
// 127. A group whose largest magnitude stands out of its row is wide: what its rounding left over,
// its rest, is quantised once more, so that it keeps about 16 bits. What is multiplied and summed
// within a group are integers, which have no order. Each output is one accumulator, to which first
// the groups and then the rests are added one after the other with a fused multiply-add each: sum ×
// (scale of the inputs × scale of the weights), and after it the minimum × what the inputs of the
// group sum up to. So its bits depend on its own row and column, not on the tile, the batch, the
// threads or the instructions. `reference.quantised_linear` says the same in a few lines.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <memory>

#include "api.h"
#include "dot.h"
#include "panels.h"
#include "pool.h"

namespace chairlift {
namespace {

// A group of inputs of ROWS rows, as a tile reads it.
template <class Form, int ROWS>
struct alignas(8) Inputs {  // for what lies behind them
  int8_t codes[ROWS][GROUP];
  float scale[ROWS];
  float sum[ROWS];  // of the inputs that the codes stand for, and their rests
  int32_t begin[Form::PARTS][ROWS];
};

// What a group leaves over in the rows where it is wide.
template <class Form, int ROWS>
struct Rests {
  long group, count;
  struct {
    int8_t codes[GROUP];
    float scale;
    int32_t begin[Form::PARTS];
    long row;
  } each[ROWS];
};

// A tile of rows, whose groups come in order.
template <class Form, int ROWS>
struct Tile {
  Inputs<Form, ROWS>* inputs;
  Rests<Form, ROWS>* rests;
  long* wide;  // how many of these there are
};

struct Linear {
  const float* x;         // (rows, in)
  const uint8_t* weight;  // panels
  const float* bias;      // (out), or none
  float* y;               // (rows, … stride …), of which `out` are written
  long rows, groups, out, stride;
  bool adds;
};

// Below this the inverse of a scale would not be finite; such a group counts as zeros.
constexpr float LEAST = 1e-30f;

// A group is wide if its largest magnitude is so many times the mean of those of its row. In a
// model that holds for about one in twelve, and the error of a step is a quarter of what it is
// without.
constexpr float WIDE = 2.0f;

constexpr float REST_STEPS = 254.0f;  // of a rest, in one step of the codes: 127 to either side

// What `Sum` begins with, for codes that add up to these.
template <class Form>
INLINE int32_t begin_of(const int32_t (&sums)[2], int part) {
  return -Form::OFFSET * (Form::PARTS == 1 ? sums[0] + sums[1] : sums[part]);
}

// One group of one row, whose largest magnitude is `most`. If it holds what is not finite, its
// scale is no number, and so is everything that comes of this row.
template <class Form, int ROWS>
INLINE void quantise(const float* x, float most, Inputs<Form, ROWS>& to, long row) {
  int32_t sums[2] = {};
  if (most >= LEAST && most <= FLT_MAX) {
    round_to_bytes(x, 127.0f / most, to.codes[row], sums);
    to.scale[row] = most / 127.0f;
  } else {
    std::memset(to.codes[row], 0, GROUP);
    to.scale[row] = most < LEAST ? 0.0f : NAN;
  }
  to.sum[row] = to.scale[row] * static_cast<float>(sums[0] + sums[1]);
  for (int part = 0; part < Form::PARTS; ++part) to.begin[part][row] = begin_of<Form>(sums, part);
}

// What is left over of that, which then counts in the sum of the inputs.
template <class Form, int ROWS>
INLINE void quantise_rest(const float* x, float most, Inputs<Form, ROWS>& of,
                          Rests<Form, ROWS>& to, long row) {
  auto& rest = to.each[to.count++];
  const float factor = 127.0f / most;
  int32_t sums[2] = {};
  for (int i = 0; i < GROUP; ++i) {
    const float left = x[i] * factor - static_cast<float>(of.codes[row][i]);
    rest.codes[i] = round_to_byte(left * REST_STEPS);
    sums[i / (GROUP / 2)] += rest.codes[i];
  }
  rest.row = row;
  rest.scale = of.scale[row] / REST_STEPS;
  for (int part = 0; part < Form::PARTS; ++part) rest.begin[part] = begin_of<Form>(sums, part);
  of.sum[row] = of.sum[row] + rest.scale * static_cast<float>(sums[0] + sums[1]);
}

template <class Form, int ROWS>
void quantise_tile(const Linear& job, long row, const Tile<Form, ROWS>& to) {
  const long groups = job.groups, rows = std::min<long>(ROWS, job.rows - row);
  const float* x = job.x + row * groups * GROUP;
  if (rows < ROWS) std::memset(to.inputs, 0, groups * sizeof *to.inputs);
  float limit[ROWS];
  for (long r = 0; r < rows; ++r) {
    float total = 0.0f;
    for (long g = 0; g < groups; ++g) {
      const uint32_t bits = largest_bits(x + (r * groups + g) * GROUP);
      float most;
      std::memcpy(&most, &bits, sizeof most);
      to.inputs[g].scale[r] = most;
      total = total + most;
    }
    limit[r] = std::max(LEAST, WIDE * (total / static_cast<float>(groups)));
  }
  *to.wide = 0;
  for (long g = 0; g < groups; ++g) {
    Inputs<Form, ROWS>& inputs = to.inputs[g];
    Rests<Form, ROWS>& rests = to.rests[*to.wide];
    rests.group = g;
    rests.count = 0;
    for (long r = 0; r < rows; ++r) {
      const float* from = x + (r * groups + g) * GROUP;
      const float most = inputs.scale[r];
      quantise(from, most, inputs, r);
      if (most >= limit[r] && most <= FLT_MAX) quantise_rest(from, most, inputs, rests, r);
    }
    *to.wide += rests.count > 0;
  }
}

// Adds the products of a group's part to what the sums hold.
template <class Form, int ROWS>
INLINE void add_part(Floats (&totals)[ROWS], const Inputs<Form, ROWS>& in, const uint8_t* codes,
                     const typename Form::Scale* scales, int part) {
  constexpr int FOURS = GROUP / 4, STEP = PANEL * 4;
  Sum<Form::BITS> sums[ROWS];
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r) sums[r].begin(Form::OFFSET ? in.begin[part][r] : 0);
  if constexpr (Form::BITS == 4) {
#pragma GCC unroll 4
    for (int i = 0; i < FOURS / 2; ++i) {
      const Codes both = load_codes(codes + i * STEP);
      const Codes low = low_halves(both), high = high_halves(both);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; ++r) {
        sums[r].add(low, in.codes[r] + i * 4);
        sums[r].add(high, in.codes[r] + i * 4 + GROUP / 2);
      }
    }
  } else {
    const int from = part * FOURS / Form::PARTS, to = (part + 1) * FOURS / Form::PARTS;
#pragma GCC unroll 8
    for (int i = from; i < to; ++i) {
      const Codes each = load_codes(codes + i * STEP);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; ++r) sums[r].add(each, in.codes[r] + i * 4);
    }
  }
  const Floats scale = load_floats(scales + part * PANEL);
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
    totals[r] = fused(sums[r].total(), times(scale, in.scale[r]), totals[r]);
}

// Adds the products of what a group left over, to `WIDTH` columns of some rows.
template <class Form, int ROWS>
INLINE void add_rests(float (&done)[ROWS][PANEL], long column,
                      const Rests<Form, ROWS>& rests, const uint8_t* codes,
                      const typename Form::Scale* scales) {
  constexpr int FOURS = GROUP / 4, STEP = PANEL * 4;
  Codes those[FOURS];
#pragma GCC unroll 8
  for (int i = 0; i < FOURS; ++i) {
    if constexpr (Form::BITS == 8)
      those[i] = load_codes(codes + i * STEP);
    else
      those[i] = i < FOURS / 2 ? low_halves(load_codes(codes + i * STEP))
                               : high_halves(load_codes(codes + (i - FOURS / 2) * STEP));
  }
  for (long k = 0; k < rests.count; ++k) {
    const auto& rest = rests.each[k];
    Floats total = load_floats(done[rest.row] + column);
#pragma GCC unroll 2
    for (int part = 0; part < Form::PARTS; ++part) {
      Sum<Form::BITS> sum;
      sum.begin(Form::OFFSET ? rest.begin[part] : 0);
#pragma GCC unroll 8
      for (int i = part * FOURS / Form::PARTS; i < (part + 1) * FOURS / Form::PARTS; ++i)
        sum.add(those[i], rest.codes + i * 4);
      const Floats scale = load_floats(scales + part * PANEL);
      total = fused(sum.total(), times(scale, rest.scale), total);
    }
    store_floats(done[rest.row] + column, total);
  }
}

// Bias, and what is there already; then to memory.
template <int ROWS>
void finish(const Linear& job, const float (&done)[ROWS][PANEL], long row, long panel) {
  const long first = panel * PANEL, width = std::min(PANEL, job.out - first);
  const Vec bias = job.bias ? load_first(job.bias + first, width) : splat(0.0f);
  for (long r = 0; r < std::min<long>(ROWS, job.rows - row); ++r) {
    float* y = job.y + (row + r) * job.stride + first;
    Vec sum = load(done[r]);
    if (job.bias) sum = sum + bias;
    if (job.adds) sum = load_first(y, width) + sum;
    store_first(y, sum, width);
  }
}

// A tile of rows times a panel. The next panel is fetched meanwhile, if `fetches`.
template <class Form, int ROWS>
void multiply(const Linear& job, const Tile<Form, ROWS>& tile, long row, long panel,
              bool fetches) {
  const long groups = job.groups, bytes = Form::bytes(groups);
  const uint8_t* codes = job.weight + panel * bytes;
  const uint8_t* ahead = codes + bytes;
  const long lines = (bytes / 64 + groups - 1) / groups;
  float done[ROWS][PANEL];
  for (long column = 0; column < PANEL; column += WIDTH) {
    const auto* scales = Form::scales(codes, groups) + column;
    const auto* minima = Form::minima(codes, groups) + column;
    Floats totals[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) totals[r] = no_floats();
    for (long g = 0; g < groups; ++g) {
      const Inputs<Form, ROWS>& in = tile.inputs[g];
      if (fetches)
        for (long k = 0; k < lines; ++k, ahead += 64) __builtin_prefetch(ahead, 0, 2);
#pragma GCC unroll 2
      for (int part = 0; part < Form::PARTS; ++part)
        add_part<Form, ROWS>(totals, in, codes + g * Form::CODES + column * 4,
                             scales + g * Form::SCALES, part);
      if constexpr (Form::HAS_MINIMUM) {
        const Floats minimum = load_floats(minima + g * PANEL);
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; ++r) totals[r] = fused(minimum, in.sum[r], totals[r]);
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) store_floats(done[r] + column, totals[r]);
    for (long k = 0; k < *tile.wide; ++k) {
      const long g = tile.rests[k].group;
      add_rests(done, column, tile.rests[k], codes + g * Form::CODES + column * 4,
                scales + g * Form::SCALES);
    }
    fetches = false;
  }
  finish<ROWS>(job, done, row, panel);
}

// Memory of the calling thread, at the start of a cache line; it is kept from one call to the
// next, because to ask the system for it costs more than a small layer takes.
void* room(std::size_t bytes) {
  thread_local std::unique_ptr<uint8_t[]> memory;
  thread_local std::size_t size = 0;
  if (bytes > size) {
    memory.reset(new uint8_t[bytes + 64]);
    size = bytes;
  }
  return memory.get() + -reinterpret_cast<uintptr_t>(memory.get()) % 64;
}

constexpr long ROW_BLOCK = 96;        // rows whose inputs should stay in the cache
constexpr long PARTS_A_THREAD = 4;    // so that a thread that is held up holds up little
constexpr long QUANTISED_A_TASK = 8192;

template <class Form, int ROWS>
void run(Pool& pool, const Linear& job) {
  const long tiles = (job.rows + ROWS - 1) / ROWS, groups = job.groups;
  constexpr long INPUTS = sizeof(Inputs<Form, ROWS>), RESTS = sizeof(Rests<Form, ROWS>);
  const long a_tile = (groups * (INPUTS + RESTS) + RESTS + 8 + 63) / 64 * 64;
  auto* memory = static_cast<uint8_t*>(room(tiles * a_tile));
  const auto tile_at = [&](long tile) {
    uint8_t* at = memory + tile * a_tile;
    uint8_t* rests = at + groups * INPUTS;
    return Tile<Form, ROWS>{reinterpret_cast<Inputs<Form, ROWS>*>(at),
                            reinterpret_cast<Rests<Form, ROWS>*>(rests),
                            reinterpret_cast<long*>(rests + (groups + 1) * RESTS)};
  };

  const long some = std::max(1L, QUANTISED_A_TASK / (ROWS * groups * GROUP));
  pool.run((tiles + some - 1) / some, [&](long task) {
    for (long tile = task * some; tile < std::min(tiles, (task + 1) * some); ++tile)
      quantise_tile(job, tile * ROWS, tile_at(tile));
  });

  const long panels = (job.out + PANEL - 1) / PANEL;
  const long block = std::max(1L, ROW_BLOCK / ROWS), blocks = (tiles + block - 1) / block;
  const long parts = std::min((panels + 1) / 2, PARTS_A_THREAD * pool.threads());
  pool.run(blocks * parts, [&](long task) {
    const long first = task / parts * block, last = std::min(tiles, first + block);
    const long part = task % parts;
    for (long panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel)
      for (long tile = first; tile < last; ++tile)
        multiply(job, tile_at(tile), tile * ROWS, panel, tile == first);
  });
}

// Tiles of equal size, as few as can be; a last one that is not full is computed as if it were.
template <class Form>
void run(Pool& pool, const Linear& job) {
  const long tiles = (job.rows + DOT_ROWS - 1) / DOT_ROWS;
  switch (tiles ? (job.rows + tiles - 1) / tiles : 0) {
    case 0: return;
#if defined(__AVX512VNNI__)
    case 4: return run<Form, 4>(pool, job);
    case 5: return run<Form, 5>(pool, job);
    case 6: return run<Form, 6>(pool, job);
    case 7:
    case 8: return run<Form, 8>(pool, job);
    case 9:
    case 10: return run<Form, 10>(pool, job);
    case 11: return run<Form, 11>(pool, job);
#endif
#if defined(WIDE_REGISTERS) || defined(NARROW_REGISTERS)
    case 2: return run<Form, 2>(pool, job);
    case 3: return run<Form, 3>(pool, job);
#endif
    case 1: return run<Form, 1>(pool, job);
    default: return run<Form, DOT_ROWS>(pool, job);
  }
}

// The weights of one output.
template <class Form>
void decode(const uint8_t* panel, long column, long groups, float* y) {
  const auto* scales = Form::scales(panel, groups);
  const auto* minima = Form::minima(panel, groups);
  for (long i = 0; i < groups * GROUP; ++i) {
    const long g = i / GROUP, k = i % GROUP, part = k / (GROUP / Form::PARTS);
    const long place = Form::BITS == 4 ? k % (GROUP / 2) : k;
    int code = panel[g * Form::CODES + (place / 4 * PANEL + column) * 4 + place % 4];
    if (Form::BITS == 4) code = k < GROUP / 2 ? code & 15 : code >> 4;
    const float scale = to_float(scales[g * Form::SCALES + part * PANEL + column]);
    y[i] = scale * static_cast<float>(code - Form::OFFSET);
    if (Form::HAS_MINIMUM) y[i] = y[i] + to_float(minima[g * PANEL + column]);
  }
}

}  // namespace
}  // namespace chairlift

using namespace chairlift;

void chairlift_linear_int8(void* pool, const float* x, long rows, long in, int form,
                           const uint8_t* weight, const float* bias, long out, int adds, float* y,
                           long stride) {
  const Linear job{x, weight, bias, y, rows, in / GROUP, out, stride, adds != 0};
  with_form(form, [&](auto kind) { run<decltype(kind)>(*static_cast<Pool*>(pool), job); });
}

void chairlift_embed_int8(void* pool, const int64_t* tokens, long rows, int form,
                          const uint8_t* weight, long width, float* y) {
  const long groups = width / GROUP;
  with_form(form, [&](auto kind) {
    using Kind = decltype(kind);
    static_cast<Pool*>(pool)->run(rows, [&](long row) {
      const long token = tokens[row];
      decode<Kind>(weight + token / PANEL * Kind::bytes(groups), token % PANEL, groups,
                   y + row * width);
    });
  });
}
