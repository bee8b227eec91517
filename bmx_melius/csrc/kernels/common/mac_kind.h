// Kinds of multiply-accumulates.
#pragma once

namespace bmx {

enum class MacKind { floats, binary, int8 };  // the numbers of the C interface

}  // namespace bmx
