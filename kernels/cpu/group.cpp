// Ranks of one machine that exchange tensors through shared memory.
//
// Owns the file that they share, who waits for whom, and the order of a sum. Knows nothing of what
// the numbers mean.
//
// Every call is a number of rounds. In a round each rank fills its room, says what it is doing and
// that it has arrived, waits for all others, and then reads what it needs of their rooms. There are
// two rooms a rank, used in turn: who fills one in round n has seen all others arrive in round
// n - 1, hence done with what they read in round n - 2.
//
//   file:  Head | Seat of rank 0 | Seat of rank 1 | … | rooms of rank 0 (two) | of rank 1 | …
//
// A file of zeros is a group that nobody has joined, so the ranks may come in any order.
//
// Each rank has a thread that beats, and that looks whether the others do. Silence is counted in
// beats of one's own: a machine that was suspended as a whole has not lost anybody.

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "api.h"

namespace chairlift {
namespace {

using Clock = std::chrono::steady_clock;

// A sum is over in less than SPIN where every rank has a core; until YIELD it pays to stay awake.
constexpr std::chrono::microseconds SPIN{20}, YIELD{200};
constexpr std::chrono::milliseconds SLEEP{50}, BEAT{100}, POLL{2};
constexpr int SILENT_BEATS = 10;

// What a call returns besides 0; more than 0 is 1 + the rank that is lost.
constexpr int DIFFER = -1;

enum Kind : int64_t { SUM = 1, GATHER, SHARE, AGREE };

// What a rank is doing; all but `own` has to be equal on all ranks.
struct Call {
  int64_t kind, count, total, own;

  bool same(const Call& other) const {
    return kind == other.kind && count == other.count && total == other.total;
  }
};

struct alignas(64) Head {
  std::atomic<uint64_t> form;  // size and room, as the first who came has them
};

struct Seat {
  alignas(64) std::atomic<uint32_t> arrived;  // the round, modulo 2³²
  alignas(64) std::atomic<uint32_t> sleepers;
  alignas(64) std::atomic<uint64_t> beat;  // 0: not here yet
  std::atomic<int> gone;                   // what those who wait for this rank are to return
  alignas(64) Call calls[2];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared with other processes");

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Until somebody wakes this word, or for SLEEP; at once if it is no longer `seen`.
void sleep_on(std::atomic<uint32_t>& word, uint32_t seen) {
#if defined(__linux__)
  const timespec time{0, std::chrono::nanoseconds(SLEEP).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
#else
  if (word == seen) std::this_thread::sleep_for(POLL);
#endif
}

void wake([[maybe_unused]] std::atomic<uint32_t>& word) {
#if defined(__linux__)
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
#endif
}

// Memory that is there, unlike a mere length, which kills whoever writes when there is no more.
int reserve(int file, size_t bytes) {
#if defined(__linux__)
  int fault = EINTR;
  while (fault == EINTR) fault = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  return fault;
#else
  return ftruncate(file, static_cast<off_t>(bytes)) ? errno : 0;
#endif
}

class Group {
 public:
  Group(const char* path, int rank, int size, long room)
      : path_(path), rank_(rank), size_(size), room_(room) {}
  ~Group();
  Group(const Group&) = delete;

  int open();  // returns errno
  int join(double seconds);
  void leave() { fail(1 + rank_); }

  int sum(float* x, long count);
  int gather(const float* part, long rows, long width, float* out, long total);
  int share(const char* message, long* length);
  int agree(uint64_t digest);

  const void* message() const { return message_.data(); }

 private:
  Seat& own() { return seats_[rank_]; }
  const Call& call(int rank) const { return seats_[rank].calls[round_ & 1]; }
  float* room(int rank) const { return rooms_ + (2 * rank + (round_ & 1)) * room_; }

  int start();
  int meet(const Call& call);
  int wait_for(Seat& seat);
  int trouble();
  int fail(int fault);
  void beat();

  const std::string path_;
  const int rank_, size_;
  const long room_;  // floats
  uint32_t round_ = 0;
  std::string message_;

  size_t bytes_ = 0;
  void* memory_ = MAP_FAILED;
  Head* head_ = nullptr;
  Seat* seats_ = nullptr;
  float* rooms_ = nullptr;

  std::thread beating_;
  std::mutex sleep_;
  std::condition_variable stop_;
  bool stopped_ = false;
};

Group::~Group() {
  if (beating_.joinable()) {  // else the seat is not this one's
    leave();
    { std::lock_guard<std::mutex> lock(sleep_); stopped_ = true; }
    stop_.notify_all();
    beating_.join();
  }
  if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
}

int Group::open() {
  const size_t seats = sizeof(Head) + sizeof(Seat) * size_;
  bytes_ = seats + sizeof(float) * 2 * room_ * size_;
  const int file = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return errno;
  int fault = reserve(file, bytes_);
  if (fault == 0) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory_ == MAP_FAILED) fault = errno;
  }
  if (fault != 0) unlink(path_.c_str());
  close(file);
  if (fault != 0) return fault;
  char* start = static_cast<char*>(memory_);
  head_ = reinterpret_cast<Head*>(start);
  seats_ = reinterpret_cast<Seat*>(start + sizeof(Head));
  rooms_ = reinterpret_cast<float*>(start + seats);
  return 0;
}

int Group::join(double seconds) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  const uint64_t form = static_cast<uint64_t>(size_) << 48 | static_cast<uint64_t>(room_);
  uint64_t none = 0;
  if (!head_->form.compare_exchange_strong(none, form) && none != form) return DIFFER;
  none = 0;
  if (!own().beat.compare_exchange_strong(none, 1)) return DIFFER;  // the rank is taken
  beating_ = std::thread([this] { beat(); });
  for (int rank = 0; rank < size_;) {
    if (seats_[rank].beat != 0) {
      ++rank;
    } else if (const int fault = Clock::now() < deadline ? trouble() : 1 + rank) {
      fail(fault);
      break;
    } else {
      std::this_thread::sleep_for(POLL);
    }
  }
  // All have it open, or nobody is to come any more: nothing stays behind, however this ends.
  unlink(path_.c_str());
  return own().gone;
}

int Group::sum(float* x, long count) {
  long done = 0;
  do {
    if (const int fault = start()) return fault;
    const long length = std::min(count - done, room_);
    std::memcpy(room(rank_), x + done, length * sizeof(float));
    if (const int fault = meet({SUM, count, 0, 0})) return fault;
    // Block by block, so that x stays in the nearest cache while the ranks are added to it.
    for (long from = 0; from < length; from += 2048) {
      const long to = std::min(from + 2048, length);
      float* __restrict sums = x + done;
      const float* first = room(0);
      const float* second = room(1);
      for (long i = from; i < to; ++i) sums[i] = first[i] + second[i];
      for (int rank = 2; rank < size_; ++rank) {
        const float* next = room(rank);
        for (long i = from; i < to; ++i) sums[i] += next[i];
      }
    }
    done += length;
  } while (done < count);
  return 0;
}

// Elements `from` … `from + length - 1` of a matrix of this width, to a wider one.
void place(const float* piece, long from, long length, long width, float* out, long stride) {
  while (length > 0) {
    const long column = from % width, run = std::min(width - column, length);
    std::memcpy(out + from / width * stride + column, piece, run * sizeof(float));
    piece += run, from += run, length -= run;
  }
}

int Group::gather(const float* part, long rows, long width, float* out, long total) {
  long done = 0, most = 0;
  do {
    if (const int fault = start()) return fault;
    const long length = std::min(std::max(rows * width - done, 0L), room_);
    if (length > 0) std::memcpy(room(rank_), part + done, length * sizeof(float));
    if (const int fault = meet({GATHER, rows, total, width})) return fault;
    long column = 0, sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += call(rank).own;
    if (sum != total) return fail(DIFFER);
    for (int rank = 0; rank < size_; ++rank) {
      const long its = call(rank).own;
      place(room(rank), done, std::min(rows * its - done, room_), its, out + column, total);
      most = std::max(most, rows * its);
      column += its;
    }
    done += room_;
  } while (done < most);
  return 0;
}

int Group::share(const char* message, long* length) {
  const long bytes = room_ * static_cast<long>(sizeof(float));
  long done = 0;
  do {
    if (const int fault = start()) return fault;
    const long own = rank_ == 0 ? *length : 0;
    if (own > done) std::memcpy(room(0), message + done, std::min(own - done, bytes));
    if (const int fault = meet({SHARE, 0, 0, own})) return fault;
    *length = call(0).own;
    if (rank_ != 0) {
      if (done == 0) message_.resize(*length);
      std::memcpy(&message_[done], room(0), std::min(*length - done, bytes));
    }
    done += bytes;
  } while (done < *length);
  return 0;
}

int Group::agree(uint64_t digest) {
  if (const int fault = start()) return fault;
  return meet({AGREE, static_cast<int64_t>(digest), 0, 0});
}

// The next round; its rooms may be filled if this returns 0.
int Group::start() {
  ++round_;
  const int fault = trouble();
  return fault ? fail(fault) : 0;
}

// Whatever was written before is seen by all, and all that they wrote by this rank.
int Group::meet(const Call& mine) {
  own().calls[round_ & 1] = mine;
  own().arrived = round_;
  if (own().sleepers > 0) wake(own().arrived);
  for (int rank = 0; rank < size_; ++rank)
    if (const int fault = wait_for(seats_[rank])) return fail(fault);
  for (int rank = 0; rank < size_; ++rank)
    if (!mine.same(call(rank))) return fail(DIFFER);
  return 0;
}

int Group::wait_for(Seat& seat) {
  const auto here = [&] { return static_cast<int32_t>(seat.arrived - round_) >= 0; };
  if (here()) return 0;
  const auto since = Clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (here()) return 0;
      relax();
    }
    const auto waited = Clock::now() - since;
    if (waited > YIELD) break;
    if (waited > SPIN) sched_yield();
  }
  for (;;) {
    const uint32_t seen = seat.arrived;
    // Who arrived before it left, or before it saw a difference, is waited for no more.
    const int fault = trouble();
    if (here()) return 0;
    if (fault != 0) return fault;
    ++seat.sleepers;
    if (!here()) sleep_on(seat.arrived, seen);
    --seat.sleepers;
  }
}

int Group::trouble() {
  if (const int fault = own().gone) return fault;
  for (int rank = 0; rank < size_; ++rank)
    if (const int fault = seats_[rank].gone) return fault;
  return 0;
}

// The first fault stays, for this rank and for those who wait for it.
int Group::fail(int fault) {
  int none = 0;
  if (own().gone.compare_exchange_strong(none, fault)) wake(own().arrived);
  return own().gone;
}

void Group::beat() {
  std::vector<uint64_t> heard(size_, 0);
  std::vector<int> silent(size_, 0);
  std::unique_lock<std::mutex> lock(sleep_);
  while (!stop_.wait_for(lock, BEAT, [this] { return stopped_; })) {
    ++own().beat;
    for (int rank = 0; rank < size_; ++rank) {
      const uint64_t beat = seats_[rank].beat;
      if (beat != heard[rank]) silent[rank] = 0;
      else if (beat != 0 && ++silent[rank] >= SILENT_BEATS) fail(1 + rank);
      heard[rank] = beat;
    }
  }
}

}  // namespace
}  // namespace chairlift

using chairlift::Group;

static Group& of(void* group) { return *static_cast<Group*>(group); }

void* chairlift_group_new(const char* path, int rank, int size, long room) {
  auto* group = new Group(path, rank, size, room);
  const int fault = group->open();
  if (fault == 0) return group;
  delete group;
  errno = fault;
  return nullptr;
}

int chairlift_group_join(void* group, double seconds) { return of(group).join(seconds); }

int chairlift_group_sum(void* group, float* x, long count) { return of(group).sum(x, count); }

int chairlift_group_gather(void* group, const float* part, long rows, long width, float* out,
                           long total) {
  return of(group).gather(part, rows, width, out, total);
}

int chairlift_group_share(void* group, const char* message, long* length) {
  return of(group).share(message, length);
}

const void* chairlift_group_message(void* group) { return of(group).message(); }

int chairlift_group_agree(void* group, uint64_t digest) { return of(group).agree(digest); }

void chairlift_group_leave(void* group) { of(group).leave(); }

void chairlift_group_delete(void* group) { delete &of(group); }
