#include "kernels/common/binary_training.h"
#include "kernels/common/normalization.h"

namespace bmx {

const BinaryTrainingKernels* find_binary_training(const std::string& instruction_set) {
#ifdef BMX_HAVE_AMX
    if (instruction_set == "amx") {
        return &binary_training_amx();
    }
#endif
#ifdef BMX_HAVE_AVX512
    if (instruction_set == "avx512") {
        return &binary_training_avx512();
    }
#endif
#ifdef BMX_HAVE_AVX2
    if (instruction_set == "avx2") {
        return &binary_training_avx2();
    }
#endif
    return nullptr;
}

const NormalizationKernels* find_normalization(const std::string& instruction_set) {
#ifdef BMX_HAVE_AVX512
    if (instruction_set == "avx512" || instruction_set == "amx") {
        return &normalization_avx512();
    }
#endif
#ifdef BMX_HAVE_AVX2
    if (instruction_set == "avx2") {
        return &normalization_avx2();
    }
#endif
    return nullptr;
}

}  // namespace bmx
