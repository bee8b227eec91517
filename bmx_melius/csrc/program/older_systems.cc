// Definitions of two symbols that headers of newer versions of glibc and libstdc++ use and older versions of these
// libraries lack. With them the engine runs on systems older than the one that compiled it
// (docs/internals/releasing.md). They are hidden, so that other libraries do not use them, and weak, because static C
// libraries define the first one.

#include <new>

#if defined(__GLIBC__) && defined(__GLIBCXX__)

extern "C" {

// glibc 2.32: nonzero while the process has one thread. std::shared_ptr then counts without atomic operations. Zero is
// always correct.
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;

// std::__throw_bad_array_new_length() of GCC 11, which std::allocator calls if the size of an array in bytes overflows.
// Under its mangled name, because <new> declares it visible.
__attribute__((weak, visibility("hidden"), noreturn)) void _ZSt28__throw_bad_array_new_lengthv() {
    throw std::bad_array_new_length();
}

}  // extern "C"

#endif
