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

}  // namespace
}  // namespace chairlift

void chairlift_layers(void* pool, const Shape* shape, const Angles* angles, float eps,
                      const Layer* layers, const Cache* caches, long count, const Rows* rows,
                      const Between* between, float* hidden) {
  using chairlift::linear;
  const Between& to = *between;
  const long n = rows->count;
  for (long i = 0; i < count; ++i) {
    const Layer& layer = layers[i];
    const Cache& cache = caches[i];
    const long width = layer.qkv.in;

    chairlift_rms_norm(pool, hidden, n, width, layer.attention_norm, eps, to.normed);
    linear(pool, to.normed, n, layer.qkv, false, to.qkv);
    chairlift_rotate_and_store(pool, shape, to.qkv, n, angles->cos, angles->sin, angles->half,
                               rows->positions, rows->slots, &cache);
    chairlift_attention(pool, shape, to.qkv, &cache, rows->tables, rows->width, rows->tiles,
                        rows->tile_count, to.attended);
    linear(pool, to.attended, n, layer.attention_out, true, hidden);

    chairlift_rms_norm(pool, hidden, n, width, layer.mlp_norm, eps, to.normed);
    linear(pool, to.normed, n, layer.gate_up, false, to.gate_up);
    chairlift_silu_mul(pool, to.gate_up, n, layer.down.in, to.inner);
    linear(pool, to.inner, n, layer.down, true, hidden);
  }
}
