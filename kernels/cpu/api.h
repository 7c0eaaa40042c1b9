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

// Norms of heads, and of what is added, may be null.
struct Layer {
  const float *attention_norm, *mlp_norm;
  const float *query_norm, *key_norm;
  const float *attention_post_norm, *mlp_post_norm;
  Matrix qkv, attention_out, gate_up, down;
  long activation;  // as in `chairlift_gated`
  long heads;       // which of the `Heads` of a step are its own
};

// K and V of one layer, of the numbers that `Shape` says.
struct Cache {
  void *keys, *values;
};

// The rows of a step; tables are (sequences, width).
struct Rows {
  long count;
  const int64_t *positions, *slots, *tables;
  long width;
};

// Tables of angles, (…, half).
struct Angles {
  const float *cos, *sin;
  long half;
};

// Room for what passes between the kernels of a layer, (rows, …); used again in every layer.
// `share` may be null where nothing is normed or summed over ranks before it is added.
struct Between {
  float *normed, *qkv, *attended, *gate_up, *inner, *share;
};

// What the attention of a layer looks like.
struct Shape {
  long heads, kv_heads, head_dim;
  long block_size;  // positions of a block of the cache
  long half;        // 1 if the cache is in half precision, 0 if in float32
  long window;      // positions that a token sees, its own included; 0: all
  float scale;      // of scores
  float soft_cap;   // scores become cap × tanh(score / cap); 0: they stay
};

// Of layers that are alike: how they attend, and the tiles of the step; see `chairlift_attention`.
struct Heads {
  Shape shape;
  Angles angles;
  const int64_t* tiles;
  long tile_count;
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

// y (count) += x.
API void chairlift_add(void* pool, const float* x, long count, float* y);

// `rms_norm` of each head of the queries and of the keys in qkv, in place; weights are (head_dim).
API void chairlift_norm_heads(void* pool, const Shape* shape, float* qkv, long rows,
                              const float* query, const float* key, float eps);

// y (rows, width) = activation(gate) × up, of (rows, gate then up). The activation is 0 for SiLU,
// 1 for GELU with tanh in place of the error function.
API void chairlift_gated(void* pool, const float* gate_up, long rows, long width, int activation,
                         float* y);

// x (count) = cap × tanh(x / cap).
API void chairlift_soft_cap(void* pool, float* x, long count, float cap);

// Of scores (rows, experts): which experts have the largest, of equal ones the first, to chosen
// (rows, taken), and their softmax to weights; if `normalises`, divided by its sum over them.
API void chairlift_route(void* pool, const float* scores, long rows, long experts, long taken,
                         int normalises, float* weights, int64_t* chosen);

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

// All layers of a step, one kernel after the other; hidden is (rows, hidden). With a group, what
// a layer adds is first summed over its ranks; what that returned is returned, at once if not 0.
API int chairlift_layers(void* pool, void* group, const Heads* heads, float eps,
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

// A seat in a group of two or more ranks that share the file at `path`, which the first to come
// makes; what is longer than `room` floats goes in pieces. Null if that cannot be, and errno says
// why.
API void* chairlift_group_new(const char* path, int rank, int size, long room);

// The calls of a group return 0; or -1 if the ranks do not do the same, or do not agree; or
// 1 + the rank that is lost, its own if it has left. After either they return the same for ever.
// One thread at a time, but for `leave`.

// Waits until all ranks have come, and removes the file.
API int chairlift_group_join(void* group, double seconds);

// x (count) += x of the other ranks, in ascending order of rank, whoever computes it.
API int chairlift_group_sum(void* group, float* x, long count);

// out (rows, total) = part (rows, width) of each rank, side by side; widths may differ.
API int chairlift_group_gather(void* group, const float* part, long rows, long width, float* out,
                               long total);

// Rank 0 gives `length` bytes; the others get the length, and find the bytes at `message` until
// the next call.
API int chairlift_group_share(void* group, const char* message, long* length);
API const void* chairlift_group_message(void* group);

API int chairlift_group_agree(void* group, uint64_t digest);

// From now on the calls of the others say that this rank is lost, the present ones included.
API void chairlift_group_leave(void* group);
API void chairlift_group_delete(void* group);
