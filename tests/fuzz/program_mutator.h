// Mutations of packed programs that keep their header and records consistent. A mutation of bytes, as libFuzzer makes
// it, practically always ends at the checksum, and then at the length of a record.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "csrc/program_builder.h"
#include "program/error.h"
#include "program/program.h"
#include "program/reader.h"

namespace fuzzing {

using Words = std::vector<int32_t>;

// Writes the parts of the header that depend on the others. The length of a structure is the length of its program.
inline void repair_header(Words& words, bool has_arrays) {
    if (words.size() < bmx::kHeaderWords) {
        return;
    }
    words[0] = bmx::kMagic;
    words[1] = bmx::kVersion;
    if (has_arrays) {
        words[2] = static_cast<int32_t>(words.size());
    }
    words[7] = 0;
    words[3] = ProgramBuilder::checksum(words);
}

inline std::vector<uint8_t> bytes_of(const Words& words) {
    std::vector<uint8_t> bytes(4 * words.size());
    if (!bytes.empty()) {
        std::memcpy(bytes.data(), words.data(), bytes.size());
    }
    return bytes;
}

inline Words words_of(const uint8_t* data, size_t size) {
    Words words(size / 4);
    if (!words.empty()) {
        std::memcpy(words.data(), data, 4 * words.size());
    }
    return words;
}

// Makes one change to a program or a structure.
class ProgramMutator {
  public:
    ProgramMutator(unsigned seed, bool has_arrays) : random_(seed), has_arrays_(has_arrays) {}

    Words mutate(Words words) {
        if (words.size() < bmx::kHeaderWords) {
            words.resize(bmx::kHeaderWords + below(64));
        }
        const bool is_changed = one_in(4) ? false : change_record(words);
        for (size_t changes = is_changed ? 0 : 1 + below(3); changes > 0; changes--) {
            change_words(words);
        }
        if (!one_in(50)) {
            repair_header(words, has_arrays_);
        }
        return words;
    }

  private:
    size_t below(size_t number) { return number ? random_() % number : 0; }
    bool one_in(size_t number) { return below(number) == 0; }

    int32_t number() {
        static const int32_t interesting[] = {0,         1,       2,         3,         31,    32,      33,
                                              63,        64,      65,        127,       128,   255,     256,
                                              4095,      4096,    65535,     65536,     65537, 1 << 20, (1 << 20) + 1,
                                              1 << 23,   1 << 30, INT32_MAX, INT32_MIN, -1,    -2,      0x7fc00000,
                                              0x7f800000};
        return one_in(2) ? static_cast<int32_t>(below(9))
                         : interesting[below(sizeof interesting / sizeof *interesting)];
    }

    void change_words(Words& words) {
        const size_t position = 4 + below(words.size() - 4);
        switch (below(6)) {
            case 0:
                words[position] = number();
                break;
            case 1:
                words[position] = static_cast<int32_t>(static_cast<uint32_t>(words[position]) + below(5) - 2);
                break;
            case 2:
                words[position] ^= static_cast<int32_t>(1u << below(32));
                break;
            case 3:
                words.insert(words.begin() + position, 1 + below(4), number());
                break;
            case 4:
                if (words.size() > bmx::kHeaderWords + 4) {
                    words.erase(words.begin() + position,
                                words.begin() + std::min(words.size(), position + 1 + below(4)));
                }
                break;
            default:
                std::swap(words[position], words[4 + below(words.size() - 4)]);
        }
        words.resize(std::max<size_t>(words.size(), bmx::kHeaderWords));
    }

    struct Record {
        size_t begin, end;
    };

    // Returns the records of the operations, as long as their lengths are possible. Without arrays a length does not
    // determine the position of the next record.
    std::vector<Record> records_of(const Words& words) const {
        std::vector<Record> records;
        if (!has_arrays_ || words[4] < 0 || static_cast<size_t>(words[4]) > words.size() / bmx::kInputWords) {
            return records;
        }
        size_t begin = bmx::kHeaderWords + bmx::kInputWords * static_cast<size_t>(words[4]);
        for (int32_t i = 0; i < words[5] && begin + bmx::kRecordWords <= words.size(); i++) {
            const int32_t length = words[begin + 1];
            if (length < static_cast<int32_t>(bmx::kRecordWords) ||
                static_cast<size_t>(length) > words.size() - begin) {
                break;
            }
            records.push_back({begin, begin + static_cast<size_t>(length)});
            begin = records.back().end;
        }
        return records;
    }

    // Changes a record as a whole. Returns false if there is none that can be changed.
    bool change_record(Words& words) {
        const std::vector<Record> records = records_of(words);
        if (records.empty()) {
            return false;
        }
        const Record record = records[below(records.size())];
        switch (below(4)) {
            case 0:
                append(words, records);
                return true;
            case 1:
                return change_attribute(words, record);
            case 2: {  // its array elements
                const size_t last = record.end - 1 - below(std::min<size_t>(8, record.end - record.begin));
                words[last] = number();
                return true;
            }
            default: {  // other inputs
                const int32_t count = words[record.begin + 2];
                if (count < 1 || record.begin + bmx::kRecordWords + count > record.end) {
                    return false;
                }
                words[record.begin + bmx::kRecordWords + below(count)] =
                    static_cast<int32_t>(below(static_cast<size_t>(words[4]) + records.size()));
                return true;
            }
        }
    }

    const bmx::OperationRow* row_of(int32_t code) const {
        return bmx::is_opcode(code) ? &bmx::row_of(static_cast<bmx::Op>(code)) : nullptr;
    }

    int32_t attribute(const bmx::AttributeRow& row) {
        const int64_t range = int64_t(row.high) - row.low + 1;
        const int64_t small = std::min<int64_t>(range, one_in(8) ? range : one_in(4) ? 64 : 5);
        return static_cast<int32_t>(row.low + static_cast<int64_t>(below(static_cast<size_t>(small))));
    }

    bool change_attribute(Words& words, const Record& record) {
        const bmx::OperationRow* row = row_of(words[record.begin]);
        const size_t first =
            record.begin + bmx::kRecordWords + static_cast<size_t>(std::max(0, words[record.begin + 2]));
        if (!row || !row->attributes.size() || first + row->attributes.size() > record.end) {
            return false;
        }
        const size_t which = below(row->attributes.size());
        words[first + which] = attribute(row->attributes.rows[which]);
        resize_arrays(words, record);
        return true;
    }

    static void increment(int32_t& word) { word = static_cast<int32_t>(static_cast<uint32_t>(word) + 1); }

    // Appends an operation on the latest values, whose result becomes an output.
    void append(Words& words, const std::vector<Record>& records) {
        int32_t code;
        do {
            code = static_cast<int32_t>(1 + below(bmx::kMaxOpcode));
        } while (!bmx::is_opcode(code));
        const bmx::OperationRow& row = *row_of(code);
        const size_t values = static_cast<size_t>(words[4]) + records.size();
        const int32_t inputs =
            static_cast<int32_t>(std::min(row.max_inputs, row.min_inputs + static_cast<int>(below(3))));
        Words added = {code, 0, inputs};
        for (int32_t i = 0; i < inputs; i++) {
            added.push_back(static_cast<int32_t>(values - 1 - below(std::min<size_t>(values, 4))));
        }
        for (const bmx::AttributeRow& one : row.attributes) {
            added.push_back(attribute(one));
        }
        added[1] = static_cast<int32_t>(added.size());
        const size_t begin = records.back().end, end = begin + added.size();
        words.insert(words.begin() + begin, added.begin(), added.end());
        increment(words[5]);
        resize_arrays(words, {begin, end});
        if (row.result != bmx::Result::bits) {
            increment(words[6]);
            words.push_back(static_cast<int32_t>(values));
        }
    }

    // Gives a record as many words of arrays as the reader wants.
    void resize_arrays(Words& words, const Record& record) {
        for (int attempt = 0; attempt < 4; attempt++) {
            const int64_t have = words[record.begin + 1];
            const int64_t wanted = wanted_words(words, {record.begin, record.begin + static_cast<size_t>(have)});
            if (wanted == have || wanted < static_cast<int64_t>(bmx::kRecordWords) || wanted > kMaxWords) {
                return;
            }
            const auto end = words.begin() + record.begin + have;
            if (wanted > have) {
                words.insert(end, wanted - have, one_in(2) ? 0 : 0x3f000000);
            } else {
                words.erase(end - (have - wanted), end);
            }
            words[record.begin + 1] = static_cast<int32_t>(wanted);
        }
    }

    // Returns how many words the reader finds in a record if enough follow it, or 0 if the operation is not possible.
    static int64_t wanted_words(const Words& words, const Record& record) {
        Words padded(words.begin(), words.begin() + record.end);
        padded.resize(record.end + kMaxWords);
        bmx::Reader reader(padded.data(), padded.size(), true);
        try {
            std::vector<bmx::Value> values;
            for (int32_t i = 0; i < words[4]; i++) {
                values.push_back(reader.input());
                if (values.back().channels < 1 || values.back().height < 1 || values.back().width < 1) {
                    return 0;
                }
            }
            for (size_t i = 0;; i++) {
                const int64_t begin = reader.length();
                if (begin == static_cast<int64_t>(record.begin)) {
                    return length_of(padded, record.begin, reader, i, values);
                }
                reader.operation(i, values);
            }
        } catch (const bmx::Error&) {
            return 0;
        }
    }

    // Reads the operation with every stored length until the reader agrees. It does so at the second attempt, because
    // its message ends the first one at the position that it has reached.
    static int64_t length_of(Words& padded, size_t begin, const bmx::Reader& before, size_t number,
                             const std::vector<bmx::Value>& values) {
        bmx::Reader reader = before;
        std::vector<bmx::Value> copy = values;
        padded[begin + 1] = -1;
        try {
            reader.operation(number, copy);
        } catch (const bmx::Error&) {
        }
        return reader.length() - static_cast<int64_t>(begin);
    }

    static constexpr int64_t kMaxWords = 1 << 14;

    std::mt19937 random_;
    bool has_arrays_;
};

}  // namespace fuzzing
