// Sums of products of small integers: a column of weights times a row's inputs.
//
// Owns the second piece of code that knows the processor (the first is `vec.h`). Integer sums have
// no order, so whatever instructions serve, the result is the same; so are the few operations on
// floats, which act on each lane as IEEE 754 says. A vector holds WIDTH columns, of each four
// inputs side by side.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "panels.h"
#include "vec.h"

namespace chairlift {

// Weights are bytes without a sign, and what was added to make them so is subtracted in `begin`:
// 0 … 15 in 4 bits, and in 8 bits what they mean + 128. Inputs lie in -127 … 127.
constexpr int BYTE_OFFSET = 128;

INLINE int32_t four(const int8_t* inputs) {
  int32_t word;
  std::memcpy(&word, inputs, sizeof word);
  return word;
}

// The largest magnitude of 32 floats, as the bits of a float: those of what is not a number are
// larger than any other.
INLINE uint32_t largest_bits(const float* x);

// Each of 32 floats times `factor`, rounded to the nearest whole number (to even where two are
// near), of which the lowest 8 bits stay; and what the first and the last 16 of these add up to.
INLINE void round_to_bytes(const float* x, float factor, int8_t* bytes, int32_t (&sums)[2]);

// Added to 1.5 × 2^23, a number is rounded as it should be, and its lowest byte is the result.
INLINE int8_t round_to_byte(float x) {
  const float rounded = x + 12582912.0f;
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof bits);
  return static_cast<int8_t>(bits);
}

#if defined(__AVX512VNNI__)

constexpr int WIDTH = 16, DOT_ROWS = 12;

struct Floats {
  __m512 v;
};
struct Codes {
  __m512i v;
};

INLINE Codes load_codes(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
INLINE Codes low_halves(Codes c) { return {_mm512_and_si512(c.v, _mm512_set1_epi8(15))}; }
INLINE Codes high_halves(Codes c) {
  return {_mm512_and_si512(_mm512_srli_epi16(c.v, 4), _mm512_set1_epi8(15))};
}

// Σ (code - offset) × input; `begin` is -offset × Σ input, for the offset that the codes have.
template <int BITS>
class Sum {
 public:
  INLINE void begin(int32_t by) { sum_ = _mm512_set1_epi32(by); }
  INLINE void add(Codes codes, const int8_t* inputs) {
    sum_ = _mm512_dpbusd_epi32(sum_, codes.v, _mm512_set1_epi32(four(inputs)));
  }
  INLINE Floats total() const { return {_mm512_cvtepi32_ps(sum_)}; }

 private:
  __m512i sum_;
};

INLINE uint32_t largest_bits(const float* x) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i a = _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  const __m512i b = _mm512_and_si512(_mm512_loadu_si512(x + 16), magnitude);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(a, b));
}
INLINE void round_to_bytes(const float* x, float factor, int8_t* bytes, int32_t (&sums)[2]) {
  for (int half = 0; half < 2; ++half) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + 16 * half), _mm512_set1_ps(factor));
    const __m512i whole = _mm512_cvtps_epi32(scaled);
    sums[half] = _mm512_reduce_add_epi32(whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 16 * half), _mm512_cvtepi32_epi8(whole));
  }
}

INLINE Floats no_floats() { return {_mm512_setzero_ps()}; }
INLINE Floats load_floats(const float* from) { return {_mm512_loadu_ps(from)}; }
INLINE Floats load_floats(const Half* from) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
INLINE void store_floats(float* to, Floats a) { _mm512_storeu_ps(to, a.v); }
INLINE Floats times(Floats a, float b) { return {_mm512_mul_ps(a.v, _mm512_set1_ps(b))}; }
INLINE Floats fused(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
INLINE Floats fused(Floats a, float b, Floats c) {
  return {_mm512_fmadd_ps(a.v, _mm512_set1_ps(b), c.v)};
}

#elif defined(NARROW_REGISTERS)

constexpr int WIDTH = 8, DOT_ROWS = 4;

struct Floats {
  __m256 v;
};
struct Codes {
  __m256i v;
};

INLINE Codes load_codes(const uint8_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
}
INLINE Codes low_halves(Codes c) { return {_mm256_and_si256(c.v, _mm256_set1_epi8(15))}; }
INLINE Codes high_halves(Codes c) {
  return {_mm256_and_si256(_mm256_srli_epi16(c.v, 4), _mm256_set1_epi8(15))};
}

INLINE uint32_t largest_bits(const float* x) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    const auto* from = reinterpret_cast<const __m256i*>(x + i);
    most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_loadu_si256(from), magnitude));
  }
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
INLINE void round_to_bytes(const float* x, float factor, int8_t* bytes, int32_t (&sums)[2]) {
  for (int half = 0; half < 2; ++half) {
    const float* from = x + 16 * half;
    const __m256 by = _mm256_set1_ps(factor);
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from), by));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + 8), by));
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
    sums[half] = _mm_cvtsi128_si32(sum);
    // Packing works within halves of a register: 0…3 8…11, 4…7 12…15.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    const __m128i narrow =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes + 16 * half), narrow);
  }
}

#if defined(__AVXVNNI__)

template <int BITS>
class Sum {
 public:
  INLINE void begin(int32_t by) { sum_ = _mm256_set1_epi32(by); }
  INLINE void add(Codes codes, const int8_t* inputs) {
    sum_ = _mm256_dpbusd_avx_epi32(sum_, codes.v, _mm256_set1_epi32(four(inputs)));
  }
  INLINE Floats total() const { return {_mm256_cvtepi32_ps(sum_)}; }

 private:
  __m256i sum_;
};

#else

template <int BITS>
class Sum;

// Eight times two products of at most 15 × 127 fit into 16 bits, so they are widened only once.
template <>
class Sum<4> {
 public:
  INLINE void begin(int32_t by) {
    begin_ = by;
    sum_ = _mm256_setzero_si256();
  }
  INLINE void add(Codes codes, const int8_t* inputs) {
    sum_ = _mm256_add_epi16(sum_,
                            _mm256_maddubs_epi16(codes.v, _mm256_set1_epi32(four(inputs))));
  }
  INLINE Floats total() const {
    const __m256i wide = _mm256_madd_epi16(sum_, _mm256_set1_epi16(1));
    return {_mm256_cvtepi32_ps(_mm256_add_epi32(wide, _mm256_set1_epi32(begin_)))};
  }

 private:
  int32_t begin_;
  __m256i sum_;
};

// Two products of 8 bits without a sign would not fit into 16. So the weights get their sign back,
// which leaves nothing to begin with, and then hand it to the inputs: 2 × 128 × 127 fits.
template <>
class Sum<8> {
 public:
  INLINE void begin(int32_t) { sum_ = _mm256_setzero_si256(); }
  INLINE void add(Codes codes, const int8_t* inputs) {
    const __m256i weights = _mm256_xor_si256(codes.v, _mm256_set1_epi8(-BYTE_OFFSET));
    const __m256i signed_inputs = _mm256_sign_epi8(_mm256_set1_epi32(four(inputs)), weights);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), signed_inputs);
    sum_ = _mm256_add_epi32(sum_, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  INLINE Floats total() const { return {_mm256_cvtepi32_ps(sum_)}; }

 private:
  __m256i sum_;
};

#endif

INLINE Floats no_floats() { return {_mm256_setzero_ps()}; }
INLINE Floats load_floats(const float* from) { return {_mm256_loadu_ps(from)}; }
INLINE Floats load_floats(const Half* from) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
}
INLINE void store_floats(float* to, Floats a) { _mm256_storeu_ps(to, a.v); }
INLINE Floats times(Floats a, float b) { return {_mm256_mul_ps(a.v, _mm256_set1_ps(b))}; }
INLINE Floats fused(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
INLINE Floats fused(Floats a, float b, Floats c) {
  return {_mm256_fmadd_ps(a.v, _mm256_set1_ps(b), c.v)};
}

#else

constexpr int WIDTH = 16, DOT_ROWS = 1;

struct Floats {
  float v[WIDTH];
};
struct Codes {
  uint8_t v[WIDTH * 4];
};

INLINE Codes load_codes(const uint8_t* from) {
  Codes codes;
  std::memcpy(codes.v, from, sizeof codes.v);
  return codes;
}
INLINE Codes low_halves(Codes c) {
  for (auto& code : c.v) code &= 15;
  return c;
}
INLINE Codes high_halves(Codes c) {
  for (auto& code : c.v) code >>= 4;
  return c;
}

template <int BITS>
class Sum {
 public:
  INLINE void begin(int32_t by) {
    for (auto& lane : sum_) lane = by;
  }
  INLINE void add(const Codes& codes, const int8_t* inputs) {
    for (int i = 0; i < WIDTH; ++i)
      for (int b = 0; b < 4; ++b) sum_[i] += codes.v[4 * i + b] * inputs[b];
  }
  INLINE Floats total() const {
    Floats out;
    for (int i = 0; i < WIDTH; ++i) out.v[i] = static_cast<float>(sum_[i]);
    return out;
  }

 private:
  int32_t sum_[WIDTH];
};

INLINE uint32_t largest_bits(const float* x) {
  uint32_t most = 0;
  for (int i = 0; i < 32; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  return most;
}
INLINE void round_to_bytes(const float* x, float factor, int8_t* bytes, int32_t (&sums)[2]) {
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) {
    bytes[i] = round_to_byte(x[i] * factor);
    sums[i / 16] += bytes[i];
  }
}

INLINE Floats no_floats() { return {}; }
INLINE Floats load_floats(const float* from) {
  Floats out;
  std::memcpy(out.v, from, sizeof out.v);
  return out;
}
INLINE Floats load_floats(const Half* from) {
  Floats out;
  for (int i = 0; i < WIDTH; ++i) out.v[i] = to_float(from[i]);
  return out;
}
INLINE void store_floats(float* to, Floats a) { std::memcpy(to, a.v, sizeof a.v); }
INLINE Floats times(Floats a, float b) {
  for (auto& lane : a.v) lane *= b;
  return a;
}
// Rounded once here too: there are few of these for each product of integers.
INLINE Floats fused(Floats a, Floats b, Floats c) {
  for (int i = 0; i < WIDTH; ++i) c.v[i] = std::fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
INLINE Floats fused(Floats a, float b, Floats c) {
  for (int i = 0; i < WIDTH; ++i) c.v[i] = std::fma(a.v[i], b, c.v[i]);
  return c;
}

#endif

}  // namespace chairlift
