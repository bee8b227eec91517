// Consistent state in a child of fork().
#pragma once
#include <atomic>
#include <mutex>

namespace bmx {

// A child has only the thread that called fork() and computes with one thread. The mutex protects the state shared by
// all engines. It is locked during a fork, so no other thread holds it then and the child can lock it. For the same
// reason no function of the engine initializes a static variable, for which the compiler has a lock: the locks of the
// library are initialized when it is loaded, with the tables of the kernels that it can use.
class Forking {
  public:
    static Forking& instance();

    std::mutex& mutex() { return mutex_; }
    bool in_child() const { return in_child_; }

  private:
    Forking();

    static Forking forking_;
    std::mutex mutex_;
    std::atomic<bool> in_child_{false};
};

}  // namespace bmx
