// Kernels that look at one row at a time: embedding, normalisation, activation, choice of experts.
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

// part(i, how many are left) for each 16 of `count` elements.
template <class Part>
void each_part(void* pool, long count, const Part& part) {
  static_cast<Pool*>(pool)->run((count + TASK - 1) / TASK, [&](long task) {
    const long end = std::min(count, (task + 1) * TASK);
    for (long i = task * TASK; i < end; i += LANES) part(i, end - i);
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

struct Silu {
  INLINE Vec operator()(Vec x) const { return x / (splat(1.0f) + exp(splat(0.0f) - x)); }
};

// With tanh(u) = 2 / (1 + e^-2u) - 1, and so x / 2 × (1 + tanh(u)) = x / (1 + e^-2u), where
// u = √(2/π) (x + 0.044715 x³).
struct GeluTanh {
  INLINE Vec operator()(Vec x) const {
    const Vec inner = fma(splat(0.044715f), x * x, splat(1.0f)) * x;
    return x / (splat(1.0f) + exp(splat(-1.5957691216f) * inner));
  }
};

template <class Activation>
void gated(const float* gate, const float* up, long width, float* y) {
  for (long i = 0; i < width; i += LANES) {
    const long left = width - i;
    const Vec active = Activation()(load_first(gate + i, left));
    store_first(y + i, active * load_first(up + i, left), left);
  }
}

// What lies behind the last score counts as -∞.
Vec load_scores(const float* scores, long left) {
  const Vec end = splat(static_cast<float>(left));
  return where_less(lane_numbers(), end, load_first(scores, left), splat(-INFINITY));
}

// The largest score, and of equal ones the first, that is not `before` nor better.
long next_best(const float* scores, long experts, long before) {
  long best = -1;
  for (long i = 0; i < experts; ++i) {
    const bool is_left =
        before < 0 || scores[i] < scores[before] || (scores[i] == scores[before] && i > before);
    if (is_left && (best < 0 || scores[i] > scores[best])) best = i;
  }
  return std::max(0L, best);  // scores that are no numbers are not found
}

void route(const float* scores, long experts, long taken, bool normalises, float* weights,
           int64_t* chosen) {
  Vec largest = splat(-INFINITY), total = splat(0.0f);
  for (long i = 0; i < experts; i += LANES)
    largest = max(largest, load_scores(scores + i, experts - i));
  largest = splat(max_lanes(largest));
  for (long i = 0; i < experts; i += LANES)
    total = total + exp(load_scores(scores + i, experts - i) - largest);
  const Vec all = splat(sum_lanes(total));
  float sum = 0.0f;
  for (long i = 0; i < taken; ++i) {
    chosen[i] = next_best(scores, experts, i ? chosen[i - 1] : -1);
    store_first(weights + i, exp(splat(scores[chosen[i]]) - largest) / all, 1);
    sum += weights[i];
  }
  if (normalises)
    for (long i = 0; i < taken; ++i) weights[i] /= sum;
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

void chairlift_norm_heads(void* pool, const Shape* shape, float* qkv, long rows, const float* query,
                          const float* key, float eps) {
  const long dim = shape->head_dim, heads = shape->heads + shape->kv_heads;
  const long width = (heads + shape->kv_heads) * dim;
  each_row(pool, rows, width, [&](long row) {
    for (long head = 0; head < heads; ++head) {
      float* x = qkv + row * width + head * dim;
      rms_norm(x, dim, head < shape->heads ? query : key, eps, x);
    }
  });
}

void chairlift_gated(void* pool, const float* gate_up, long rows, long width, int activation,
                     float* y) {
  const auto computes = activation ? gated<GeluTanh> : gated<Silu>;
  each_row(pool, rows, width, [&](long row) {
    const float* gate = gate_up + 2 * row * width;
    computes(gate, gate + width, width, y + row * width);
  });
}

void chairlift_add(void* pool, const float* x, long count, float* y) {
  each_part(pool, count, [&](long i, long left) {
    store_first(y + i, load_first(y + i, left) + load_first(x + i, left), left);
  });
}

void chairlift_soft_cap(void* pool, float* x, long count, float cap) {
  each_part(pool, count, [&](long i, long left) {
    store_first(x + i, soft_cap(load_first(x + i, left), splat(cap)), left);
  });
}

void chairlift_route(void* pool, const float* scores, long rows, long experts, long taken,
                     int normalises, float* weights, int64_t* chosen) {
  each_row(pool, rows, experts * taken, [&](long row) {
    route(scores + row * experts, experts, taken, normalises != 0, weights + row * taken,
          chosen + row * taken);
  });
}
