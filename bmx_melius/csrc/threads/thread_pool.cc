#include "threads/thread_pool.h"

#include <algorithm>
#include <mutex>

#include "threads/forking.h"

namespace bmx {
namespace {

constexpr size_t kMaxFreeTeams = 16;

// Never destroyed, because threads may still run while the process exits.
auto& known = *new std::weak_ptr<ThreadPool>;

}  // namespace

std::shared_ptr<ThreadPool> ThreadPool::shared() {
    std::lock_guard<std::mutex> lock(Forking::instance().mutex());
    std::shared_ptr<ThreadPool> pool = known.lock();
    if (!pool) {
        pool.reset(new ThreadPool);
        known = pool;
    }
    return pool;
}

ThreadPool::ThreadPool() {
    free_.reserve(kMaxFreeTeams + 1);  // returning a team must not throw
}

ThreadPool::~ThreadPool() {
    if (Forking::instance().in_child()) {
        for (auto& team : free_) {
            team.release();  // its threads do not exist in this process
        }
    }
}

ThreadPool::Lease::Lease(ThreadPool& pool, int threads) : pool_(pool) {
    if (threads == 1) {
        return;
    }
    {
        std::lock_guard<std::mutex> lock(Forking::instance().mutex());
        auto found = std::find_if(pool.free_.rbegin(), pool.free_.rend(),
                                  [&](const auto& team) { return team->threads() == threads; });
        if (found != pool.free_.rend()) {
            team_ = std::move(*found);
            pool.free_.erase(found.base() - 1);
        }
    }
    if (!team_) {
        team_.reset(new ThreadTeam(threads));
    }
}

ThreadPool::Lease::~Lease() {
    if (!team_) {
        return;
    }
    std::unique_ptr<ThreadTeam> oldest;  // destroyed after the mutex is unlocked
    std::lock_guard<std::mutex> lock(Forking::instance().mutex());
    pool_.free_.push_back(std::move(team_));
    if (pool_.free_.size() > kMaxFreeTeams) {
        oldest = std::move(pool_.free_.front());
        pool_.free_.erase(pool_.free_.begin());
    }
}

void ThreadPool::Lease::run(PhasedWork& work) {
    if (team_) {
        team_->run(work);
    } else {
        run_serially(work);
    }
}

}  // namespace bmx
