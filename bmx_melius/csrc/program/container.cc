#include "program/container.h"

#include <cstring>

#include "program/error.h"
#include "program/file.h"

namespace bmx {
namespace {

constexpr uint64_t kListMagic = 0x112;
constexpr uint32_t kArrayMagic = 0xF993FAC9, kNumpyShapeArrayMagic = 0xF993FACA;
constexpr int32_t kDense = 0, kInt32 = 4;
constexpr int32_t kMaxRank = 32;

// Bytes per element, indexed by MXNet's type number: float 32, 64, 16, uint8, int32, int8, int64, bool, int16,
// uint16, uint32, uint64, bfloat16.
constexpr int kElementBytes[] = {4, 8, 2, 1, 4, 1, 8, 1, 2, 2, 4, 8, 2};
constexpr int32_t kTypes = sizeof kElementBytes / sizeof *kElementBytes;

struct Array {
    bool is_program_like;  // a dense int32 vector
    const uint8_t* data;
    uint64_t bytes;
};

class Reader {
  public:
    Reader(const uint8_t* content, size_t bytes, const std::string& name) : name_(name), next_(content), left_(bytes) {}

    [[noreturn]] void fail(const std::string& why) const { throw Error(name_ + ": " + why); }

    uint64_t left() const { return left_; }

    const uint8_t* take(uint64_t bytes) {
        if (bytes > left_) {
            fail("the file is cut short or damaged");
        }
        next_ += bytes;
        left_ -= bytes;
        return next_ - bytes;
    }

    template <class T>
    T number() {
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }

    // Reads a count of items of at least `min_bytes` bytes each.
    uint64_t count(uint64_t min_bytes) {
        uint64_t number = this->number<uint64_t>();
        if (number > left_ / min_bytes) {
            fail("the file is cut short or damaged");
        }
        return number;
    }

    Array array() {
        uint32_t magic = number<uint32_t>();
        if (magic != kArrayMagic && magic != kNumpyShapeArrayMagic) {
            fail("an array of a kind that MXNet 1.5 to 1.9 do not write");
        }
        if (number<int32_t>() != kDense) {
            fail("a sparse array; packed networks have none");
        }
        int32_t rank = number<int32_t>();
        if (rank < 0 || rank > kMaxRank) {
            fail("the file is damaged: an array of rank " + std::to_string(rank));
        }
        uint64_t elements = 1;
        for (int32_t i = 0; i < rank; i++) {
            int64_t size = number<int64_t>();
            if (size < 0 || (size > 0 && elements > UINT64_MAX / 16 / static_cast<uint64_t>(size))) {
                fail("the file is damaged: an impossible shape");
            }
            elements *= static_cast<uint64_t>(size);
        }
        if (rank == 0 && magic == kArrayMagic) {
            return {false, nullptr, 0};  // an empty array: no data follows
        }
        take(2 * sizeof(int32_t));  // the device
        int32_t type = number<int32_t>();
        if (type < 0 || type >= kTypes) {
            fail("an array of the unknown type " + std::to_string(type));
        }
        uint64_t bytes = elements * static_cast<uint64_t>(kElementBytes[type]);
        return {rank == 1 && type == kInt32, take(bytes), bytes};
    }

    std::string name_of_array() {
        uint64_t length = count(1);
        const uint8_t* letters = take(length);
        return std::string(letters, letters + length);
    }

  private:
    const std::string& name_;
    const uint8_t* next_;
    uint64_t left_;
};

bool is_program_name(const std::string& name) {
    const std::string ending = "_program";
    return name.size() >= ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0;
}

}  // namespace

std::vector<int32_t> find_program_words(const uint8_t* content, size_t bytes, const std::string& name) {
    Reader reader(content, bytes, name);
    if (reader.left() < 16 || reader.number<uint64_t>() != kListMagic) {
        reader.fail("not a .params file of MXNet");
    }
    reader.number<uint64_t>();  // reserved
    std::vector<Array> arrays;
    for (uint64_t i = reader.count(12); i > 0; i--) {
        arrays.push_back(reader.array());
    }
    uint64_t names = reader.count(8);
    if (names != arrays.size()) {
        reader.fail("its arrays have no names");
    }
    const Array* found = nullptr;
    for (const Array& array : arrays) {
        if (!is_program_name(reader.name_of_array()) || !array.is_program_like) {
            continue;
        }
        if (found) {
            reader.fail("it holds several packed programs: run it in MXNet");
        }
        found = &array;
    }
    if (reader.left()) {
        reader.fail("the file is damaged: bytes follow its last name");
    }
    if (!found) {
        reader.fail("it holds no packed program: convert the network first");
    }
    std::vector<int32_t> words(found->bytes / sizeof(int32_t));
    if (!words.empty()) {
        std::memcpy(words.data(), found->data, found->bytes);
    }
    return words;
}

std::vector<int32_t> read_program_words(const std::string& path) {
    const std::string content = read_file(path);
    return find_program_words(reinterpret_cast<const uint8_t*>(content.data()), content.size(), path);
}

}  // namespace bmx
