// The thread teams of a process.
#pragma once
#include <memory>
#include <vector>

#include "threads/thread_team.h"

namespace bmx {

// The teams that are free; runs of all engines take them from here. Their threads end with the last engine.
class ThreadPool {
  public:
    // The only one; lives as long as someone holds it.
    static std::shared_ptr<ThreadPool> shared();
    ~ThreadPool();

    // A team for the time of a run.
    class Lease {
      public:
        Lease(ThreadPool& pool, int threads);
        ~Lease();
        Lease(const Lease&) = delete;
        Lease& operator=(const Lease&) = delete;

        void run(PhasedWork& work);

      private:
        ThreadPool& pool_;
        std::unique_ptr<ThreadTeam> team_;  // none for one thread
    };

  private:
    ThreadPool();

    std::vector<std::unique_ptr<ThreadTeam>> free_;  // the last used one at the end
};

}  // namespace bmx
