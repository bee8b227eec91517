// Weights of few levels in the order in which kernels read them, kept as codes.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "kernels/common/level_codes.h"
#include "steps/step.h"

namespace bmx {

// Fewer bytes of weights stay in the second-level cache from run to run, where looking levels up would take longer.
constexpr size_t kMinCodedBytes = 512 << 10;

// Returns whether weights are so many that codes of them, if they have few levels, save time.
template <class Number>
bool are_many(const std::vector<Number>& weights) {
    return sizeof(Number) * weights.size() >= kMinCodedBytes;
}

// The levels of weights. Equal numbers with different bits, as 0 and -0, are different levels.
template <class Number>
class Levels {
  public:
    Levels() = default;  // none
    explicit Levels(const std::vector<Number>& weights) {
        for (const Number weight : weights) {
            const Word word = word_of(weight);
            const auto end = words_.begin() + count_, at = std::lower_bound(words_.begin(), end, word);
            if (at != end && *at == word) {
                continue;
            }
            if (count_ == kLevels) {
                count_++;
                return;
            }
            std::copy_backward(at, end, end + 1);
            *at = word;
            count_++;
        }
    }

    // Returns the bits of a code, or 0 if there are too many levels or none.
    int bits() const { return !count_ ? 0 : count_ <= 2 ? 1 : count_ <= 4 ? 2 : count_ <= kLevels ? kMaxCodeBits : 0; }

    // Returns the code of a level, and any code of another number: of a lane without a filter, whose sum is not stored.
    int code_of(Number number) const {
        const auto at = std::lower_bound(words_.begin(), words_.begin() + count_ - 1, word_of(number));
        return static_cast<int>(at - words_.begin());
    }

    // Returns the levels of all kLevels codes: the upper bits of a code do not count.
    std::vector<Number> table() const {
        std::vector<Number> numbers(kLevels);
        for (int i = 0; i < kLevels; i++) {
            std::memcpy(&numbers[i], &words_[i % (1 << bits())], sizeof(Number));
        }
        return numbers;
    }

  private:
    using Word = typename Codes<Number>::Word;

    static Word word_of(Number number) {
        Word word;
        std::memcpy(&word, &number, sizeof word);
        return word;
    }

    std::array<Word, kLevels> words_ = {};  // in increasing order
    int count_ = 0;
};

// Codes of arrays of `size` weights of the same levels.
template <class Number>
class CodedWeights {
  public:
    CodedWeights() = default;
    CodedWeights(const Levels<Number>& levels, size_t arrays, size_t size)
        : levels_(levels),
          table_(levels.table()),
          size_(size),
          groups_(ceil_div(size, size_t(group_weights(levels.bits())))),
          words_(arrays * groups_ * kWords) {
        std::fill_n(words_.data(), words_.size(), 0);
    }

    void store(size_t array, const Number* weights) {
        const size_t group = group_weights(levels_.bits());
        for (size_t i = 0; i < size_; i++) {
            const size_t in_group = i % group, word = (array * groups_ + i / group) * kWords + in_group % kWords;
            words_[word] |= static_cast<Word>(levels_.code_of(weights[i]) << in_group / kWords * levels_.bits());
        }
    }

    bool empty() const { return !words_.size(); }
    size_t bytes() const { return words_.size() * sizeof(Word); }

    Codes<Number> of(size_t array) const {
        return {words_.data() + array * groups_ * kWords, levels_.bits(), table_.data(), groups_};
    }

  private:
    using Word = typename Codes<Number>::Word;
    static constexpr size_t kWords = kGroupBytes / sizeof(Number);

    Levels<Number> levels_;
    std::vector<Number> table_;  // which codes point to, also after the object was moved
    size_t size_ = 0, groups_ = 0;
    Constants<Word> words_;
};

}  // namespace bmx
