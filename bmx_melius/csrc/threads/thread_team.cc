#include "threads/thread_team.h"

#include <signal.h>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <chrono>
#include <climits>
#include <string>
#include <system_error>

#include "program/error.h"
#include "threads/float_environment.h"

namespace bmx {
namespace {

constexpr std::chrono::microseconds kSpinning(50);
constexpr int kLooks = 32;  // polls between two readings of the clock

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

#ifdef __linux__

void futex(const std::atomic<uint32_t>& word, int operation, uint32_t value) {
    static_assert(sizeof(word) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free, "the kernel's futex");
    syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

void sleep_while(const std::atomic<uint32_t>& word, uint32_t value) { futex(word, FUTEX_WAIT, value); }
void wake_all(const std::atomic<uint32_t>& word) { futex(word, FUTEX_WAKE, INT_MAX); }
void name_thread() { prctl(PR_SET_NAME, "bmx-melius"); }

#else  // WebAssembly, where no thread is ever started (thread_count.h)

void sleep_while(const std::atomic<uint32_t>&, uint32_t) { std::this_thread::yield(); }
void wake_all(const std::atomic<uint32_t>&) {}
void name_thread() {}

#endif

// Blocks signals while threads are started. They inherit the mask, so signals go to the threads of the program.
//
// sigprocmask, because pthread_sigmask of glibc 2.32 and newer does not exist under the same version in older releases.
// POSIX specifies it only for processes with one thread; on Linux both are the same system call, for the calling
// thread.
class BlockedSignals {
  public:
    BlockedSignals() {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_SETMASK, &all, &before_);
    }
    ~BlockedSignals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

}  // namespace

// The order is sequentially consistent, as in wait(): either this sees the sleeping thread, or that sees the new value.
void Signal::advance() {
    value_.fetch_add(1);
    if (sleeping_.load() > 0) {
        wake_all(value_);
    }
}

uint32_t Signal::wait(uint32_t seen) {
    if (!changes_soon(seen)) {
        sleeping_.fetch_add(1);
        while (value_.load() == seen) {
            sleep_while(value_, seen);
        }
        sleeping_.fetch_sub(1);
    }
    return value();
}

bool Signal::changes_soon(uint32_t seen) const {
    const auto end = std::chrono::steady_clock::now() + kSpinning;
    do {
        for (int i = 0; i < kLooks; i++) {
            if (value() != seen) {
                return true;
            }
            pause();
        }
    } while (std::chrono::steady_clock::now() < end);
    return false;
}

ThreadTeam::ThreadTeam(int threads) : parts_(threads) {
    const BlockedSignals blocked;
    workers_.reserve(threads - 1);
    try {
        for (int thread = 1; thread < threads; thread++) {
            workers_.emplace_back(&ThreadTeam::serve, this, thread);
        }
    } catch (const std::system_error& error) {
        stop();
        throw Error("cannot start " + std::to_string(threads) + " threads (" + error.code().message() + "): use fewer");
    }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
    stopping_ = true;
    phase_.advance();
    for (std::thread& worker : workers_) {
        worker.join();
    }
}

void ThreadTeam::run(PhasedWork& work) {
    if (work.phases() == 0) {
        return;
    }
    uint32_t phase = phase_.value();
    work_ = &work;
    first_ = phase + 1;
    last_ = phase + static_cast<uint32_t>(work.phases());
    unfinished_ = threads();
    phase_.advance();
    const uint32_t end = last_ + 1;
    for (phase++; phase != end; phase = phase_.wait(phase)) {
        help(phase, 0);
    }
}

void ThreadTeam::serve(int thread) {
    name_thread();
    const DefaultFloatEnvironment environment;
    for (uint32_t phase = 0; !stopping_; phase = phase_.wait(phase)) {
        help(phase, thread);
    }
}

// Runs the remaining parts of a phase, first the part of this thread.
void ThreadTeam::help(uint32_t phase, int thread) {
    for (int i = 0; i < threads() && phase_.value() == phase; i++) {
        if (try_part(phase, (thread + i) % threads())) {
            end_phase(phase);
        }
    }
}

// Runs a part unless it was begun before. Returns whether it was the last part of the phase to finish.
bool ThreadTeam::try_part(uint32_t phase, int part) {
    uint32_t before = phase - 1;
    std::atomic<uint32_t>& begun = parts_[part].begun;
    if (begun.load(std::memory_order_relaxed) != before || !begun.compare_exchange_strong(before, phase)) {
        return false;
    }
    work_->run(phase - first_, part);
    return unfinished_.fetch_sub(1) == 1;
}

void ThreadTeam::end_phase(uint32_t phase) {
    work_->ended(phase - first_);
    if (phase == last_) {
        for (Part& part : parts_) {
            part.begun = phase + 1;
        }
    } else {
        unfinished_ = threads();
    }
    phase_.advance();
}

}  // namespace bmx
