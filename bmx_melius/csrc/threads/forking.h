// What a child of fork() can rely on.
#pragma once
#include <atomic>
#include <mutex>

namespace bmx {

// A child has only the thread that called fork(): it computes with one thread. The mutex is for what all engines share;
// no other thread holds it while a process forks, so a child can lock it.
class Forking {
  public:
    static Forking& instance();

    std::mutex& mutex() { return mutex_; }
    bool in_child() const { return in_child_; }

  private:
    Forking();

    std::mutex mutex_;
    std::atomic<bool> in_child_{false};
};

}  // namespace bmx
