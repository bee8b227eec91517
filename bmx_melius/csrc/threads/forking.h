// Consistent state in a child of fork().
#pragma once
#include <atomic>
#include <mutex>

namespace bmx {

// A child has only the thread that called fork() and computes with one thread. The mutex protects the state shared by
// all engines. It is locked during a fork, so no other thread holds it then and the child can lock it.
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
