// Paged causal attention for a mixed batch.
//
// A task is one tile of a sequence's new positions and one K/V head: all query heads that share
// it, at each of the positions, so that K and V are read once for all of them. A pair (position,
// head) goes through the keys from position 0 on, in spans of 64, with an online softmax
// (Milakov and Gimelshein 2018). Where a span begins depends on nothing but the positions, and
// within a span every sum has its order: scores over the elements, values over the keys, the
// normaliser lane by lane. So a pair's bits do not depend on chunks, prefixes, company or blocks.
// With a window it is the same, but for keys before it, which a pair leaves out; spans that lie
// before the windows of all pairs are not visited.

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "api.h"
#include "cache.h"
#include "pool.h"
#include "tile.h"

namespace chairlift {
namespace {

constexpr int ROWS = 6;  // pairs of one register tile

// Memory of the calling thread, handed out in pieces that start at a cache line. It is kept from
// one task to the next: to ask the system for it costs as much as a short sequence.
class Scratch {
 public:
  // Room for pieces of so many bytes in all, if each is of whole lines.
  explicit Scratch(long bytes) {
    thread_local std::unique_ptr<uint8_t[]> memory;
    thread_local long size = 0;
    if (bytes > size) {
      memory.reset(new uint8_t[bytes + LINE]);
      size = bytes;
    }
    free_ = memory.get() + -reinterpret_cast<uintptr_t>(memory.get()) % LINE;
  }
  template <class T>
  T* take(long count) {
    return reinterpret_cast<T*>(std::exchange(free_, free_ + lines<T>(count)));
  }
  template <class T>
  static long lines(long count) {
    return (count * static_cast<long>(sizeof(T)) + LINE - 1) / LINE * LINE;
  }

 private:
  static constexpr long LINE = 64;
  uint8_t* free_;
};

// One task: its pairs, position by position, so that a later pair sees as many keys or more.
template <class T>
class Pass {
 public:
  Pass(const Past<T>& past, long position, long rows)
      : past_(past),
        dim_(past.shape.head_dim),
        panels_(head_panels(past.shape)),
        group_(past.shape.heads / past.shape.kv_heads),
        position_(position),
        count_(rows * group_),
        scratch_(Scratch::lines<float>(count_ * SPAN) +
                 Scratch::lines<float>(count_ * panels_ * LANES) +
                 Scratch::lines<float>(count_ * LANES) + Scratch::lines<float>(count_ * dim_) +
                 Scratch::lines<float>(count_) + Scratch::lines<long>(count_) +
                 Scratch::lines<T>(span_room(past.shape))),
        scores_(scratch_.take<float>(count_ * SPAN)),
        sums_(scratch_.take<float>(count_ * panels_ * LANES)),
        weight_(scratch_.take<float>(count_ * LANES)),
        query_(scratch_.take<float>(count_ * dim_)),
        most_(scratch_.take<float>(count_)),
        seen_(scratch_.take<long>(count_)),
        room_(scratch_.take<T>(span_room(past.shape))) {
    std::fill_n(sums_, count_ * panels_ * LANES, 0.0f);
    std::fill_n(weight_, count_ * LANES, 0.0f);
    std::fill_n(most_, count_, -INFINITY);
    for (long pair = 0; pair < count_; ++pair) seen_[pair] = position + pair / group_ + 1;
    window_ = past.shape.window ? past.shape.window : position + rows;
  }

  // `qkv` is the row of the first position, `y` likewise.
  void run(const float* qkv, float* y) {
    const Shape& shape = past_.shape;
    const long first_head = past_.kv_head * group_;
    const long width = (shape.heads + 2 * shape.kv_heads) * dim_;
    for (long pair = 0; pair < count_; ++pair) {
      const float* from = qkv + pair / group_ * width + (first_head + pair % group_) * dim_;
      for (long d = 0; d < dim_; ++d) query_[pair * dim_ + d] = from[d] * shape.scale;
    }
    const long end = seen_[count_ - 1];
    for (long start = std::max(0L, seen_[0] - window_) / SPAN * SPAN; start < end; start += SPAN)
      attend(find_span(past_, start, std::min<long>(SPAN, end - start), room_));
    for (long pair = 0; pair < count_; ++pair) {
      float* to = y + (pair / group_ * shape.heads + first_head + pair % group_) * dim_;
      const float total = sum_lanes(load(weight_ + pair * LANES));
      for (long d = 0; d < dim_; ++d) to[d] = sums_[pair * panels_ * LANES + d] / total;
    }
  }

 private:
  void attend(const Span<T>& span) {
    // Earlier positions end before the span; the windows of later ones begin behind it.
    const long first = std::max(0L, span.start - position_) * group_;
    const long last = std::min(count_, (span.start + SPAN - 1 + window_ - position_) * group_);
    const long left = last - first, tiles = (left + ROWS - 1) / ROWS;
    for (long i = 0; i < tiles; ++i) {
      const long from = left * i / tiles, to = left * (i + 1) / tiles;
      switch (to - from) {
        case 1: attend<1>(span, first + from); break;
        case 2: attend<2>(span, first + from); break;
        case 3: attend<3>(span, first + from); break;
        case 4: attend<4>(span, first + from); break;
        case 5: attend<5>(span, first + from); break;
        default: attend<ROWS>(span, first + from);
      }
    }
  }

  // COUNT pairs against a span. The keys that all of them see are summed up for all together,
  // the rest for each alone.
  template <int COUNT>
  void attend(const Span<T>& span, long pair) {
    long from[COUNT], seen[COUNT];
    for (int i = 0; i < COUNT; ++i) {
      seen[i] = std::min<long>(SPAN, seen_[pair + i] - span.start);
      from[i] = std::max(0L, seen_[pair + i] - window_ - span.start);
    }
    const long most = seen[COUNT - 1];
    score<COUNT>(span, pair, from[0] / LANES, (most + LANES - 1) / LANES);
    for (int i = 0; i < COUNT; ++i) soften(pair + i, from[i], seen[i]);
    const long first = std::min(from[COUNT - 1], seen[0]), last = seen[0];
    for (int i = 0; i < COUNT; ++i)
      if (from[i] < first) add_values<1>(span, pair + i, from[i], first);
    if (first < last) add_values<COUNT>(span, pair, first, last);
    for (int i = 0; i < COUNT; ++i)
      if (seen[i] > last) add_values<1>(span, pair + i, std::max(from[i], last), seen[i]);
  }

  template <int COUNT>
  void score(const Span<T>& span, long pair, long panel, long panels) {
    constexpr int MOST = panels_for(COUNT);
    for (; panel + MOST <= panels; panel += MOST) score_tile<COUNT, MOST>(span, pair, panel);
    for (; panel < panels; ++panel) score_tile<COUNT, 1>(span, pair, panel);
  }

  template <int COUNT, int PANELS>
  void score_tile(const Span<T>& span, long pair, long panel) {
    const T* keys[PANELS];
    for (int p = 0; p < PANELS; ++p) keys[p] = span.keys[panel + p];
    Vec sums[COUNT][PANELS];
    clear_tile(sums);
    const long step = LANES * span.value_step / dim_;
    add_products(sums, query_ + pair * dim_, dim_, keys, span.key_step, 0, dim_, [&](long i) {
      for (int p = 0; p < PANELS; ++p) __builtin_prefetch(span.values[panel + p] + i * step);
    });
    store_tile(sums, scores_ + pair * SPAN + panel * LANES, SPAN);
  }

  // Scores of one pair to weights, in units of its largest score so far; when that grows, what
  // was summed up is brought to the new units. Scores of keys that the pair may not see, before
  // `from` and from `seen` on, become weights of 0, computed or not.
  void soften(long pair, long from, long seen) {
    float* const scores = scores_ + pair * SPAN;
    if (past_.shape.soft_cap > 0) cap(scores);
    Vec parts[SPAN_PANELS], largest = splat(-INFINITY);
#pragma GCC unroll 4
    for (int p = 0; p < SPAN_PANELS; ++p) {
      const Vec left = splat(static_cast<float>(seen - p * LANES));
      const Vec hidden = splat(static_cast<float>(from - p * LANES));
      parts[p] = where_less(lane_numbers(), left, load(scores + p * LANES), splat(-INFINITY));
      parts[p] = where_less(lane_numbers(), hidden, splat(-INFINITY), parts[p]);
      largest = max(largest, parts[p]);
    }
    float* const weight = weight_ + pair * LANES;
    const float before = most_[pair], now = std::max(before, max_lanes(largest));
    if (now != before) {
      const Vec shrink = exp(splat(before) - splat(now));
      float* const sums = sums_ + pair * panels_ * LANES;
      for (long p = 0; p < panels_; ++p)
        store(sums + p * LANES, load(sums + p * LANES) * shrink);
      store(weight, load(weight) * shrink);
      most_[pair] = now;
    }
    Vec total = load(weight);
#pragma GCC unroll 4
    for (int p = 0; p < SPAN_PANELS; ++p) {
      const Vec part = exp(parts[p] - splat(now));
      store(scores + p * LANES, part);
      total = total + part;
    }
    store(weight, total);
  }

  void cap(float* scores) const {
    const Vec most = splat(past_.shape.soft_cap);
    for (int p = 0; p < SPAN_PANELS; ++p)
      store(scores + p * LANES, soft_cap(load(scores + p * LANES), most));
  }

  // The values of the span's keys from `from` to before `to`.
  template <int COUNT>
  void add_values(const Span<T>& span, long pair, long from, long to) {
    constexpr int MOST = panels_for(COUNT);
    long panel = 0;
    for (; panel + MOST <= panels_; panel += MOST)
      add_value_tile<COUNT, MOST>(span, pair, panel, from, to);
    for (; panel < panels_; ++panel) add_value_tile<COUNT, 1>(span, pair, panel, from, to);
  }

  template <int COUNT, int PANELS>
  void add_value_tile(const Span<T>& span, long pair, long panel, long from, long to) {
    float* const out = sums_ + (pair * panels_ + panel) * LANES;
    Vec sums[COUNT][PANELS];
    load_tile(sums, out, panels_ * LANES);
    for (long key = from / LANES * LANES; key < to; key += LANES) {
      const T* values[PANELS];
      for (int p = 0; p < PANELS; ++p) values[p] = span.values[key / LANES] + (panel + p) * LANES;
      add_products(sums, scores_ + pair * SPAN + key, SPAN, values, span.value_step,
                   std::max(from - key, 0L), std::min<long>(to - key, LANES));
    }
    store_tile(sums, out, panels_ * LANES);
  }

  const Past<T>& past_;
  const long dim_, panels_, group_, position_, count_;
  long window_;  // of positions, or so many that nothing is left out
  Scratch scratch_;
  float* const scores_;  // (count, 64) of the present span
  float* const sums_;    // (count, panels, 16) of values so far
  float* const weight_;  // (count, 16) of the keys so far, lane by lane
  float* const query_;   // (count, dim), scaled
  float* const most_;    // (count) largest score so far
  long* const seen_;     // (count) positions that a pair may see
  T* const room_;
};

struct Tile {
  int64_t sequence, row, rows, position;
};

template <class T>
void attend(Pool& pool, const Shape& shape, const float* qkv, const Cache& cache,
            const int64_t* tables, long width, const Tile* tiles, long count, float* y) {
  const long in = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
  const long out = shape.heads * shape.head_dim;
  pool.run(count * shape.kv_heads, [&](long task) {
    const Tile& tile = tiles[task / shape.kv_heads];
    const Past<T> past{shape, static_cast<const T*>(cache.keys),
                       static_cast<const T*>(cache.values), tables + tile.sequence * width,
                       task % shape.kv_heads};
    Pass<T>(past, tile.position, tile.rows).run(qkv + tile.row * in, y + tile.row * out);
  });
}

}  // namespace
}  // namespace chairlift

void chairlift_attention(void* pool, const Shape* shape, const float* qkv, const Cache* cache,
                         const int64_t* tables, long width, const int64_t* tiles, long count,
                         float* y) {
  using namespace chairlift;
  const auto attends = shape->half ? attend<Half> : attend<float>;
  attends(*static_cast<Pool*>(pool), *shape, qkv, *cache, tables, width,
          reinterpret_cast<const Tile*>(tiles), count, y);
}
