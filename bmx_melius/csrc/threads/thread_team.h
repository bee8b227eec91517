// Threads that compute together, in phases of as many parts as there are threads.
//
// A thread begins with the part that has its number, because what it reads then is likely to be in its cache. When it
// has finished, it takes parts that nobody has begun: a thread that the system does not run at the moment delays the
// others only if it was interrupted within a part. Threads that find nothing to do look for a change for some
// microseconds, because a phase takes about as long, and then sleep: a core that other programs need is left to them.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace bmx {

class PhasedWork {
  public:
    virtual ~PhasedWork() = default;
    virtual int phases() const = 0;
    // Every part of a phase sees what all parts of earlier phases wrote.
    virtual void run(int phase, int part) noexcept = 0;
    // Is called once a phase, before any part of the next one begins.
    virtual void ended(int /*phase*/) noexcept {}
};

// On the calling thread, for work in phases of one part.
inline void run_serially(PhasedWork& work) {
    for (int phase = 0; phase < work.phases(); phase++) {
        work.run(phase, 0);
        work.ended(phase);
    }
}

// A number that threads wait to change.
class Signal {
  public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void advance();
    // Returns the new value once it is no longer `seen`.
    uint32_t wait(uint32_t seen);

  private:
    bool changes_soon(uint32_t seen) const;

    std::atomic<uint32_t> value_{0};
    std::atomic<int> sleeping_{0};
};

class ThreadTeam {
  public:
    // One thread is the caller of run. Throws Error where the others cannot be started.
    explicit ThreadTeam(int threads);
    ~ThreadTeam();
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;

    int threads() const { return static_cast<int>(parts_.size()); }

    // For one caller at a time.
    void run(PhasedWork& work);

  private:
    struct alignas(64) Part {  // a cache line each
        std::atomic<uint32_t> begun{0};
    };

    void start(int thread);
    void stop();
    void serve(int thread);
    void help(uint32_t phase, int thread);
    bool try_part(uint32_t phase, int part);
    void end_phase(uint32_t phase);

    // Phases are numbered through all runs, modulo 2^32. A run ends with a number whose parts all count as begun. What
    // belongs to a run is read only by threads that have begun one of its parts, so that it does not change meanwhile.
    Signal phase_;
    std::vector<Part> parts_;  // which phase each was begun in last
    std::atomic<int> unfinished_{0};
    PhasedWork* work_ = nullptr;
    uint32_t first_ = 0, last_ = 0;
    std::atomic<bool> stopping_{false};
    std::vector<std::thread> workers_;
};

}  // namespace bmx
