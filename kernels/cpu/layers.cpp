// The layers of a decoder, one after the other.
//
// Owns the order of the kernels in a layer and nothing that they compute: it is here so that
// between two of them there is no way through Python, which takes as long as a small one.

#include "api.h"

namespace chairlift {
namespace {

void linear(void* pool, const float* x, long rows, const Matrix& matrix, bool adds, float* y) {
  const float* bias = matrix.bias;
  for (const Part* part = matrix.parts; part < matrix.parts + matrix.count; ++part) {
    if (part->form < 0)
      chairlift_linear(pool, x, rows, matrix.in, static_cast<const float*>(part->weight), bias,
                       part->outputs, adds, y, matrix.out);
    else
      chairlift_linear_int8(pool, x, rows, matrix.in, static_cast<int>(part->form),
                            static_cast<const uint8_t*>(part->weight), bias, part->outputs, adds,
                            y, matrix.out);
    y += part->outputs;
    if (bias) bias += part->outputs;
  }
}

// Those that compute a layer, and where.
struct Step {
  void *pool, *group;
  const Between& to;
  long rows;
  float eps;
  float* hidden;
};

// hidden += what a linear layer makes of x: on all ranks together, and normed, where it is so.
int add_linear(const Step& step, const float* x, const Matrix& matrix, const float* post_norm) {
  if (!step.group && !post_norm) {
    linear(step.pool, x, step.rows, matrix, true, step.hidden);
    return 0;
  }
  float* share = step.to.share;
  linear(step.pool, x, step.rows, matrix, false, share);
  if (step.group) {
    const int failure = chairlift_group_sum(step.group, share, step.rows * matrix.out);
    if (failure) return failure;
  }
  if (post_norm)
    chairlift_rms_norm(step.pool, share, step.rows, matrix.out, post_norm, step.eps, share);
  chairlift_add(step.pool, share, step.rows * matrix.out, step.hidden);
  return 0;
}

}  // namespace
}  // namespace chairlift

int chairlift_layers(void* pool, void* group, const Heads* heads, float eps, const Layer* layers,
                     const Cache* caches, long count, const Rows* rows, const Between* between,
                     float* hidden) {
  using namespace chairlift;
  const Between& to = *between;
  const long n = rows->count;
  const Step step{pool, group, to, n, eps, hidden};
  for (long i = 0; i < count; ++i) {
    const Layer& layer = layers[i];
    const Cache& cache = caches[i];
    const auto& [shape, angles, tiles, tile_count] = heads[layer.heads];
    const long width = layer.qkv.in;

    chairlift_rms_norm(pool, hidden, n, width, layer.attention_norm, eps, to.normed);
    linear(pool, to.normed, n, layer.qkv, false, to.qkv);
    if (layer.query_norm)
      chairlift_norm_heads(pool, &shape, to.qkv, n, layer.query_norm, layer.key_norm, eps);
    chairlift_rotate_and_store(pool, &shape, to.qkv, n, angles.cos, angles.sin, angles.half,
                               rows->positions, rows->slots, &cache);
    chairlift_attention(pool, &shape, to.qkv, &cache, rows->tables, rows->width, tiles, tile_count,
                        to.attended);
    int failure = add_linear(step, to.attended, layer.attention_out, layer.attention_post_norm);
    if (failure) return failure;

    chairlift_rms_norm(pool, hidden, n, width, layer.mlp_norm, eps, to.normed);
    linear(pool, to.normed, n, layer.gate_up, false, to.gate_up);
    chairlift_gated(pool, to.gate_up, n, layer.down.in, static_cast<int>(layer.activation),
                    to.inner);
    failure = add_linear(step, to.inner, layer.down, layer.mlp_post_norm);
    if (failure) return failure;
  }
  return 0;
}
