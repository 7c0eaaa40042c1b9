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

// A key's elements lie in a line each: all of them are asked for before the first is written.
template <class T>
void store_head(const Shape& shape, const float* key, const float* value, const Cache& cache,
                long block, long head, long offset) {
  const long dim = shape.head_dim;
  T* values = static_cast<T*>(cache.values) + value_start(shape, block, head, offset);
  T* keys = static_cast<T*>(cache.keys) + key_start(shape, block, head, offset);
  for (long i = 0; i < dim; i += LANES) {
    const long left = std::min<long>(LANES, dim - i);
    T part[LANES];
    store(part, load_first(key + i, left));
    for (long lane = 0; lane < left; ++lane) keys[(i + lane) * shape.block_size] = part[lane];
    store_first(values + i, load_first(value + i, left), left);
  }
}

template <class T>
void rotate_and_store(Pool& pool, const Shape& shape, float* qkv, long rows, const Angles& angles,
                      const int64_t* positions, const int64_t* slots, const Cache& cache) {
  const long dim = shape.head_dim, size = shape.block_size;
  const long rotated = shape.heads + shape.kv_heads, stored = shape.kv_heads;
  const auto one_row = [&](long row) {
    float* x = qkv + row * (rotated + stored) * dim;
    const long angle = positions[row] * angles.half;
    const long block = slots[row] / size, offset = slots[row] % size;
    const T* keys = static_cast<const T*>(cache.keys) + key_start(shape, block, 0, offset);
    for (long i = 0; i < stored * dim; ++i) __builtin_prefetch(keys + i * size, 1);
    for (long head = 0; head < rotated; ++head)
      rotate(x + head * dim, angles.cos + angle, angles.sin + angle, angles.half);
    for (long head = 0; head < stored; ++head) {
      const float* key = x + (shape.heads + head) * dim;
      store_head<T>(shape, key, key + stored * dim, cache, block, head, offset);
    }
  };
  pool.run((rows + ROWS_A_TASK - 1) / ROWS_A_TASK, [&](long task) {
    const long end = std::min(rows, (task + 1) * ROWS_A_TASK);
    for (long row = task * ROWS_A_TASK; row < end; ++row) one_row(row);
  });
}

}  // namespace
}  // namespace chairlift

void chairlift_rotate_and_store(void* pool, const Shape* shape, float* qkv, long rows,
                                const float* cos, const float* sin, long half,
                                const int64_t* positions, const int64_t* slots,
                                const Cache* cache) {
  using namespace chairlift;
  const auto stores = shape->half ? rotate_and_store<Half> : rotate_and_store<float>;
  stores(*static_cast<Pool*>(pool), *shape, qkv, rows, {cos, sin, half}, positions, slots, *cache);
}
