// What Python calls; `library.py` declares the same once more. Shapes are row-major, in elements.

#pragma once

#include <cstdint>

#define API extern "C" __attribute__((visibility("default")))

// Neighbouring outputs of a matrix: panels of this form, as in `panels.h`; -1 is float32.
struct Part {
  const void* weight;
  long form, outputs;
};

struct Matrix {
  const Part* parts;
  long count;
  const float* bias;  // (out), or null
  long in, out;
};

struct Layer {
  const float *attention_norm, *mlp_norm;
  Matrix qkv, attention_out, gate_up, down;
};

// K and V of one layer, of the numbers that `Shape` says.
struct Cache {
  void *keys, *values;
};

// The rows of a step, and how their attention is cut into tiles; see `chairlift_attention`.
struct Rows {
  long count;
  const int64_t *positions, *slots, *tables;
  long width;
  const int64_t* tiles;
  long tile_count;
};

// Tables of angles, (…, half).
struct Angles {
  const float *cos, *sin;
  long half;
};

// Room for what passes between the kernels of a layer, (rows, …); used again in every layer.
struct Between {
  float *normed, *qkv, *attended, *gate_up, *inner;
};

// The sizes that attention needs; one for each model.
struct Shape {
  long heads, kv_heads, head_dim;
  long block_size;  // positions of a block of the cache
  long half;        // 1 if the cache is in half precision, 0 if in float32
};

// How the token of a row is chosen; `kernels/sampling.py` says what the numbers mean.
struct Choosing {
  float temperature, min_p;
  double top_p;
  int64_t top_k;
  uint64_t seed, choice, position;
};

// Whose log probabilities are wanted: a row's token, and as many of its likeliest ones.
struct Wanted {
  int64_t row, token, count;
};

API void* chairlift_pool_new(int threads);
API void chairlift_pool_delete(void* pool);

// y (rows, out) = x (rows, in) weightᵀ + bias, or y += that. `weight` is (⌈out / 16⌉, in, 16);
// `bias` may be null. Rows of y lie `stride` apart.
API void chairlift_linear(void* pool, const float* x, long rows, long in, const float* weight,
                          const float* bias, long out, int adds, float* y, long stride);

// y (rows, width) = the rows `tokens` of a matrix that is packed as the weight of a linear layer.
API void chairlift_embed(void* pool, const int64_t* tokens, long rows, const float* weight,
                         long width, float* y);

// As `linear`, for a weight that is quantised, in panels as `panels.h` has them; `in` is a multiple
// of 32. Rows of y lie `stride` apart.
API void chairlift_linear_int8(void* pool, const float* x, long rows, long in, int form,
                               const uint8_t* weight, const float* bias, long out, int adds,
                               float* y, long stride);

API void chairlift_embed_int8(void* pool, const int64_t* tokens, long rows, int form,
                              const uint8_t* weight, long width, float* y);

// y = x / √(mean(x²) + eps) × weight: (rows, width), (width).
API void chairlift_rms_norm(void* pool, const float* x, long rows, long width, const float* weight,
                            float eps, float* y);

// y (rows, width) = silu(gate) × up, of (rows, gate then up).
API void chairlift_silu_mul(void* pool, const float* gate_up, long rows, long width, float* y);

// Rotates queries and keys of qkv (rows, heads + 2 kv_heads, head_dim) in place, by the rows
// `positions` of the tables (…, half), and stores keys and values at `slots` of the cache.
API void chairlift_rotate_and_store(void* pool, const Shape* shape, float* qkv, long rows,
                                    const float* cos, const float* sin, long half,
                                    const int64_t* positions, const int64_t* slots,
                                    const Cache* cache);

// Causal attention of the queries in qkv, as above, to the cache; y is (rows, heads, head_dim).
// `tables` is (sequences, width); `tiles` is (count, 4): sequence, first row, rows, position of
// the first row.
API void chairlift_attention(void* pool, const Shape* shape, const float* qkv, const Cache* cache,
                             const int64_t* tables, long width, const int64_t* tiles, long count,
                             float* y);

// All layers of a step, one kernel after the other; hidden is (rows, hidden).
API void chairlift_layers(void* pool, const Shape* shape, const Angles* angles, float eps,
                          const Layer* layers, const Cache* caches, long count, const Rows* rows,
                          const Between* between, float* hidden);

// tokens (rows) from logits (rows, vocabulary), row by row.
API void chairlift_sample(void* pool, const float* logits, long rows, long vocabulary,
                          const Choosing* choosing, int64_t* tokens);

// Of each of `count` wanted: values (count, 1 + most) that of its token, then those of the
// likeliest, whose ids go to tokens (count, most). Behind as many as were wanted, nothing is
// written.
API void chairlift_log_probabilities(void* pool, const float* logits, long vocabulary,
                                     const Wanted* wanted, long count, long most, double* values,
                                     int64_t* tokens);
