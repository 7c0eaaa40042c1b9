#include "cache.h"

#include <algorithm>

namespace chairlift {
namespace {

template <class T>
void copy_panel(const Past<T>& past, long start, long count, T* keys, T* values) {
  const Shape& shape = past.shape;
  const long width = head_panels(shape) * LANES;
  for (long i = 0; i < count; ++i) {
    const long block = past.blocks[(start + i) / shape.block_size];
    const long offset = (start + i) % shape.block_size;
    const T* key = past.keys + key_start(shape, block, past.kv_head, offset);
    const T* value = past.values + value_start(shape, block, past.kv_head, offset);
    for (long d = 0; d < shape.head_dim; ++d) {
      keys[d * LANES + i] = key[d * shape.block_size];
      values[i * width + d] = value[d];
    }
  }
}

}  // namespace

long span_room(const Shape& shape) {
  const bool in_place = shape.block_size % LANES == 0 && shape.head_dim % LANES == 0;
  return in_place ? 0 : 2 * SPAN * head_panels(shape) * LANES;
}

template <class T>
Span<T> find_span(const Past<T>& past, long start, long count, T* room) {
  const Shape& shape = past.shape;
  const bool in_place = span_room(shape) == 0;
  const long width = head_panels(shape) * LANES;
  Span<T> span{};
  span.start = start;
  span.key_step = in_place ? shape.block_size : LANES;
  span.value_step = width;
  for (long p = 0; p * LANES < count; ++p) {
    const long first = start + p * LANES;
    if (in_place) {
      const long block = past.blocks[first / shape.block_size], offset = first % shape.block_size;
      span.keys[p] = past.keys + key_start(shape, block, past.kv_head, offset);
      span.values[p] = past.values + value_start(shape, block, past.kv_head, offset);
    } else {
      T* keys = room + 2 * p * width * LANES;
      T* values = keys + width * LANES;
      copy_panel(past, first, std::min<long>(LANES, count - p * LANES), keys, values);
      span.keys[p] = keys;
      span.values[p] = values;
    }
  }
  return span;
}

template Span<float> find_span(const Past<float>&, long, long, float*);
template Span<Half> find_span(const Past<Half>&, long, long, Half*);

}  // namespace chairlift
