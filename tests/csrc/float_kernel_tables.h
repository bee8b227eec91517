// The float kernel tables by name, as far as this build and this CPU have them.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "kernels/float_kernels.h"

// nullptr: not here.
inline const bmx::FloatKernels* float_table(const std::string& name) {
    if (name == "reference") {
        return &bmx::float_kernels_reference();
    }
#ifdef BMX_HAVE_AVX2
    if (name == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &bmx::float_kernels_avx2();
    }
#endif
#ifdef BMX_HAVE_AVX512
    const bool avx512 = __builtin_cpu_supports("avx512vpopcntdq");
    if (name == "avx512" && avx512) {
        return &bmx::float_kernels_avx512();
    }
#ifdef BMX_HAVE_AMX
    const long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    if (name == "amx" && avx512 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0) {
        return &bmx::float_kernels_amx();
    }
#endif
#endif
    return nullptr;
}
