// Rotary embedding of queries and keys, and the way of keys and values into the cache.

#include <algorithm>
#include <cstring>

#include "api.h"
#include "cache.h"
#include "pool.h"

namespace chairlift {
namespace {

constexpr long ROWS_A_TASK = 8;

// Turns the pairs (x[i], x[i + half]) of one head.
void rotate(float* x, const float* cos, const float* sin, long half) {
  for (long i = 0; i < half; i += LANES) {
    const long left = half - i;
    const Vec c = load_first(cos + i, left), s = load_first(sin + i, left);
    const Vec first = load_first(x + i, left), second = load_first(x + half + i, left);
    store_first(x + i, first * c - second * s, left);
    store_first(x + half + i, second * c + first * s, left);
  }
}

}  // namespace
}  // namespace chairlift

void chairlift_rotate_and_store(void* pool, const Shape* shape, float* qkv, long rows,
                                const float* cos, const float* sin, long half,
                                const int64_t* positions, const int64_t* slots, float* keys,
                                float* values) {
  using namespace chairlift;
  const long dim = shape->head_dim, size = shape->block_size;
  const long rotated = shape->heads + shape->kv_heads, stored = shape->kv_heads;
  const auto one_row = [&](long row) {
    float* x = qkv + row * (rotated + stored) * dim;
    const long angle = positions[row] * half;
    const long block = slots[row] / size, offset = slots[row] % size;
    // Each element of a key goes to a line of its own: all of them are asked for at once.
    for (long head = 0; head < stored; ++head) {
      const float* to = keys + key_start(*shape, block, head, offset);
      for (long i = 0; i < dim; ++i) __builtin_prefetch(to + i * size, 1);
    }
    for (long head = 0; head < rotated; ++head)
      rotate(x + head * dim, cos + angle, sin + angle, half);
    for (long head = 0; head < stored; ++head) {
      const float* key = x + (shape->heads + head) * dim;
      float* to = keys + key_start(*shape, block, head, offset);
      for (long i = 0; i < dim; ++i) to[i * size] = key[i];
      std::memcpy(values + value_start(*shape, block, head, offset), key + stored * dim,
                  dim * sizeof(float));
    }
  };
  static_cast<Pool*>(pool)->run((rows + ROWS_A_TASK - 1) / ROWS_A_TASK, [&](long task) {
    const long end = std::min(rows, (task + 1) * ROWS_A_TASK);
    for (long row = task * ROWS_A_TASK; row < end; ++row) one_row(row);
  });
}
