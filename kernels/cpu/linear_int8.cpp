// Linear layers whose weights are quantised.
//
// Inputs are quantised too, row by row in groups of 32: the largest magnitude of a group becomes
// 127. What is multiplied and summed within a group are integers, which have no order. Each output
// is one accumulator, to which the groups are added one after the other with a fused multiply-add
// each: sum × (scale of the inputs × scale of the weights), then the minimum × what the inputs of
// the group sum up to. So its bits depend on its own row and column, not on the tile, the batch,
// the threads or the instructions. `reference.quantised_linear` says the same in a few lines.

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
struct Inputs {
  int8_t codes[ROWS][GROUP];
  float scale[ROWS];
  float sum[ROWS];  // of the inputs that the codes stand for
  int32_t begin[Form::PARTS][ROWS];
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

// One group of one row. If it holds what is not finite, its scale is no number, and so is
// everything that comes of this row.
template <class Form, int ROWS>
INLINE void quantise(const float* x, Inputs<Form, ROWS>& to, long row) {
  const uint32_t bits = largest_bits(x);
  float most;
  std::memcpy(&most, &bits, sizeof most);
  int32_t sums[2] = {};
  if (most >= LEAST && most <= FLT_MAX) {
    round_to_bytes(x, 127.0f / most, to.codes[row], sums);
    to.scale[row] = most / 127.0f;
  } else {
    std::memset(to.codes[row], 0, GROUP);
    to.scale[row] = most < LEAST ? 0.0f : NAN;
  }
  const int32_t total = sums[0] + sums[1];
  to.sum[row] = to.scale[row] * static_cast<float>(total);
  for (int part = 0; part < Form::PARTS; ++part)
    to.begin[part][row] = -Form::OFFSET * (Form::PARTS == 1 ? total : sums[part]);
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
void multiply(const Linear& job, const Inputs<Form, ROWS>* inputs, long row, long panel,
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
      const Inputs<Form, ROWS>& in = inputs[g];
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
  auto* inputs = static_cast<Inputs<Form, ROWS>*>(
      room(tiles * groups * sizeof(Inputs<Form, ROWS>)));

  const auto quantise_tile = [&](long tile) {
    Inputs<Form, ROWS>* to = inputs + tile * groups;
    const long rows = std::min<long>(ROWS, job.rows - tile * ROWS);
    if (rows < ROWS) std::memset(to, 0, groups * sizeof *to);
    for (long r = 0; r < rows; ++r)
      for (long g = 0; g < groups; ++g)
        quantise(job.x + ((tile * ROWS + r) * groups + g) * GROUP, to[g], r);
  };
  const long some = std::max(1L, QUANTISED_A_TASK / (ROWS * groups * GROUP));
  pool.run((tiles + some - 1) / some, [&](long task) {
    for (long tile = task * some; tile < std::min(tiles, (task + 1) * some); ++tile)
      quantise_tile(tile);
  });

  const long panels = (job.out + PANEL - 1) / PANEL;
  const long block = std::max(1L, ROW_BLOCK / ROWS), blocks = (tiles + block - 1) / block;
  const long parts = std::min((panels + 1) / 2, PARTS_A_THREAD * pool.threads());
  pool.run(blocks * parts, [&](long task) {
    const long first = task / parts * block, last = std::min(tiles, first + block);
    const long part = task % parts;
    for (long panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel)
      for (long tile = first; tile < last; ++tile)
        multiply<Form, ROWS>(job, inputs + tile * groups, tile * ROWS, panel, tile == first);
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
#if defined(__AVX2__)
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
