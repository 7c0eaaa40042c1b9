// From logits to tokens, and to how likely they were; `kernels/sampling.py` has the rules.
//
// A row is one task. It is gone through in stretches of 128 logits, the last filled up with -∞:
//
//   weight    e^((x - largest) × (1 / temperature)) in float32, by `exp` of `vec.h`
//   sum       of a stretch: every sixteenth weight in ascending order, then `sum_lanes`, in
//             float32; of a row: its stretches in ascending order, in float64
//
// and where single tokens are summed, they are added in float64 in the order that the rule names.
// The largest logit of each stretch tells which stretches need no second look.

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "api.h"
#include "pool.h"
#include "vec.h"

namespace chairlift {
namespace {

constexpr long STRETCH = 128;
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float GREEDY_BELOW = 1e-5f;
constexpr float NO_WEIGHT = 88.0f;  // so far below the largest, in temperatures, all weights are 0
constexpr float LIKELY = 7.0f;      // and so far, one in a thousand of the largest
constexpr int CUTS = 4;             // thresholds that one look at a row tries
constexpr float FIRST_CUTS[CUTS] = {1.0f, 3.0f, 9.0f, 27.0f};  // so far below the largest
constexpr double NEXT_CUTS[CUTS] = {-0.25, -0.06, 0.06, 0.25};  // and so far from the likely place
constexpr int LOOKS = 20;           // at most
constexpr size_t FEW = 512;         // tokens that are sooner sorted than looked at once more

struct Candidate {
  float logit;
  int32_t token;
};

// By falling likelihood; of equally likely tokens the first comes first.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

// The tokens above a logit.
struct Above {
  float logit;
  double mass;
  long count;
};

// Where a rule's last token lies: above `low`, not above `high`.
struct Bracket {
  Above low, high;

  size_t count() const { return static_cast<size_t>(low.count - high.count); }
};

// A row, and room for what is found out about it; each thread keeps one.
class Row {
 public:
  Row() = default;
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;

  void read(const float* logits, long count);
  void weigh(float temperature, float min_p);
  double total() const;
  void keep_likeliest(long count, float temperature);
  void keep_nucleus(double top_p, float temperature);
  long draw(double uniform) const;
  void rank(long count);

  long best() const { return best_; }
  float largest() const { return largest_; }
  float logit(long token) const { return logits_[token]; }
  const std::vector<Candidate>& found() const { return found_; }

 private:
  const float* stretch(long index) const {
    return (index + 1) * STRETCH <= count_ ? logits_ + index * STRETCH : tail_;
  }
  bool find_largest();
  void collect(float least, float most);
  void collect_likeliest(long count);
  void keep(Candidate last);
  void look(Above (&cuts)[CUTS]) const;
  template <class Measure>
  Bracket narrow(float temperature, double limit, const Measure& measure) const;
  bool ends_nucleus(double before, double limit, Candidate* last);

  const float* logits_ = nullptr;
  long count_ = 0, stretches_ = 0, best_ = 0;
  float largest_ = 0.0f;
  float tail_[STRETCH];
  std::vector<float> clean_, peaks_, order_, weights_, sums_;
  std::vector<Candidate> found_;
};

void Row::read(const float* logits, long count) {
  logits_ = logits;
  count_ = count;
  stretches_ = (count + STRETCH - 1) / STRETCH;
  peaks_.resize(stretches_);
  if (!find_largest()) {
    clean_.resize(count);
    for (long i = 0; i < count; ++i) {
      const float x = logits[i];
      clean_[i] = x != x ? -FLT_MAX : std::min(std::max(x, -FLT_MAX), FLT_MAX);
    }
    logits_ = clean_.data();
    find_largest();
  }
  const long at = std::find(peaks_.begin(), peaks_.end(), largest_) - peaks_.begin();
  const float* from = stretch(at);
  best_ = at * STRETCH + (std::find(from, from + STRETCH, largest_) - from);
}

// False where a logit is no number or +∞, or all are -∞.
bool Row::find_largest() {
  std::fill(tail_, tail_ + STRETCH, -INF);
  const long whole = count_ / STRETCH * STRETCH;
  std::memcpy(tail_, logits_ + whole, (count_ - whole) * sizeof(float));
  const Vec inf = splat(INF), none = splat(0.0f), one = splat(1.0f);
  Vec strange = none, largest = splat(-INF);
  for (long index = 0; index < stretches_; ++index) {
    const float* from = stretch(index);
    Vec peak = splat(-INF);
    for (long i = 0; i < STRETCH; i += LANES) {
      const Vec x = load(from + i);
      strange = where_less(x, inf, strange, one);
      peak = max(x, peak);
    }
    peaks_[index] = max_lanes(peak);
    largest = max(peak, largest);
  }
  largest_ = max_lanes(largest);
  return largest_ > -INF && max_lanes(strange) == 0.0f;
}

// Weights and their sums; those below `min_p` become 0.
void Row::weigh(float temperature, float min_p) {
  weights_.resize(stretches_ * STRETCH);
  sums_.resize(stretches_);
  const Vec largest = splat(largest_), inverse = splat(1.0f / temperature), zero = splat(0.0f);
  const Vec least = splat(min_p);
  for (long index = 0; index < stretches_; ++index) {
    const float* from = stretch(index);
    float* to = weights_.data() + index * STRETCH;
    Vec sum = zero;
    for (long i = 0; i < STRETCH; i += LANES) {
      const Vec weight = exp((load(from + i) - largest) * inverse);
      const Vec kept = where_less(weight, least, zero, weight);
      store(to + i, kept);
      sum = sum + kept;
    }
    sums_[index] = sum_lanes(sum);
  }
}

double Row::total() const {
  double sum = 0.0;
  for (long index = 0; index < stretches_; ++index) sum += sums_[index];
  return sum;
}

// The first token at which the running sum exceeds the share `uniform` of the total.
long Row::draw(double uniform) const {
  const double all = total(), target = std::min(uniform * all, std::nextafter(all, 0.0));
  double running = 0.0;
  long index = 0;
  while (index < stretches_ - 1 && running + sums_[index] <= target) running += sums_[index++];
  long token = best_;
  for (long i = index * STRETCH; i < (index + 1) * STRETCH; ++i) {
    if (!(weights_[i] > 0.0f)) continue;
    token = i;  // the two sums of a stretch may differ in their last bits
    running += weights_[i];
    if (running > target) break;
  }
  return token;
}

// Finds the tokens with logits from `least` to `most`, ascending.
void Row::collect(float least, float most) {
  const Vec low = splat(least), high = splat(most);
  found_.clear();
  for (long index = 0; index < stretches_; ++index) {
    if (peaks_[index] < least) continue;
    const float* from = stretch(index);
    for (long i = 0; i < STRETCH; i += LANES) {
      const Vec x = load(from + i);
      unsigned inside = 0xFFFF & ~(less_bits(x, low) | less_bits(high, x));
      for (; inside; inside &= inside - 1) {
        const long at = i + __builtin_ctz(inside), token = index * STRETCH + at;
        if (token < count_) found_.push_back({from[at], static_cast<int32_t>(token)});
      }
    }
  }
}

// Finds the `count` likeliest among others: as many peaks are no logits below theirs.
void Row::collect_likeliest(long count) {
  float least = -INF;
  if (count <= stretches_) {
    order_ = peaks_;
    std::nth_element(order_.begin(), order_.begin() + (count - 1), order_.end(), std::greater<>());
    least = order_[count - 1];
  }
  collect(least, INF);
}

// Finds the `count` likeliest in falling order.
void Row::rank(long count) {
  collect_likeliest(count);
  std::partial_sort(found_.begin(), found_.begin() + count, found_.end(), likelier);
  found_.resize(count);
}

// Takes the weight of all that rank behind `last`.
void Row::keep(Candidate last) {
  const Vec least = splat(last.logit), zero = splat(0.0f);
  for (long index = 0; index < stretches_; ++index) {
    float* weights = weights_.data() + index * STRETCH;
    if (peaks_[index] < last.logit) {
      std::fill(weights, weights + STRETCH, 0.0f);
      sums_[index] = 0.0f;
      continue;
    }
    const float* from = stretch(index);
    for (long i = std::max(0L, last.token + 1 - index * STRETCH); i < STRETCH; ++i)
      if (from[i] == last.logit) weights[i] = 0.0f;
    Vec sum = zero;
    for (long i = 0; i < STRETCH; i += LANES) {
      const Vec kept = where_less(load(from + i), least, zero, load(weights + i));
      store(weights + i, kept);
      sum = sum + kept;
    }
    sums_[index] = sum_lanes(sum);
  }
}

// Sees what lies above each threshold; they fall.
void Row::look(Above (&cuts)[CUTS]) const {
  const Vec zero = splat(0.0f);
  for (Above& cut : cuts) cut.mass = cut.count = 0;
  for (long index = 0; index < stretches_; ++index) {
    if (!(peaks_[index] > cuts[CUTS - 1].logit)) continue;
    const float *from = stretch(index), *weights = weights_.data() + index * STRETCH;
    Vec sum[CUTS] = {zero, zero, zero, zero};
    for (long i = 0; i < STRETCH; i += LANES) {
      const Vec x = load(from + i), weight = load(weights + i);
      for (int k = 0; k < CUTS; ++k) {
        const Vec cut = splat(cuts[k].logit);
        sum[k] = sum[k] + where_less(cut, x, weight, zero);
        cuts[k].count += __builtin_popcount(less_bits(cut, x));
      }
    }
    for (int k = 0; k < CUTS; ++k) cuts[k].mass += sum_lanes(sum[k]);
  }
}

// Looks at the row until few tokens remain between the highest threshold above which the measure
// is known to reach the limit, and the lowest where it is known not to. The first thresholds stand
// where the nucleus of a usual row may end; the next ones around the place at which the limit
// would be reached if all tokens between lay evenly. Below the first `low` no token has weight.
template <class Measure>
Bracket Row::narrow(float temperature, double limit, const Measure& measure) const {
  const float low = largest_ - NO_WEIGHT * temperature, below = std::nextafter(largest_, -INF);
  Bracket found = {{std::min(low, below), total(), count_}, {largest_, 0.0, 0}};
  Above cuts[CUTS];
  for (int k = 0; k < CUTS; ++k) cuts[k].logit = largest_ - FIRST_CUTS[k] * temperature;
  for (int tries = 0; tries < LOOKS && found.count() > FEW; ++tries) {
    if (std::nextafter(found.low.logit, INF) >= found.high.logit) break;  // all are equally likely
    look(cuts);
    for (const Above& cut : cuts) {
      const bool reached = measure(cut) >= limit;
      (reached ? found.low : found.high) = cut;
      if (reached) break;
    }
    const double start = measure(found.high), width = measure(found.low) - start;
    for (int k = 0; k < CUTS; ++k) {
      const double share = std::min(std::max((limit - start) / width + NEXT_CUTS[k], 0.0), 1.0);
      const float step = static_cast<float>(share) * (found.low.logit - found.high.logit);
      cuts[k].logit = found.high.logit + step;
    }
  }
  return found;
}

// Drops all but the `count` likeliest tokens.
void Row::keep_likeliest(long count, float temperature) {
  if (count >= count_) return;
  if (count <= stretches_) {
    collect_likeliest(count);
  } else {
    const auto measure = [](const Above& above) { return static_cast<double>(above.count); };
    const Bracket bracket = narrow(temperature, static_cast<double>(count), measure);
    collect(std::nextafter(bracket.low.logit, INF), bracket.high.logit);
    count -= bracket.high.count;
    if (count > static_cast<long>(found_.size())) return;  // the rest has no weight
  }
  const auto last = found_.begin() + (count - 1);
  std::nth_element(found_.begin(), last, found_.end(), likelier);
  keep(*last);
}

// Drops the tokens before which the likelier ones hold the share `top_p` of the total.
void Row::keep_nucleus(double top_p, float temperature) {
  const double limit = top_p * total();
  collect(largest_ - LIKELY * temperature, INF);
  Candidate last;
  if (found_.size() > FEW || !ends_nucleus(0.0, limit, &last)) {
    const auto measure = [](const Above& above) { return above.mass; };
    const Bracket bracket = narrow(temperature, limit, measure);
    last = {bracket.low.logit, -1};
    collect(std::nextafter(bracket.low.logit, INF), bracket.high.logit);
    ends_nucleus(bracket.high.mass, limit, &last);
  }
  keep(last);
}

// The first of those found, in falling order, with which the running sum reaches the limit. Sums
// may differ in their last bits, so that none does: then `last` is the last, if there is any.
bool Row::ends_nucleus(double before, double limit, Candidate* last) {
  if (!std::is_sorted(found_.begin(), found_.end(), likelier))
    std::sort(found_.begin(), found_.end(), likelier);
  for (const Candidate& next : found_) {
    *last = next;
    before += weights_[next.token];
    if (before >= limit) return true;
  }
  return false;
}

// A number in [0, 1): `kernels/philox.py`.
double uniform(uint64_t seed, uint64_t choice, uint64_t position) {
  uint32_t low = static_cast<uint32_t>(seed), high = static_cast<uint32_t>(seed >> 32);
  uint32_t a = static_cast<uint32_t>(position), b = static_cast<uint32_t>(choice), c = 0, d = 0;
  for (int turn = 0; turn < 10; ++turn) {
    const uint64_t first = uint64_t{0xD2511F53} * a, second = uint64_t{0xCD9E8D57} * c;
    a = static_cast<uint32_t>(second >> 32) ^ b ^ low;
    b = static_cast<uint32_t>(second);
    c = static_cast<uint32_t>(first >> 32) ^ d ^ high;
    d = static_cast<uint32_t>(first);
    low += 0x9E3779B9;
    high += 0xBB67AE85;
  }
  return static_cast<double>(uint64_t{a} << 21 ^ b >> 11) * 0x1p-53;
}

long sample(Row& row, const Choosing& by) {
  if (!(by.temperature >= GREEDY_BELOW)) return row.best();
  row.weigh(by.temperature, by.min_p);
  if (by.top_k > 0) row.keep_likeliest(by.top_k, by.temperature);
  if (by.top_p < 1.0) row.keep_nucleus(by.top_p, by.temperature);
  return row.draw(uniform(by.seed, by.choice, by.position));
}

Row& room() {
  thread_local Row row;
  return row;
}

}  // namespace
}  // namespace chairlift

using namespace chairlift;

void chairlift_sample(void* pool, const float* logits, long rows, long vocabulary,
                      const Choosing* choosing, int64_t* tokens) {
  static_cast<Pool*>(pool)->run(rows, [&](long index) {
    Row& row = room();
    row.read(logits + index * vocabulary, vocabulary);
    tokens[index] = sample(row, choosing[index]);
  });
}

void chairlift_log_probabilities(void* pool, const float* logits, long vocabulary,
                                 const Wanted* wanted, long count, long most, double* values,
                                 int64_t* tokens) {
  static_cast<Pool*>(pool)->run(count, [&](long index) {
    Row& row = room();
    const Wanted& asked = wanted[index];
    double* value = values + index * (1 + most);
    row.read(logits + asked.row * vocabulary, vocabulary);
    row.weigh(1.0f, 0.0f);
    const double log_sum = std::log(row.total()), largest = row.largest();
    *value = (row.logit(asked.token) - largest) - log_sum;
    if (asked.count == 0) return;
    row.rank(asked.count);
    for (long rank = 0; rank < asked.count; ++rank) {
      const Candidate& each = row.found()[rank];
      value[1 + rank] = (each.logit - largest) - log_sum;
      tokens[index * most + rank] = each.token;
    }
  });
}
