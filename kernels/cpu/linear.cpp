// Linear layers in float32.
//
// Weights stand in panels of 16 outputs, [panel][input][16], so that the innermost step is one
// input times 16 weights. A tile of outputs stays in registers while its inputs go by strictly in
// order: each output is one accumulator and one chain of fused multiply-adds, then the bias. So
// its bits depend on its own row and column, not on the tile, the batch or the threads.

#include <algorithm>

#include "api.h"
#include "pool.h"
#include "tile.h"

namespace chairlift {
namespace {

struct Linear {
  const float* x;       // (rows, in)
  const float* weight;  // (panels, in, 16)
  const float* bias;    // (out), or none
  float* y;             // (rows, … stride …), of which `out` are written
  long in, out, stride;
  bool adds;  // y += … instead of y = …
};

// Weights to fetch into the cache while a tile is being computed.
struct Ahead {
  const float* weight;
  long lines;
};

constexpr long LINE = 64 / sizeof(float);
// Lines fetched for every four inputs: as fast as memory brings them, no faster.
constexpr int FETCHED = 2;
constexpr long ROW_BLOCK = 96;  // rows whose inputs should stay in the cache; whole tiles
// So that a thread that is held up holds up little.
constexpr long PARTS_A_THREAD = 4;

template <int ROWS, int PANELS>
void tile(const Linear& job, long row, long panel, Ahead ahead) {
  const float* weight[PANELS];
  for (int p = 0; p < PANELS; ++p) weight[p] = job.weight + (panel + p) * job.in * LANES;
  const float* x = job.x + row * job.in;
  Vec sums[ROWS][PANELS];
  clear_tile(sums);
  long i = 0;
  for (; i + 4 <= job.in; i += 4) {
    if (ahead.lines > 0) {
#pragma GCC unroll 2
      for (int k = 0; k < FETCHED; ++k) __builtin_prefetch(ahead.weight + k * LINE, 0, 2);
      ahead = {ahead.weight + FETCHED * LINE, ahead.lines - FETCHED};
    }
    add_products(sums, x, job.in, weight, LANES, i, i + 4);
  }
  add_products(sums, x, job.in, weight, LANES, i, job.in);

  // From here on the sums are in memory: few columns are not whole, and code for them would be
  // unrolled as often.
  float done[ROWS * PANELS * LANES];
  store_tile(sums, done, PANELS * LANES);
  for (int p = 0; p < PANELS; ++p) {
    const long column = (panel + p) * LANES, width = std::min<long>(LANES, job.out - column);
    const Vec bias = job.bias ? load_first(job.bias + column, width) : splat(0.0f);
#pragma GCC unroll 1
    for (int r = 0; r < ROWS; ++r) {
      float* y = job.y + (row + r) * job.stride + column;
      Vec sum = load(done + (r * PANELS + p) * LANES);
      if (job.bias) sum = sum + bias;
      if (job.adds) sum = load_first(y, width) + sum;
      store_first(y, sum, width);
    }
  }
}

using Tile = void (*)(const Linear&, long row, long panel, Ahead);

template <int ROWS>
Tile tile_of(int panels) {
  constexpr int most = panels_for(ROWS);
  if (panels >= most) return tile<ROWS, most>;
  return panels >= 2 ? tile<ROWS, std::min(most, 2)> : tile<ROWS, 1>;
}

Tile tile_for(int rows, int panels) {
  switch (rows) {
    case 1: return tile_of<1>(panels);
    case 2: return tile_of<2>(panels);
    case 3: return tile_of<3>(panels);
    case 4: return tile_of<4>(panels);
    case 5: return tile_of<5>(panels);
#if defined(WIDE_REGISTERS)
    case 6: return tile_of<6>(panels);
    case 7: return tile_of<7>(panels);
    case 8: return tile_of<8>(panels);
    case 9: return tile_of<9>(panels);
    case 10: return tile_of<10>(panels);
    case 11: return tile_of<11>(panels);
#endif
    default: return tile_of<TILE_ROWS>(panels);
  }
}

// A block of rows times a run of panels. Panels are the outer loop: the first tile of a panel
// waits for memory, the others find it in the cache, and all of them fetch from the next one.
void compute(const Linear& job, long row, long end_row, long panel, long end_panel) {
  const long rows = end_row - row, tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
  const int most = static_cast<int>((rows + tiles - 1) / tiles);
  for (int width; panel < end_panel; panel += width) {
    width = panels_for(most);
    while (panel + width > end_panel) width /= 2;
    const long next = panel + width;
    Ahead ahead{job.weight + next * job.in * LANES,
                std::min<long>(width, end_panel - next) * job.in * (LANES / LINE)};
    for (long i = 0; i < tiles; ++i) {
      const long first = rows * i / tiles, last = rows * (i + 1) / tiles;
      tile_for(static_cast<int>(last - first), width)(job, row + first, panel, ahead);
      const long fetched = job.in / 4 * FETCHED;
      ahead = {ahead.weight + fetched * LINE, ahead.lines - fetched};
    }
  }
}

}  // namespace
}  // namespace chairlift

void chairlift_linear(void* pool, const float* x, long rows, long in, const float* weight,
                      const float* bias, long out, int adds, float* y, long stride) {
  using namespace chairlift;
  const Linear job{x, weight, bias, y, in, out, stride, adds != 0};
  auto& threads = *static_cast<Pool*>(pool);
  const long panels = (out + LANES - 1) / LANES, blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
  const long parts = std::min((panels + TILE_PANELS - 1) / TILE_PANELS,
                              PARTS_A_THREAD * threads.threads());
  threads.run(blocks * parts, [&](long task) {
    const long block = task / parts, part = task % parts;
    compute(job, block * ROW_BLOCK, std::min(rows, (block + 1) * ROW_BLOCK),
            panels * part / parts, panels * (part + 1) / parts);
  });
}
