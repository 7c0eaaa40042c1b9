// Where the K and V of a position lie, in float32 or half precision.
//
//   keys     [block][kv head][element][position in the block]
//   values   [block][kv head][position in the block][element]
//
// So 16 positions of a key are 16 columns of a tile, as are 16 elements of a value, and both are
// read where they lie. Blocks that are no multiple of 16 positions, and heads that are no multiple
// of 16 elements, are copied first.

#pragma once

#include "api.h"
#include "vec.h"

namespace chairlift {

inline long key_start(const Shape& shape, long block, long kv_head, long offset) {
  return (block * shape.kv_heads + kv_head) * shape.head_dim * shape.block_size + offset;
}

inline long value_start(const Shape& shape, long block, long kv_head, long offset) {
  return ((block * shape.kv_heads + kv_head) * shape.block_size + offset) * shape.head_dim;
}

// Elements of a head, in whole vectors.
inline long head_panels(const Shape& shape) { return (shape.head_dim + LANES - 1) / LANES; }

// What one K/V head of one sequence has in the cache.
template <class T>
struct Past {
  Shape shape;
  const T *keys, *values;
  const int64_t* blocks;
  long kv_head;
};

constexpr int SPAN_PANELS = 4, SPAN = SPAN_PANELS * LANES;

// 64 positions, as panels of 16.
template <class T>
struct Span {
  const T* keys[SPAN_PANELS];    // each [element][… key_step …][16 positions]
  const T* values[SPAN_PANELS];  // each [position][… value_step …][elements]
  long key_step, value_step;
  long start;  // its first position
};

// Room for the copies of a span, in numbers; 0 where none are needed.
long span_room(const Shape& shape);

// The `count` ≤ 64 positions from `start`, a multiple of 64.
template <class T>
Span<T> find_span(const Past<T>& past, long start, long count, T* room);

}  // namespace chairlift
