// How the panels of a quantised matrix lie in memory.
//
// A panel is 16 outputs. It holds the codes of its weights, group after group of 32 inputs, then
// the scales, then, where the encoding has any, the minima:
//
//   codes    [group][4 inputs …][output][input]     8 times four bytes; or 4 times, where a byte
//                                                   holds input i below and input i + 16 above
//   scales   [group][part][output]                  half precision or float
//   minima   [group][output]                        likewise
//
// and fills whole cache lines. A weight is scale × (code - offset) + minimum.

#pragma once

#include <cstdint>

#include "vec.h"

namespace chairlift {

constexpr long GROUP = 32;
constexpr long PANEL = 16;

// One kind of panels.
template <int BITS_, class Scale_, bool HAS_MINIMUM_, int PARTS_, int OFFSET_>
struct Form {
  static constexpr int BITS = BITS_;      // of a code: 4 or 8
  using Scale = Scale_;                   // Half or float
  static constexpr bool HAS_MINIMUM = HAS_MINIMUM_;
  static constexpr int PARTS = PARTS_;    // of a group, each with a scale of its own
  static constexpr int OFFSET = OFFSET_;

  static constexpr long CODES = GROUP * PANEL * BITS / 8;  // bytes of a group
  static constexpr long SCALES = PANEL * PARTS;            // of a group

  static long bytes(long groups) {
    const long scales = groups * (SCALES + (HAS_MINIMUM ? PANEL : 0));
    const long all = groups * CODES + scales * static_cast<long>(sizeof(Scale));
    return (all + 63) / 64 * 64;
  }
  static const Scale* scales(const uint8_t* panel, long groups) {
    return reinterpret_cast<const Scale*>(panel + groups * CODES);
  }
  static const Scale* minima(const uint8_t* panel, long groups) {
    return scales(panel, groups) + groups * SCALES;
  }
};

// Calls `then` with the Form of this number; `cpp_panels.py` counts the same.
template <class Then>
void with_form(int form, const Then& then) {
  switch (form) {
    case 0: return then(Form<4, Half, false, 1, 8>{});
    case 1: return then(Form<4, Half, true, 1, 0>{});
    case 2: return then(Form<4, float, true, 1, 0>{});
    case 3: return then(Form<8, Half, false, 1, 128>{});
    default: return then(Form<8, float, false, 2, 128>{});
  }
}

inline float to_float(float x) { return x; }

}  // namespace chairlift
