// A few threads of our own.
//
// Owns who computes what, and nothing else: a kernel cuts its outputs into tasks, each output
// belongs to one task, and any thread may run any task, so results do not depend on the threads.
// (No OpenMP: torch brings a runtime of its own, and two would fight over the cores.)

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace chairlift {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs task(0) … task(count - 1), the calling thread included; returns when all have ended.
  // Calls from several threads take turns. A task must not throw, and must not call `run`.
  template <class Task>
  void run(long count, const Task& task) {
    start(count, [](const void* state, long index) { (*static_cast<const Task*>(state))(index); },
          &task);
  }

 private:
  using Call = void (*)(const void* state, long index);

  void start(long count, Call call, const void* state);
  bool take_one();
  void work();

  std::mutex turn_;  // held by the caller whose job is under way

  // The job. `open_` holds its number (upper half) and how many of its tasks nobody has taken
  // (lower half); the rest changes only while that is 0. A thread that comes late fails to take
  // a task, because the number has changed, and has touched nothing.
  std::atomic<uint64_t> open_{0};
  std::atomic<Call> call_{nullptr};
  std::atomic<const void*> state_{nullptr};
  std::atomic<long> count_{0};
  std::atomic<long> ended_{0};

  std::mutex sleep_;
  std::condition_variable work_to_do_, all_ended_;
  std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace chairlift
