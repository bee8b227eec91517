#include "kernels/dispatch.h"

#include <atomic>
#include <cstdlib>
#include <memory>

#include "program/error.h"

#ifdef BMX_EMULATED_TILES  // in tests
#include "csrc/emulated_permission.h"
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace bmx {
namespace {

#if defined(__x86_64__)

struct Registers {
    uint32_t a, b, c, d;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
    Registers r = {0, 0, 0, 0};
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
    return r;
}

bool has(uint32_t mask, uint32_t bits) { return (mask & bits) == bits; }

// Returns a mask of the register files that the operating system saves in a context switch.
uint32_t saved_by_os() {
    constexpr uint32_t osxsave = 1u << 27;
    if (!has(cpuid(1).c, osxsave)) {
        return 0;
    }
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

constexpr uint32_t kAvxState = 0x6, kAvx512State = 0xe6;
[[maybe_unused]] constexpr uint32_t kTileState = 0x60000;

[[maybe_unused]] bool cpu_has_avx2() {
    constexpr uint32_t fma_popcnt_avx_f16c = 1u << 12 | 1u << 23 | 1u << 28 | 1u << 29, avx2 = 1u << 5;
    return has(saved_by_os(), kAvxState) && has(cpuid(1).c, fma_popcnt_avx_f16c) && has(cpuid(7).b, avx2);
}

[[maybe_unused]] bool cpu_has_avxvnni() {
    constexpr uint32_t avx_vnni = 1u << 4;
    return cpu_has_avx2() && has(cpuid(7, 1).a, avx_vnni);
}

[[maybe_unused]] bool cpu_has_avx512() {
    constexpr uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    constexpr uint32_t vbmi_vbmi2_gfni_vnni_bitalg_vpopcntdq =
        1u << 1 | 1u << 6 | 1u << 8 | 1u << 11 | 1u << 12 | 1u << 14;
    return cpu_has_avx2() && has(saved_by_os(), kAvx512State) && has(cpuid(7).b, f_dq_bw_vl) &&
           has(cpuid(7).c, vbmi_vbmi2_gfni_vnni_bitalg_vpopcntdq);
}

[[maybe_unused]] bool cpu_has_bf16() {
    constexpr uint32_t avx512_bf16 = 1u << 5;
    return cpu_has_avx512() && has(cpuid(7, 1).a, avx512_bf16);
}

// Linux enables tiles for a process, its threads and its children only on request.
[[maybe_unused]] bool cpu_has_amx() {
#ifdef BMX_EMULATED_TILES
    return cpu_has_avx512() && request_emulated_tiles();
#else
    constexpr uint32_t bf16_tile_int8 = 1u << 22 | 1u << 24 | 1u << 25;
    if (!cpu_has_avx512() || !has(saved_by_os(), kTileState) || !has(cpuid(7).d, bf16_tile_int8)) {
        return false;
    }
    constexpr long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#endif
}

#elif defined(__aarch64__)

// Bits of AT_HWCAP and, the last two, of AT_HWCAP2, which older headers lack.
constexpr unsigned long kDotProducts = 1ul << 20, kSve = 1ul << 22, kSve2 = 1ul << 1, kMatrixProducts = 1ul << 13;

constexpr bool has_dotprod(unsigned long hwcap) { return hwcap & kDotProducts; }

constexpr bool has_i8mm(unsigned long hwcap, unsigned long hwcap2) {
    return has_dotprod(hwcap) && (hwcap2 & kMatrixProducts);
}

// Returns whether a processor with dot products has byte lookups that are as fast as additions, on which the binary
// kernels of dotprod rely. According to LLVM's models, processors without dot products have slower lookups, and so has
// Neoverse V1.
constexpr bool has_fast_lookups(unsigned long hwcap, unsigned long hwcap2) {
    return !(hwcap & kSve) || (hwcap2 & kSve2);
}
static_assert(!has_dotprod(0) && !has_i8mm(0, 0), "Cortex-A72");
static_assert(has_dotprod(kDotProducts) && has_fast_lookups(kDotProducts, 0), "Cortex-A76");
static_assert(!has_i8mm(kDotProducts, 0), "Cortex-A76");
static_assert(!has_fast_lookups(kDotProducts | kSve, kMatrixProducts), "Neoverse V1");
static_assert(has_i8mm(kDotProducts | kSve, kMatrixProducts), "Neoverse V1");
static_assert(has_fast_lookups(kDotProducts | kSve, kSve2 | kMatrixProducts), "Neoverse V2");

[[maybe_unused]] bool cpu_has_dotprod() { return has_dotprod(getauxval(AT_HWCAP)); }
[[maybe_unused]] bool cpu_has_i8mm() { return has_i8mm(getauxval(AT_HWCAP), getauxval(AT_HWCAP2)); }
[[maybe_unused]] bool cpu_has_fast_lookups() { return has_fast_lookups(getauxval(AT_HWCAP), getauxval(AT_HWCAP2)); }

#endif

std::vector<InstructionSet> supported_instruction_sets() {
    std::vector<InstructionSet> sets;
    auto add = [&](const BinaryKernels& binary, const FloatKernels& floats, const Int8Kernels& int8) {
        sets.push_back({binary.name, &binary, {}, nullptr, &floats, &floats, &int8, &floats});
    };
    add(binary_kernels_reference(), float_kernels_reference(), int8_kernels_reference());
#ifdef BMX_HAVE_AVX2
    if (cpu_has_avx2()) {
        add(binary_kernels_avx2(), float_kernels_avx2(), int8_kernels_avx2());
    }
#endif
#if defined(BMX_HAVE_AVX2) && defined(BMX_HAVE_AVXVNNI)
    if (cpu_has_avxvnni()) {
        add(binary_kernels_avx2(), float_kernels_avx2(), int8_kernels_avxvnni());
        sets.back().name = "avxvnni";
    }
#endif
#ifdef BMX_HAVE_AVX512
    if (cpu_has_avx512()) {
        add(binary_kernels_avx512(), float_kernels_avx512(), int8_kernels_avx512());
        // Tables are written for each run, which few pixels do not repay: 28 x 28 take .87 to .92 of the time on Zen 4,
        // 22 x 22 and 24 x 24 .90 to .97. Intel and Zen 5, where 28 x 28 took .93 to 1 of it with an earlier loop, have
        // not been measured since.
        sets.back().binary = &binary_kernels_avx512_planes();
        sets.back().binary_small = {{480, &binary_kernels_avx512()}};
    }
#endif
#ifdef BMX_HAVE_AMX
    // Weights are expanded for each run, which fewer than a hundred pixels do not repay: the small kernels do so in
    // passing, for four tiles of pixels at a time. Counting bits takes half to three quarters of the time with fewer
    // than 25 pixels, whose tiles are not full, and .8 to .9 with 64, which take five tiles. The small float kernels
    // keep weights as float32.
    if (cpu_has_amx()) {
        sets.push_back({binary_kernels_amx().name,
                        &binary_kernels_amx(),
                        {{24, &binary_kernels_avx512()},
                         {49, &binary_kernels_amx_small()},
                         {64, &binary_kernels_avx512()},
                         {128, &binary_kernels_amx_small()}},
                        nullptr,
                        &float_kernels_avx512(),
                        &float_kernels_amx(),
                        &int8_kernels_amx(),
                        &float_kernels_avx512()});
    }
#endif
#ifdef BMX_HAVE_BF16
    if (cpu_has_bf16()) {
        for (InstructionSet& set : sets) {
            if (set.floats == &float_kernels_avx512()) {
                set.bf16 = &float_kernels_bf16();
            }
        }
    }
#endif
#ifdef BMX_HAVE_NEON  // part of every aarch64 processor
    add(binary_kernels_neon(), float_kernels_neon(), int8_kernels_neon());
#endif
#ifdef BMX_HAVE_DOTPROD
    if (cpu_has_dotprod()) {
        if (cpu_has_fast_lookups()) {  // these kernels always compute 32 filters, neon's as few as 4
            add(binary_kernels_dotprod(), float_kernels_neon(), int8_kernels_dotprod());
            sets.back().binary_narrow = &binary_kernels_neon();
        } else {
            add(binary_kernels_neon(), float_kernels_neon(), int8_kernels_dotprod());
        }
        sets.back().name = "dotprod";
    }
#endif
#if defined(BMX_HAVE_DOTPROD) && defined(BMX_HAVE_I8MM)
    if (cpu_has_i8mm()) {
        sets.push_back(sets.back());
        sets.back().name = "i8mm";
        sets.back().int8 = &int8_kernels_i8mm();
    }
#endif
#ifdef BMX_HAVE_WASM  // a module with vectors is loaded only by engines that have them
    add(binary_kernels_wasm(), float_kernels_wasm(), int8_kernels_wasm());
#endif
    return sets;
}

std::string join_names(const std::vector<InstructionSet>& sets) {
    std::string names;
    for (const InstructionSet& set : sets) {
        names += (names.empty() ? "" : " ") + std::string(set.name);
    }
    return names;
}

// Initialized with the library, and so are the tables of the kernels: see threads/forking.h.
const std::vector<InstructionSet> sets = supported_instruction_sets();
const std::string set_names = join_names(sets);

// Returns what the environment named at the first call. Several threads may ask at the same time: one answer is kept.
const std::string& wanted_name() {
    static std::atomic<const std::string*> wanted{nullptr};
    if (!wanted) {
        const char* value = std::getenv("BMX_MELIUS_ISA");
        const std::string* none = nullptr;
        auto name = std::make_unique<const std::string>(value ? value : "");
        if (wanted.compare_exchange_strong(none, name.get())) {
            name.release();  // until the end of the process
        }
    }
    return *wanted;
}

}  // namespace

const BinaryKernels* InstructionSet::binary_for(int64_t pixels) const {
    for (const SmallMapKernels& small : binary_small) {
        if (pixels <= small.pixels) {
            return small.kernels;
        }
    }
    return binary;
}

const std::vector<InstructionSet>& instruction_sets() { return sets; }

const InstructionSet* find_instruction_set(const std::string& name) {
    for (const InstructionSet& set : sets) {
        if (set.name == name) {
            return &set;
        }
    }
    return nullptr;
}

InstructionSet chosen_instruction_set(Precision precision) {
    const std::string& wanted = wanted_name();
    const InstructionSet* const found = wanted.empty() ? &sets.back() : find_instruction_set(wanted);
    if (!found) {
        throw Error("BMX_MELIUS_ISA is " + wanted + "; this build and this CPU have " + set_names);
    }
    InstructionSet set = *found;
    set.products = precision == Precision::fast ? set.products : precision == Precision::bf16 ? set.bf16 : set.floats;
    return set;
}

const std::string& instruction_set_names() { return set_names; }

}  // namespace bmx
