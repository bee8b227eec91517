#include "threads/forking.h"

#include <pthread.h>

namespace bmx {

Forking& Forking::instance() {
    static Forking forking;
    return forking;
}

Forking::Forking() {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] {
                       instance().in_child_ = true;
                       instance().mutex_.unlock();
                   });
}

}  // namespace bmx
