// Pool of the thread teams of a process.
#pragma once
#include <memory>
#include <vector>

#include "threads/thread_team.h"

namespace bmx {

// Idle teams, shared by all engines. Their threads exit with the last engine.
class ThreadPool {
  public:
    // Returns the only instance, which exists as long as it is referenced.
    static std::shared_ptr<ThreadPool> shared();
    ~ThreadPool();

    // A team taken from the pool for the duration of a run.
    class Lease {
      public:
        Lease(ThreadPool& pool, int threads);
        ~Lease();
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        void run(PhasedWork& work);

      private:
        ThreadPool& pool_;
        std::unique_ptr<ThreadTeam> team_;  // nullptr for one thread
    };

  private:
    ThreadPool();

    std::vector<std::unique_ptr<ThreadTeam>> free_;  // most recently used last
};

}  // namespace bmx
