#include "classifier/json_reader.h"

#include <cstring>
#include <locale>
#include <sstream>

#include "program/error.h"

namespace bmx {
namespace {

constexpr int kMaxDepth = 100;            // of what is skipped, on the stack; symbols have 5
constexpr size_t kMaxIntegerDigits = 18;  // which fit into int64_t

}  // namespace

size_t bytes_of_character(const char* next, const char* end) {
    const auto at = [&](size_t place) { return static_cast<uint8_t>(next[place]); };
    const uint8_t first = at(0);
    if (first < 0x80) {
        return 1;
    }
    const size_t bytes = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
    if (bytes == 0 || static_cast<size_t>(end - next) < bytes) {
        return 0;
    }
    for (size_t i = 1; i < bytes; i++) {
        if ((at(i) & 0xC0) != 0x80) {
            return 0;
        }
    }
    const bool overlong = (first == 0xE0 && at(1) < 0xA0) || (first == 0xF0 && at(1) < 0x90);
    const bool surrogate = first == 0xED && at(1) >= 0xA0, beyond = first == 0xF4 && at(1) >= 0x90;
    return overlong || surrogate || beyond ? 0 : bytes;
}

namespace {

void append_utf8(std::string* text, uint32_t code) {
    const auto add = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
        add(code);
        return;
    }
    if (code < 0x800) {
        add(0xC0 | code >> 6);
    } else {
        if (code < 0x10000) {
            add(0xE0 | code >> 12);
        } else {
            add(0xF0 | code >> 18);
            add(0x80 | (code >> 12 & 0x3F));
        }
        add(0x80 | (code >> 6 & 0x3F));
    }
    add(0x80 | (code & 0x3F));
}

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

}  // namespace

void JsonReader::fail(const std::string& reason) const {
    throw Error("byte " + std::to_string(next_ - begin_) + ": " + reason);
}

// Skips white space; returns the next character, or 0 at the end, which no value begins with.
char JsonReader::peek() {
    while (next_ < end_ && (*next_ == ' ' || *next_ == '\n' || *next_ == '\t' || *next_ == '\r')) {
        next_++;
    }
    return next_ < end_ ? *next_ : '\0';
}

void JsonReader::take(char letter, const char* expected) {
    if (peek() != letter) {
        fail(std::string("expected ") + expected);
    }
    next_++;
}

bool JsonReader::take_word(const char* word) {
    const size_t length = std::strlen(word);
    peek();
    if (static_cast<size_t>(end_ - next_) < length || std::memcmp(next_, word, length) != 0) {
        return false;
    }
    next_ += length;
    return true;
}

// Reads the end of an object or array, or else the comma before all values but the first.
bool JsonReader::ends(char closing, bool first) {
    if (peek() == closing) {
        next_++;
        return true;
    }
    if (!first) {
        take(',', "','");
    }
    return false;
}

bool JsonReader::take_null() { return take_word("null"); }

void JsonReader::end() {
    if (peek() != '\0' || next_ < end_) {
        fail("expected the end of the text");
    }
}

void JsonReader::skip() { skip(0); }

void JsonReader::skip(int depth) {
    if (depth > kMaxDepth) {
        fail("more than " + std::to_string(kMaxDepth) + " values lie inside each other");
    }
    switch (peek()) {
        case '{':
            return object([&](const std::string&) { skip(depth + 1); });
        case '[':
            return array([&](size_t) { skip(depth + 1); });
        case '"':
            string();
            return;
        default:
            if (!take_word("true") && !take_word("false") && !take_null()) {
                number_text();
            }
    }
}

// --- numbers

void JsonReader::digits() {
    if (next_ == end_ || !is_digit(*next_)) {
        fail("expected a digit");
    }
    while (next_ < end_ && is_digit(*next_)) {
        next_++;
    }
}

std::string JsonReader::number_text() {
    const char letter = peek(), *const begin = next_;
    if (letter != '-' && !is_digit(letter)) {
        fail("expected a number");
    }
    const auto next_is = [&](const char* letters) { return next_ < end_ && *next_ && std::strchr(letters, *next_); };
    next_ += letter == '-';
    if (next_is("0")) {
        next_++;
    } else {
        digits();
    }
    if (next_is(".")) {
        next_++;
        digits();
    }
    if (next_is("eE")) {
        next_++;
        next_ += next_is("+-");
        digits();
    }
    return {begin, next_};
}

double JsonReader::number() {
    std::istringstream text(number_text());
    text.imbue(std::locale::classic());  // strtod would expect the decimal point of the program's locale
    double result = 0;
    if (!(text >> result)) {
        fail("the number is too large");
    }
    return result;
}

int64_t JsonReader::integer() {
    const std::string text = number_text();
    const bool negative = text[0] == '-';
    int64_t result = 0;
    for (size_t i = negative; i < text.size(); i++) {
        if (!is_digit(text[i]) || i >= kMaxIntegerDigits) {
            fail("expected a whole number of at most 18 characters");
        }
        result = 10 * result + (text[i] - '0');
    }
    return negative ? -result : result;
}

// --- strings

std::string JsonReader::string() {
    take('"', "a string");
    std::string result;
    while (next_ < end_ && *next_ != '"') {
        character(&result);
    }
    if (next_ == end_) {
        fail("the string has no end");
    }
    next_++;
    return result;
}

void JsonReader::character(std::string* result) {
    if (*next_ == '\\') {
        next_++;
        escape(result);
        return;
    }
    const size_t bytes = bytes_of_character(next_, end_);
    if (bytes == 0 || static_cast<uint8_t>(*next_) < 0x20) {
        fail(bytes == 0 ? "invalid UTF-8" : "a control character in a string");
    }
    result->append(next_, bytes);
    next_ += bytes;
}

void JsonReader::escape(std::string* result) {
    constexpr const char *kLetters = "\"\\/bfnrt", *kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = next_ < end_ ? *next_++ : '\0';
    if (const char* place = letter ? std::strchr(kLetters, letter) : nullptr) {
        result->push_back(kMeanings[place - kLetters]);
        return;
    }
    if (letter != 'u') {
        fail("an unknown escape in a string");
    }
    uint32_t code = hexadecimal();
    if (code >= 0xD800 && code < 0xDC00 && end_ - next_ >= 2 && next_[0] == '\\' && next_[1] == 'u') {
        next_ += 2;
        const uint32_t second = hexadecimal();
        code = second >= 0xDC00 && second < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00) : code;
    }
    if (code >= 0xD800 && code < 0xE000) {
        fail("half of a surrogate pair in a string");
    }
    append_utf8(result, code);
}

uint32_t JsonReader::hexadecimal() {
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        constexpr const char* kDigits = "0123456789abcdefABCDEF";
        const char* const place = next_ < end_ && *next_ ? std::strchr(kDigits, *next_) : nullptr;
        if (!place) {
            fail("expected four hexadecimal digits");
        }
        const uint32_t digit = static_cast<uint32_t>(place - kDigits);
        result = result << 4 | (digit < 16 ? digit : digit - 6);
        next_++;
    }
    return result;
}

}  // namespace bmx
