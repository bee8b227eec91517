// Element types of maps.
#pragma once
#include <cstddef>
#include <cstdint>

namespace bmx {

enum class DataType { f32, i16 };

inline size_t size_of(DataType type) { return type == DataType::f32 ? sizeof(float) : sizeof(int16_t); }

namespace {  // each instruction set compiles its own copy with its own flags

// Calls visit(pointer) with a pointer to the element type.
template <class Visit>
inline void visit_typed(DataType type, const void* x, const Visit& visit) {
    type == DataType::f32 ? visit(static_cast<const float*>(x)) : visit(static_cast<const int16_t*>(x));
}
template <class Visit>
inline void visit_typed(DataType type, void* x, const Visit& visit) {
    type == DataType::f32 ? visit(static_cast<float*>(x)) : visit(static_cast<int16_t*>(x));
}

}  // namespace
}  // namespace bmx
