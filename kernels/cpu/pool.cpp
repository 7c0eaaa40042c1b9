#include "pool.h"

#include <cfenv>
#include <chrono>

#include "api.h"

namespace chairlift {
namespace {

// A wake-up costs more than a small kernel, so both sides look for a moment before they sleep: long
// enough to stay awake between the calls of one step, at whose end that costs little.
constexpr std::chrono::microseconds SPIN{200};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(const Condition& holds) {
  const auto deadline = std::chrono::steady_clock::now() + SPIN;
  do {
    for (int i = 0; i < 16; ++i) {
      if (holds()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

// Rounding to nearest and denormal numbers kept, whatever the calling thread has set: otherwise
// bits would depend on the thread.
class PlainFloats {
 public:
  PlainFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~PlainFloats() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

}  // namespace

Pool::Pool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    stop_ = true;
  }
  work_to_do_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::start(long count, Call call, const void* state) {
  const PlainFloats plain;
  if (count <= 1 || workers_.empty()) {
    for (long index = 0; index < count; ++index) call(state, index);
    return;
  }
  const std::lock_guard<std::mutex> turn(turn_);
  call_ = call;
  state_ = state;
  count_ = count;
  ended_ = 0;
  open_ = ((open_ >> 32) + 1) << 32 | static_cast<uint64_t>(count);
  if (sleeping_ > 0) {
    { std::lock_guard<std::mutex> lock(sleep_); }
    work_to_do_.notify_all();
  }
  while (take_one()) {
  }
  const auto all_ended = [&] { return ended_ == count; };
  if (spin_until(all_ended)) return;
  std::unique_lock<std::mutex> lock(sleep_);
  caller_sleeps_ = true;
  all_ended_.wait(lock, all_ended);
  caller_sleeps_ = false;
}

bool Pool::take_one() {
  uint64_t open = open_;
  do {
    if (static_cast<uint32_t>(open) == 0) return false;
  } while (!open_.compare_exchange_weak(open, open - 1));
  // From here on this job cannot end before the task has, so the rest of it stands still.
  const long count = count_;
  call_.load()(state_, count - static_cast<uint32_t>(open));
  if (++ended_ == count && caller_sleeps_) {
    { std::lock_guard<std::mutex> lock(sleep_); }
    all_ended_.notify_one();
  }
  return true;
}

void Pool::work() {
  const PlainFloats plain;
  const auto has_work = [this] { return static_cast<uint32_t>(open_) != 0 || stop_; };
  while (!stop_) {
    while (take_one()) {
    }
    if (spin_until(has_work)) continue;
    std::unique_lock<std::mutex> lock(sleep_);
    ++sleeping_;
    work_to_do_.wait(lock, has_work);
    --sleeping_;
  }
}

}  // namespace chairlift

void* chairlift_pool_new(int threads) { return new chairlift::Pool(threads); }

void chairlift_pool_delete(void* pool) { delete static_cast<chairlift::Pool*>(pool); }
