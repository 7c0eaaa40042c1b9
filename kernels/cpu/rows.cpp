// Kernels that look at one row at a time: embedding, normalisation, activation.
//
// A row is gone through in vectors of 16, in order; the 16 partial sums meet in `sum_lanes`.

#include <algorithm>
#include <cmath>

#include "api.h"
#include "pool.h"
#include "vec.h"

namespace chairlift {
namespace {

constexpr long TASK = 8192;  // elements that are worth a task

template <class Row>
void each_row(void* pool, long rows, long width, const Row& row) {
  const long a_task = std::max(1L, TASK / std::max(1L, width));
  static_cast<Pool*>(pool)->run((rows + a_task - 1) / a_task, [&](long task) {
    const long end = std::min(rows, (task + 1) * a_task);
    for (long index = task * a_task; index < end; ++index) row(index);
  });
}

void rms_norm(const float* x, long width, const float* weight, float eps, float* y) {
  Vec squares = splat(0.0f);
  for (long i = 0; i < width; i += LANES) {
    const Vec part = load_first(x + i, width - i);
    squares = fma(part, part, squares);
  }
  const Vec scale = splat(1.0f / std::sqrt(sum_lanes(squares) / static_cast<float>(width) + eps));
  for (long i = 0; i < width; i += LANES) {
    const long left = width - i;
    store_first(y + i, load_first(x + i, left) * scale * load_first(weight + i, left), left);
  }
}

void silu_mul(const float* gate, const float* up, long width, float* y) {
  for (long i = 0; i < width; i += LANES) {
    const long left = width - i;
    const Vec g = load_first(gate + i, left);
    const Vec silu = g / (splat(1.0f) + exp(splat(0.0f) - g));
    store_first(y + i, silu * load_first(up + i, left), left);
  }
}

}  // namespace
}  // namespace chairlift

using namespace chairlift;

void chairlift_embed(void* pool, const int64_t* tokens, long rows, const float* weight, long width,
                     float* y) {
  each_row(pool, rows, width, [&](long row) {
    const float* from = weight + tokens[row] / LANES * width * LANES + tokens[row] % LANES;
    for (long i = 0; i < width; ++i) y[row * width + i] = from[i * LANES];
  });
}

void chairlift_rms_norm(void* pool, const float* x, long rows, long width, const float* weight,
                        float eps, float* y) {
  each_row(pool, rows, width, [&](long row) {
    rms_norm(x + row * width, width, weight, eps, y + row * width);
  });
}

void chairlift_silu_mul(void* pool, const float* gate_up, long rows, long width, float* y) {
  each_row(pool, rows, width, [&](long row) {
    const float* gate = gate_up + 2 * row * width;
    silu_mul(gate, gate + width, width, y + row * width);
  });
}
