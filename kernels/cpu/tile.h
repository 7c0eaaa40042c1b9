// The product that every kernel with a sum inside is made of.
//
// Owns the order of summation: each of a tile's sums is one accumulator in a register, to which
// the products are added one after the other with fused multiply-adds. The shape of a tile decides
// about speed only, since no sum knows of its neighbours.

#pragma once

#include "vec.h"

namespace chairlift {

// Registers for the sums of a tile, and the rows and panels of 16 columns that they may span.
#if defined(WIDE_REGISTERS)
constexpr int TILE_SUMS = 24, TILE_ROWS = 12, TILE_PANELS = 4;
#else
constexpr int TILE_SUMS = 6, TILE_ROWS = 6, TILE_PANELS = 4;
#endif

// Few rows go through several panels at once: enough independent chains to hide the latency of a
// multiply-add.
constexpr int panels_for(int rows) {
  return rows * 4 <= TILE_SUMS ? 4 : rows * 2 <= TILE_SUMS ? 2 : 1;
}

template <int ROWS, int PANELS>
INLINE void clear_tile(Vec (&sums)[ROWS][PANELS]) {
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) sums[r][p] = splat(0.0f);
}

// Rows of memory lie `stride` apart, panels side by side.
template <int ROWS, int PANELS>
INLINE void load_tile(Vec (&sums)[ROWS][PANELS], const float* from, long stride) {
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) sums[r][p] = load(from + r * stride + p * LANES);
}

template <int ROWS, int PANELS>
INLINE void store_tile(const Vec (&sums)[ROWS][PANELS], float* to, long stride) {
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) store(to + r * stride + p * LANES, sums[r][p]);
}

struct Nothing {
  INLINE void operator()(long) const {}
};

// sums[row][panel] += x[row × stride + i] × weight[panel][i × step …  + 15], for i from 0 on.
// `meanwhile(i)` is called beside that, and must not change what is read.
template <int ROWS, int PANELS, class Weight, class Meanwhile = Nothing>
INLINE void add_products(Vec (&sums)[ROWS][PANELS], const float* x, long stride,
                         const Weight* const (&weight)[PANELS], long step, long from, long to,
                         const Meanwhile& meanwhile = {}) {
#pragma GCC unroll 4
  for (long i = from; i < to; ++i) {
    meanwhile(i);
    Vec column[PANELS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; ++p) column[p] = load(weight[p] + i * step);
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) {
      const Vec input = splat(x[r * stride + i]);
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; ++p) sums[r][p] = fma(input, column[p], sums[r][p]);
    }
  }
}

}  // namespace chairlift
