#include "threads/forking.h"

#include <pthread.h>

namespace bmx {

// Of the library, not of a function: another thread may be initializing what belongs to a function at the time of a
// fork.
Forking Forking::forking_;

Forking& Forking::instance() { return forking_; }

Forking::Forking() {
    pthread_atfork([] { forking_.mutex_.lock(); }, [] { forking_.mutex_.unlock(); },
                   [] {
                       forking_.in_child_ = true;
                       forking_.mutex_.unlock();
                   });
}

}  // namespace bmx
