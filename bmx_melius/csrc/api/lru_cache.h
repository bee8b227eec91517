// Cache of the entries that were used most recently, up to a maximum number. Not thread-safe.
#pragma once
#include <algorithm>
#include <cstddef>
#include <list>
#include <utility>

namespace bmx {

template <class Entry>
class LruCache {
  public:
    explicit LruCache(size_t capacity) : capacity_(capacity) {}

    size_t size() const { return entries_.size(); }

    // Returns the first entry that fulfils a condition, which becomes the most recent one, or nullptr. The pointer is
    // valid until the next call.
    template <class Condition>
    const Entry* find(const Condition& condition) {
        auto found = std::find_if(entries_.begin(), entries_.end(), condition);
        if (found == entries_.end()) {
            return nullptr;
        }
        entries_.splice(entries_.begin(), entries_, found);
        return &entries_.front();
    }

    // Adds an entry as the most recent one, and removes the oldest one if there are more than the maximum.
    void add(Entry entry) {
        entries_.push_front(std::move(entry));
        if (entries_.size() > capacity_) {
            entries_.pop_back();
        }
    }

    template <class Condition>
    void remove(const Condition& condition) {
        entries_.remove_if(condition);
    }

  private:
    const size_t capacity_;
    std::list<Entry> entries_;  // most recently used first
};

}  // namespace bmx
