// What Python calls; `library.py` declares the same once more. Shapes are row-major, in elements.

#pragma once

#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

// The sizes that attention needs; one for each model.
struct Shape {
  long heads, kv_heads, head_dim;
  long block_size;  // positions of a block of the cache
};

API void* chairlift_pool_new(int threads);
API void chairlift_pool_delete(void* pool);

// y (rows, out) = x (rows, in) weightᵀ + bias, or y += that. `weight` is (⌈out / 16⌉, in, 16);
// `bias` may be null.
API void chairlift_linear(void* pool, const float* x, long rows, long in, const float* weight,
                          const float* bias, long out, int adds, float* y);

// y (rows, width) = the rows `tokens` of a matrix that is packed as the weight of a linear layer.
API void chairlift_embed(void* pool, const int64_t* tokens, long rows, const float* weight,
                         long width, float* y);

// y = x / √(mean(x²) + eps) × weight: (rows, width), (width).
API void chairlift_rms_norm(void* pool, const float* x, long rows, long width, const float* weight,
                            float eps, float* y);

// y (rows, width) = silu(gate) × up, of (rows, gate then up).
API void chairlift_silu_mul(void* pool, const float* gate_up, long rows, long width, float* y);

// Rotates queries and keys of qkv (rows, heads + 2 kv_heads, head_dim) in place, by the rows
// `positions` of the tables (…, half), and stores keys and values at `slots` of the caches.
API void chairlift_rotate_and_store(void* pool, const Shape* shape, float* qkv, long rows,
                                    const float* cos, const float* sin, long half,
                                    const int64_t* positions, const int64_t* slots, float* keys,
                                    float* values);

// Causal attention of the queries in qkv, as above, to the caches; y is (rows, heads, head_dim).
// `tables` is (sequences, width); `tiles` is (count, 4): sequence, first row, rows, position of
// the first row.
API void chairlift_attention(void* pool, const Shape* shape, const float* qkv, const float* keys,
                             const float* values, const int64_t* tables, long width,
                             const int64_t* tiles, long count, float* y);
