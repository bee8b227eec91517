// The binary kernel tables that this build and this CPU have, the reference first.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

#include "kernels/binary_kernels.h"

inline std::vector<const bmx::BinaryKernels*> available_tables() {
    std::vector<const bmx::BinaryKernels*> tables = {&bmx::binary_kernels_reference()};
#ifdef BMX_HAVE_AVX2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")) {
        tables.push_back(&bmx::binary_kernels_avx2());
    }
#endif
#ifdef BMX_HAVE_AVX512
    const bool avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vpopcntdq");
    if (avx512) {
        tables.push_back(&bmx::binary_kernels_avx512());
    }
#ifdef BMX_HAVE_AMX
    const long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
    if (avx512 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0) {
        tables.push_back(&bmx::binary_kernels_amx());
        tables.push_back(&bmx::binary_kernels_amx_small());
    }
#endif
#endif
    return tables;
}
