// Element types of maps.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bmx {

enum class Number { f32, i16 };

inline size_t size_of(Number number) { return number == Number::f32 ? sizeof(float) : sizeof(int16_t); }

namespace {  // each instruction set compiles its own copy with its own flags

// Calls visit(pointer) with a pointer to the element type.
template <class Visit>
inline void visit_numbers(Number number, const void* x, const Visit& visit) {
    number == Number::f32 ? visit(static_cast<const float*>(x)) : visit(static_cast<const int16_t*>(x));
}
template <class Visit>
inline void visit_numbers(Number number, void* x, const Visit& visit) {
    number == Number::f32 ? visit(static_cast<float*>(x)) : visit(static_cast<int16_t*>(x));
}

}  // namespace
}  // namespace bmx
