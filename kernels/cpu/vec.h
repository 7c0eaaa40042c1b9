// Sixteen floats at a time, in whatever registers the machine has.
//
// Owns the only code that differs between processors. Every operation acts on each lane as IEEE
// 754 says, and products are fused with sums only where `fma` is written. So a kernel gives the
// same bits with AVX2 (two registers) as with AVX-512 (one). The portable form does too where the
// processor has a fused instruction that the compiler knows of; elsewhere `fma` rounds twice.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define WIDE_REGISTERS
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define NARROW_REGISTERS
#endif
#if defined(WIDE_REGISTERS) || defined(NARROW_REGISTERS)
#include <immintrin.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace chairlift {

constexpr int LANES = 16;

// A number in half precision: 10 bits behind the point, at most 65504.
struct Half {
  uint16_t bits;
};
constexpr float MOST_OF_HALF = 65504.0f;

// Exact.
inline float to_float(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000) << 16, rest = half.bits & 0x7fff;
  uint32_t bits;
  if (rest >= 0x7c00) {
    bits = 0x7f800000 | (rest & 0x3ff) << 13;  // not a number, or none that is finite
  } else if (rest >= 0x400) {
    bits = (rest << 13) + (112u << 23);
  } else {
    const float small = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&bits, &small, sizeof bits);
  }
  bits |= sign;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Comparisons with what is not a number fail; `less_bits` has lane i in bit i.
// Where lanes meet, in `sum_lanes` and `max_lanes`, they do so halves onto halves.
#if defined(WIDE_REGISTERS) || defined(NARROW_REGISTERS)
INLINE float sum_lanes(__m256 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
INLINE float max_lanes(__m256 a) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#endif

#if defined(WIDE_REGISTERS)

struct Vec {
  __m512 v;
};

INLINE Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
INLINE Vec load(const Half* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
INLINE void store(float* to, Vec a) { _mm512_storeu_ps(to, a.v); }
INLINE void store_in_half(Half* to, Vec a) {
  const __m256i half = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half);
}
INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
INLINE Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
INLINE unsigned less_bits(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
INLINE Vec power_of_two(Vec whole) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(whole.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
INLINE float sum_lanes(Vec a) {
  return sum_lanes(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}
INLINE float max_lanes(Vec a) {
  return max_lanes(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}

#elif defined(NARROW_REGISTERS)

struct Vec {
  __m256 lo, hi;
};

INLINE Vec load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
INLINE Vec load(const Half* from) {
  const auto* halves = reinterpret_cast<const __m128i*>(from);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
INLINE void store(float* to, Vec a) {
  _mm256_storeu_ps(to, a.lo);
  _mm256_storeu_ps(to + 8, a.hi);
}
INLINE void store_in_half(Half* to, Vec a) {
  constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  auto* halves = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(halves, _mm256_cvtps_ph(a.lo, NEAREST));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.hi, NEAREST));
}
INLINE Vec splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
INLINE Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
INLINE Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
INLINE Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
INLINE Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
INLINE unsigned less_bits(Vec a, Vec b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ));
  return static_cast<unsigned>(hi << 8 | lo);
}
INLINE __m256 power_of_two(__m256 whole) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
INLINE Vec power_of_two(Vec whole) { return {power_of_two(whole.lo), power_of_two(whole.hi)}; }
INLINE float sum_lanes(Vec a) { return sum_lanes(_mm256_add_ps(a.lo, a.hi)); }
INLINE float max_lanes(Vec a) { return max_lanes(_mm256_max_ps(a.lo, a.hi)); }

#else

struct Vec {
  float v[LANES];
};

template <class F>
INLINE Vec each(F&& lane) {
  Vec out;
  for (int i = 0; i < LANES; ++i) out.v[i] = lane(i);
  return out;
}

INLINE Vec load(const float* from) {
  return each([&](int i) { return from[i]; });
}
INLINE Vec load(const Half* from) {
  return each([&](int i) { return to_float(from[i]); });
}
INLINE void store(float* to, Vec a) { std::memcpy(to, a.v, sizeof a.v); }
// To the nearest, and to even where two are near: adding 2^13 times the least bit of what is to
// remain does both at once, for normal numbers; below these the sum with 1/2 does.
INLINE Half to_half(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t sign = bits >> 16 & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (bits >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (bits < 0x38800000) {
    float small;
    std::memcpy(&small, &bits, sizeof small);
    small += 0.5f;
    std::memcpy(&bits, &small, sizeof bits);
    return {static_cast<uint16_t>(sign | (bits - 0x3f000000))};
  }
  bits += 0xfff + (bits >> 13 & 1) - (112u << 23);
  return {static_cast<uint16_t>(sign | bits >> 13)};
}
INLINE void store_in_half(Half* to, Vec a) {
  for (int i = 0; i < LANES; ++i) to[i] = to_half(a.v[i]);
}
INLINE Vec splat(float x) {
  return each([&](int) { return x; });
}
INLINE Vec operator+(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
INLINE Vec operator-(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
INLINE Vec operator*(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
INLINE Vec operator/(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(__FP_FAST_FMAF)
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
#else
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
#endif
}
INLINE Vec min(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
INLINE Vec max(Vec a, Vec b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
INLINE Vec where_less(Vec a, Vec b, Vec yes, Vec no) {
  return each([&](int i) { return a.v[i] < b.v[i] ? yes.v[i] : no.v[i]; });
}
INLINE unsigned less_bits(Vec a, Vec b) {
  unsigned bits = 0;
  for (int i = 0; i < LANES; ++i) bits |= static_cast<unsigned>(a.v[i] < b.v[i]) << i;
  return bits;
}
INLINE Vec power_of_two(Vec whole) {
  return each([&](int i) {
    const bool is_number = whole.v[i] == whole.v[i];
    const int32_t bits = ((is_number ? static_cast<int32_t>(whole.v[i]) : 0) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
  });
}
INLINE float sum_lanes(Vec a) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
INLINE float max_lanes(Vec a) {
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}

#endif

// What is beyond the largest number of half precision becomes that.
INLINE void store(Half* to, Vec a) {
  store_in_half(to, max(splat(-MOST_OF_HALF), min(splat(MOST_OF_HALF), a)));
}

// The first `count` lanes from memory, zeros behind them.
INLINE Vec load_first(const float* from, long count) {
  if (count >= LANES) return load(from);
  float lanes[LANES] = {};
  std::memcpy(lanes, from, count * sizeof(float));
  return load(lanes);
}

// The first `count` lanes to memory.
template <class T>
INLINE void store_first(T* to, Vec a, long count) {
  if (count >= LANES) return store(to, a);
  T lanes[LANES];
  store(lanes, a);
  std::memcpy(to, lanes, count * sizeof(T));
}

// 0, 1, 2 … 15.
INLINE Vec lane_numbers() {
  const float numbers[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(numbers);
}

// e^x to about one unit in the last place: the same polynomial in every lane. Below -87.33 the
// result is 0; above 88.37 it stays at e^88.37; what is not a number stays so.
//
// x = n ln 2 + r, |r| ≤ ln 2 / 2; e^x = 2^n e^r. ln 2 comes in two parts, the first of few enough
// bits that its product with n is exact. The polynomial is that of the Cephes library.
INLINE Vec exp(Vec x) {
  const Vec least = splat(-87.33f), rounder = splat(12582912.0f);  // 1.5 × 2^23
  const Vec clamped = max(least, min(splat(88.37f), x));
  const Vec n = fma(clamped, splat(1.44269504f), rounder) - rounder;
  Vec r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  Vec p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + splat(1.0f));
  return where_less(x, least, splat(0.0f), p * power_of_two(n));
}

// The hyperbolic tangent to about one unit in the last place; what is not a number stays so. Near
// zero it is the polynomial of the Cephes library, elsewhere 1 - 2 / (e^2|x| + 1).
INLINE Vec tanh(Vec x) {
  const Vec one = splat(1.0f), size = max(x, splat(0.0f) - x), square = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, square, splat(2.06390887954e-2f));
  p = fma(p, square, splat(-5.37397155531e-2f));
  p = fma(p, square, splat(1.33314422036e-1f));
  p = fma(p, square, splat(-3.33332819422e-1f));
  const Vec near = fma(p * square, x, x);
  const Vec far = one - splat(2.0f) / (exp(size + size) + one);
  const Vec signed_far = where_less(x, splat(0.0f), splat(0.0f) - far, far);
  return where_less(size, splat(0.625f), near, signed_far);
}

INLINE Vec soft_cap(Vec x, Vec cap) { return cap * tanh(x / cap); }

}  // namespace chairlift
