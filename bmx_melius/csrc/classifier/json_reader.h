// Reader for JSON texts (RFC 8259). The engine has one of its own so that it needs no other library where it is
// compiled; this one keeps no values, so its memory does not grow with skipped values.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace bmx {

// Returns the number of bytes of the UTF-8 character that begins at `next`, or 0 if it is invalid (RFC 3629).
size_t bytes_of_character(const char* next, const char* end);

// Reads a text from front to back. Each function reads the next value, and throws Error with the place in the text if
// that is of another kind, or not JSON.
class JsonReader {
  public:
    explicit JsonReader(const std::string& text)
        : begin_(text.data()), next_(begin_), end_(text.data() + text.size()) {}
    explicit JsonReader(std::string&&) = delete;  // the text must outlive the reader

    // Calls visit(name) for each field of an object; it must read or skip the value.
    template <class Visit>
    void object(const Visit& visit) {
        take('{', "an object");
        for (bool first = true; !ends('}', first); first = false) {
            const std::string name = string();
            take(':', "':'");
            visit(name);
        }
    }

    // Calls visit(index) for each element of an array; it must read or skip the element.
    template <class Visit>
    void array(const Visit& visit) {
        take('[', "an array");
        for (size_t index = 0; !ends(']', index == 0); index++) {
            visit(index);
        }
    }

    std::string string();  // UTF-8
    double number();
    int64_t integer();
    bool take_null();  // whether the next value is null, which is read only then
    void skip();
    void end();  // throws Error unless nothing follows

    [[noreturn]] void fail(const std::string& reason) const;

  private:
    char peek();
    void take(char letter, const char* expected);
    bool take_word(const char* word);
    bool ends(char closing, bool first);
    std::string number_text();
    void digits();
    void skip(int depth);
    void character(std::string* result);
    void escape(std::string* result);
    uint32_t hexadecimal();

    const char* const begin_;
    const char* next_;
    const char* const end_;
};

}  // namespace bmx
