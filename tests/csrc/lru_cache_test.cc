// Test of the cache of recently used entries.
#include "api/lru_cache.h"

#include <cstdio>
#include <cstdlib>

namespace {

using Cache = bmx::LruCache<int>;

int failures = 0;

void check(bool condition, const char* what) {
    if (!condition) {
        std::printf("%s\n", what);
        failures++;
    }
}

bool has(Cache& cache, int wanted) {
    const int* found = cache.find([&](int entry) { return entry == wanted; });
    return found && *found == wanted;
}

void test_that_it_is_bounded() {
    Cache cache(3);
    for (int i = 0; i < 100; i++) {
        cache.add(i);
        check(cache.size() <= 3, "it has more entries than the maximum");
    }
    check(has(cache, 99) && has(cache, 98) && has(cache, 97) && !has(cache, 96), "it does not have the latest entries");
}

void test_that_the_entry_unused_for_longest_goes_first() {
    Cache cache(3);
    for (int i = 0; i < 3; i++) {
        cache.add(i);
    }
    has(cache, 0);
    cache.add(3);
    check(has(cache, 0) && !has(cache, 1) && has(cache, 2) && has(cache, 3), "it has removed an entry in use");
}

void test_that_entries_are_removed() {
    Cache cache(4);
    for (int i = 0; i < 4; i++) {
        cache.add(i);
    }
    cache.remove([](int entry) { return entry % 2; });
    check(cache.size() == 2 && has(cache, 0) && has(cache, 2), "it has removed other entries");
}

}  // namespace

int main() {
    test_that_it_is_bounded();
    test_that_the_entry_unused_for_longest_goes_first();
    test_that_entries_are_removed();
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
