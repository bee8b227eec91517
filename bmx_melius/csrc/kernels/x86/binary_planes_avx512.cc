// Binary layers of large maps with AVX-512, VBMI and GFNI: table lookup in planes. Lanes are pixels.
//
// A byte shuffle looks up numbers of six elements, a sextet: the activations of 64 pixels are the indices, and the
// weights of two filters select the table. The lower half of a byte of the table is the number of the first filter, the
// upper half of the second, so that a shuffle counts 768 elements.
//
// As in binary_lookup.h, the tables do not hold the number of differing elements d, which is 0 to 6, but a number e
// that is 0 to 3, so that five of them can be added before a half overflows. With |x| the number of set bits of x and
// odd(x) = |x| % 2,
//     d = |a| + |w| - 2 |a & w| = 6 - 2 e + odd(a) - odd(w),    e = |a & w| - |a| / 2 - (|w| + 1) / 2 + 3,
// where / rounds down. The sum of 6 - odd(w) is a constant of the filter, the sum of odd(a) is one number for each
// pixel.
//
// The sextets of all pixels of the map, row by row, are a plane of bytes. The bytes under a tap of 64 neighbouring
// outputs are 64 neighbouring bytes, also where a row ends; what is computed beyond the last column is not stored.
//
// The tables of all weights would take 43 times the memory of bits. The tables of eight filters and a part of the
// sextets are written in each run when they are first used, which takes about as long as using them for 1.3 vectors of
// pixels. So runs of few pixels, and layers that are not 3x3, have the kernels of binary_avx512.cc.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/binary_store_avx512.h"

namespace bmx {
namespace {

constexpr int kTaps = 9;
constexpr int kSextetBits = 6, kTableBytes = 1 << kSextetBits;
constexpr int kMaxNumber = 3;     // of a sextet
constexpr int kFirstTaps = 5;     // whose sum fits in a half of a byte, as the sum of the other taps does
constexpr int kPartSextets = 9;   // whose sums fit in a byte
constexpr int kMaxSextets = 255;  // of a pixel, whose odd sextets are counted in a byte; results fit in 16 bits
static_assert(kFirstTaps * kMaxNumber <= 15 && (kTaps - kFirstTaps) * kMaxNumber <= 15);
static_assert(kPartSextets * kTaps * kMaxNumber <= 255);
static_assert(kMaxSextets * kSextetBits * kTaps <= 32767, "results are also those of layers that store floats");

constexpr int kVectorPixels = 64;
constexpr int kMinVectors = 8;    // of a run; with fewer, writing tables takes longer than lookup saves
constexpr int kBlockFilters = 8;  // whose tables for a part of the sextets, 20 KB, stay in the first-level cache
constexpr int kPairs = kBlockFilters / 2;
constexpr int kRowFilters = 32;  // whose results are stored at once; 16-bit results fill a cache line
constexpr int kRowBlocks = kRowFilters / kBlockFilters;
static_assert(kMinVectors >= 2, "the first two vectors write the tables");

// vgf2p8affineqb shifts by four bits, with matrices, because there is no shift of bytes.
constexpr int64_t kRightByFour = 0x1020408000000000, kLeftByFour = 0x0000000001020408;

inline int count_sextets(const BinaryConv& conv) { return ceil_div(conv.in_channels / conv.groups, kSextetBits); }
inline int count_parts(const BinaryConv& conv) { return ceil_div(count_sextets(conv), kPartSextets); }

// 64 bits of up to 7 pixels beyond the map are read.
inline bool uses_planes(const BinaryConv& conv) {
    return conv.kernel_h == 3 && conv.kernel_w == 3 && conv.stride_h == 1 && conv.stride_w == 1 &&
           conv.out_channels / conv.groups % kBlockFilters == 0 && count_sextets(conv) <= kMaxSextets &&
           (7 * conv.units() + 2) * sizeof(uint32_t) <= kReadAhead;
}

// --- weights

// For each sextet of weights, the numbers of all sextets of activations.
struct alignas(64) SextetTables {
    uint8_t lower[kTableBytes][kTableBytes] = {}, upper[kTableBytes][kTableBytes] = {};  // in the halves of bytes

    static constexpr int count(int x) { return x == 0 ? 0 : (x & 1) + count(x >> 1); }
    static constexpr int number(int a, int w) { return count(a & w) - count(a) / 2 - (count(w) + 1) / 2 + 3; }
    constexpr SextetTables() {
        for (int w = 0; w < kTableBytes; ++w) {
            for (int a = 0; a < kTableBytes; ++a) {
                lower[w][a] = static_cast<uint8_t>(number(a, w));
                upper[w][a] = static_cast<uint8_t>(number(a, w) << 4);
            }
        }
    }
};
constexpr SextetTables kSextetTables;

// Where the prepared weights begin; before all of them are the weights of binary_avx512.cc, for runs of few pixels.
struct WeightPlaces {
    size_t constants;  // results of the filters where e and odd(a) are 0: int
    size_t sextets;    // [8 filters][sextet][tap][filter]
    size_t end;

    explicit WeightPlaces(const BinaryConv& conv)
        : constants(round_up(binary_kernels_avx512().weights_bytes(conv), 64)),
          sextets(constants + conv.out_channels * sizeof(int)),
          end(sextets + size_t(conv.out_channels) * count_sextets(conv) * kTaps) {}
};

size_t weights_bytes(const BinaryConv& conv) {
    return uses_planes(conv) ? WeightPlaces(conv).end : binary_kernels_avx512().weights_bytes(conv);
}

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    binary_kernels_avx512().prepare_weights(conv, words, prepared);
    if (!uses_planes(conv)) {
        return;
    }
    const WeightPlaces places(conv);
    int* const constants = reinterpret_cast<int*>(static_cast<uint8_t*>(prepared) + places.constants);
    uint8_t* const to = static_cast<uint8_t*>(prepared) + places.sextets;
    const Affine affine = affine_of_differing(conv);
    const int units = conv.group_units(), channels = conv.in_channels / conv.groups, count = count_sextets(conv);
    for (int filter = 0; filter < conv.out_channels; ++filter) {
        int differing = 0;
        for (int i = 0; i < count * kTaps; ++i) {
            const int sextet = i / kTaps, tap = i % kTaps;
            const uint32_t* const of_tap = words + (ptrdiff_t(filter) * kTaps + tap) * units;
            int bits = 0;
            for (int bit = 0; bit < kSextetBits; ++bit) {
                const int channel = sextet * kSextetBits + bit;
                bits |= channel < channels ? (of_tap[channel / 32] >> channel % 32 & 1) << bit : 0;
            }
            const ptrdiff_t block = ptrdiff_t(filter) / kBlockFilters * count * kTaps + i;
            to[block * kBlockFilters + filter % kBlockFilters] = static_cast<uint8_t>(bits);
            differing += kSextetBits - SextetTables::count(bits) % 2;
        }
        constants[filter] = affine.constant - affine.scale * differing;
    }
}

// --- planes

// Transposes 8 x 8 numbers of 64 bits.
inline void transpose_eighths(__m512i (&x)[8]) {
    __m512i y[8];
    unrolled<4>([&](auto i) {
        y[2 * i] = _mm512_unpacklo_epi64(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm512_unpackhi_epi64(x[2 * i], x[2 * i + 1]);
    });
    unrolled<2>([&](auto i) {
        unrolled<2>([&](auto j) {
            x[4 * i + j] = _mm512_shuffle_i64x2(y[4 * i + j], y[4 * i + 2 + j], 0x88);
            x[4 * i + 2 + j] = _mm512_shuffle_i64x2(y[4 * i + j], y[4 * i + 2 + j], 0xdd);
        });
    });
    unrolled<4>([&](auto i) {
        y[i] = _mm512_shuffle_i64x2(x[i], x[4 + i], 0x88);
        y[4 + i] = _mm512_shuffle_i64x2(x[i], x[4 + i], 0xdd);
    });
    unrolled<8>([&](auto i) { x[i] = y[i]; });
}

// Sums of the bytes of vectors, in 16 bits.
class WordSums {
  public:
    void add(__m512i bytes) {
        words_ = _mm512_add_epi16(words_, bytes);
        odd_ = _mm512_add_epi16(odd_, _mm512_srli_epi16(bytes, 8));
    }
    __m512i even() const { return _mm512_sub_epi16(words_, _mm512_slli_epi16(odd_, 8)); }
    __m512i odd() const { return odd_; }

  private:
    __m512i words_ = _mm512_setzero_si512();  // even() + 256 odd(), modulo 65536
    __m512i odd_ = _mm512_setzero_si512();
};

// Sizes of the planes of a run. A row of them ends with the row of the map or after the last window, whichever comes
// first.
class Planes {
  public:
    explicit Planes(const BinaryConvRun& run)
        : Planes(*run.conv, run.rows, run.columns, run.row_bytes / run.pixel_bytes) {}
    Planes(const BinaryConv& conv, int rows, int columns, ptrdiff_t map_columns)
        : conv_(conv),
          map_rows_(rows + 2 * conv.dilation_h),
          pitch_(map_columns < columns + 2 * conv.dilation_w ? map_columns : columns + 2 * conv.dilation_w),
          vectors_(ceil_div((rows - 1) * pitch_ + columns, ptrdiff_t(kVectorPixels))) {}

    ptrdiff_t vectors() const { return vectors_; }  // of outputs
    ptrdiff_t pitch() const { return pitch_; }
    ptrdiff_t row_step() const { return conv_.dilation_h * pitch_; }  // of taps
    ptrdiff_t column_step() const { return conv_.dilation_w; }
    // The last line also takes what fill_row stores beyond the last row. The number of lines is odd, so that
    // neighbouring planes do not compete for the same sets.
    ptrdiff_t plane_bytes() const {
        const ptrdiff_t read = vectors_ * kVectorPixels + 2 * (row_step() + column_step());
        return ceil_div(read, ptrdiff_t(128)) * 128 + 64;
    }
    // Of all planes, and of the plane with the numbers of odd sextets.
    size_t bytes() const { return (count_sextets(conv_) + 1) * plane_bytes(); }

    // `input`: the first pixel, at the first unit of the group.
    void fill(const BinaryConvRun& run, const uint8_t* input, uint8_t* planes) const {
        const ptrdiff_t columns = run.columns + 2 * column_step();
        if (pitch_ * run.pixel_bytes == run.row_bytes) {  // the rows are contiguous
            fill_row(input, run.pixel_bytes, (map_rows_ - 1) * pitch_ + columns, planes);
            return;
        }
        for (ptrdiff_t row = 0; row < map_rows_; ++row) {
            fill_row(input + row * run.row_bytes, run.pixel_bytes, columns, planes + row * pitch_);
        }
    }

    // Adds up the numbers of odd sextets under the windows: 32 sums for the even pixels of each vector, then 32 for the
    // odd ones.
    void add_odd(const uint8_t* planes, uint16_t* sums) const {
        const uint8_t* const odd = planes + count_sextets(conv_) * plane_bytes();
        for (ptrdiff_t i = 0; i < vectors_ * kVectorPixels; i += kVectorPixels) {
            WordSums sum;
            for (int tap = 0; tap < kTaps; ++tap) {
                sum.add(_mm512_loadu_si512(odd + i + tap / 3 * row_step() + tap % 3 * column_step()));
            }
            _mm512_store_si512(sums + i, sum.even());
            _mm512_store_si512(sums + i + 32, sum.odd());
        }
    }

  private:
    // Writes the sextets of a row of pixels, up to 63 bytes too many, which are overwritten by the next row.
    void fill_row(const uint8_t* input, ptrdiff_t pixel_bytes, ptrdiff_t pixels, uint8_t* planes) const {
        constexpr int kMask = kTableBytes - 1;
        const __m512i fields =
            _mm512_set1_epi64(0x2a241e18120c0600);  // where eight sextets of 64 bits begin: 0, 6, ...
        const __m512i by_sextet = order();
        const __m512i parity = _mm512_set1_epi64(int64_t(kMask) << 56);  // matrix of the sum of six bits
        const int count = count_sextets(conv_), rest = conv_.in_channels / conv_.groups % kSextetBits;
        // The last sextet may reach into the next group or pixel. All bytes keep two bits of the next sextet, which
        // lookups and `parity` ignore.
        const __m512i last_mask = _mm512_set1_epi8(static_cast<char>(rest ? (1 << rest) - 1 : kMask));
        const ptrdiff_t step = plane_bytes();
        for (ptrdiff_t pixel = 0; pixel < pixels; pixel += kVectorPixels) {
            __m512i odd = _mm512_setzero_si512();
            for (int sextet = 0; sextet < count; sextet += 8) {
                __m512i x[8];
                for (int i = 0; i < 8; ++i) {
                    const ptrdiff_t first = pixel + 8 * i < pixels ? pixel + 8 * i : 0;  // of pixels beyond, any
                    const __m512i eight =
                        load_eight(input + first * pixel_bytes + sextet / 8 * kSextetBits, pixel_bytes);
                    x[i] = _mm512_permutexvar_epi8(by_sextet, _mm512_multishift_epi64_epi8(fields, eight));
                }
                transpose_eighths(x);
                for (int i = 0; i < 8 && sextet + i < count; ++i) {
                    if (sextet + i == count - 1) {
                        x[i] = _mm512_and_si512(x[i], last_mask);
                    }
                    _mm512_storeu_si512(planes + (sextet + i) * step + pixel, x[i]);
                    odd = _mm512_add_epi8(odd, _mm512_gf2p8affine_epi64_epi8(x[i], parity, 0));
                }
            }
            _mm512_storeu_si512(planes + count * step + pixel, odd);
        }
    }

    // Byte j of 64-bit number i moves to byte i of number j.
    static __m512i order() {
        alignas(64) uint8_t bytes[64];
        for (int i = 0; i < 64; ++i) {
            bytes[i] = static_cast<uint8_t>(i % 8 * 8 + i / 8);
        }
        return _mm512_load_si512(bytes);
    }

    // 64 bits of each of eight pixels.
    static __m512i load_eight(const uint8_t* from, ptrdiff_t pixel_bytes) {
        const auto at = [&](int pixel) {
            int64_t bits;
            std::memcpy(&bits, from + pixel * pixel_bytes, sizeof(bits));
            return bits;
        };
        const auto two = [&](int pixel) { return _mm_insert_epi64(_mm_cvtsi64_si128(at(pixel)), at(pixel + 1), 1); };
        const auto four = [&](int pixel) {
            return _mm256_inserti128_si256(_mm256_castsi128_si256(two(pixel)), two(pixel + 2), 1);
        };
        return _mm512_inserti64x4(_mm512_castsi256_si512(four(0)), four(4), 1);
    }

    const BinaryConv& conv_;
    const ptrdiff_t map_rows_, pitch_, vectors_;
};

// --- sums

// Sextets of eight filters, and their tables.
struct Part {
    int sextets;
    const uint8_t* weights;  // [sextet][tap][filter]
    uint8_t* tables;         // [sextet][tap][pair]
    ptrdiff_t plane_bytes, row_step, column_step;
};

// Sums for 64 pixels of four pairs of filters: of the bytes of tables, and of their upper halves.
struct FilterPairSums {
    __m512i bytes[kPairs], upper[kPairs];
};

// Sums of a part of at least one sextet for a vector of pixels. `pixels`: under the first tap, in the first plane.
inline void add_sextets(const Part& part, const uint8_t* pixels, FilterPairSums* sums) {
    const __m512i right_by_four = _mm512_set1_epi64(kRightByFour);
    const uint8_t* tables = part.tables;
    __m512i bytes[kPairs], upper[kPairs], sum[kPairs];
    unrolled<kPairs>([&](auto p) { bytes[p] = upper[p] = _mm512_setzero_si512(); });
    for (int left = part.sextets; left > 0; --left, pixels += part.plane_bytes) {
        unrolled<kTaps>([&](auto tap) {
            const __m512i a = _mm512_loadu_si512(pixels + tap / 3 * part.row_step + tap % 3 * part.column_step);
            unrolled<kPairs>([&](auto p) {
                const __m512i numbers = _mm512_permutexvar_epi8(a, _mm512_load_si512(tables + p * kTableBytes));
                sum[p] = tap == 0 || tap == kFirstTaps ? numbers : _mm512_add_epi8(sum[p], numbers);
                if (tap == kFirstTaps - 1 || tap == kTaps - 1) {
                    bytes[p] = _mm512_add_epi8(bytes[p], sum[p]);
                    upper[p] = _mm512_add_epi8(upper[p], _mm512_gf2p8affine_epi64_epi8(sum[p], right_by_four, 0));
                }
            });
            tables += kPairs * kTableBytes;
        });
    }
    unrolled<kPairs>([&](auto p) { sums->bytes[p] = bytes[p], sums->upper[p] = upper[p]; });
}

// clang-format off: one instruction a line
#define BMX_V(n) "%%zmm" #n
#define BMX_PIXELS(row, at)                             \
    "vmovdqu64 (%[" #row "]" at "), " BMX_V(24) "\n"    \
    "vmovdqu64 64(%[" #row "]" at "), " BMX_V(25) "\n"
#define BMX_READ_TABLE(table) "vmovdqa64 64*(" #table ")(%[tables]), " BMX_V(26) "\n"
#define BMX_WRITE_TABLE(table)                                                      \
    "movzbl 2*(" #table ")(%[weights]), %k[first]\n"                                \
    "movzbl 2*(" #table ")+1(%[weights]), %k[second]\n"                             \
    "shl $6, %k[first]\n"                                                           \
    "shl $6, %k[second]\n"                                                          \
    "vmovdqa64 (%[lower],%[first]), " BMX_V(26) "\n"                                \
    "vporq 64*64(%[lower],%[second]), " BMX_V(26) ", " BMX_V(26) "\n"               \
    "vmovdqa64 " BMX_V(26) ", 64*(" #table ")(%[tables])\n"
#define BMX_LOOK_UP(Table, table, numbers0, numbers1)                  \
    Table(table)                                                       \
    "vpermb " BMX_V(26) ", " BMX_V(24) ", " BMX_V(numbers0) "\n"       \
    "vpermb " BMX_V(26) ", " BMX_V(25) ", " BMX_V(numbers1) "\n"
#define BMX_SUM(numbers0, numbers1, sum0, sum1)                        \
    "vpaddb " BMX_V(numbers0) ", " BMX_V(sum0) ", " BMX_V(sum0) "\n"   \
    "vpaddb " BMX_V(numbers1) ", " BMX_V(sum1) ", " BMX_V(sum1) "\n"
#define BMX_FIRST_TAP(Table, tap, row, at)                                     \
    BMX_PIXELS(row, at)                                                        \
    BMX_LOOK_UP(Table, 4*tap+0, 0, 4) BMX_LOOK_UP(Table, 4*tap+1, 1, 5)        \
    BMX_LOOK_UP(Table, 4*tap+2, 2, 6) BMX_LOOK_UP(Table, 4*tap+3, 3, 7)
#define BMX_TAP(Table, tap, row, at)                                           \
    BMX_PIXELS(row, at)                                                        \
    BMX_LOOK_UP(Table, 4*tap+0, 27, 28) BMX_LOOK_UP(Table, 4*tap+1, 29, 30)    \
    BMX_SUM(27, 28, 0, 4) BMX_LOOK_UP(Table, 4*tap+2, 27, 28)                  \
    BMX_SUM(29, 30, 1, 5) BMX_LOOK_UP(Table, 4*tap+3, 29, 30)                  \
    BMX_SUM(27, 28, 2, 6) BMX_SUM(29, 30, 3, 7)
#define BMX_ADD(sum, bytes, upper)                                             \
    "vpaddb " BMX_V(sum) ", " BMX_V(bytes) ", " BMX_V(bytes) "\n"              \
    "vgf2p8affineqb $0, " BMX_V(31) ", " BMX_V(sum) ", " BMX_V(sum) "\n"       \
    "vpaddb " BMX_V(sum) ", " BMX_V(upper) ", " BMX_V(upper) "\n"
#define BMX_ADD_SUMS                                                           \
    BMX_ADD(0, 8, 12) BMX_ADD(1, 9, 13) BMX_ADD(2, 10, 14) BMX_ADD(3, 11, 15)  \
    BMX_ADD(4, 16, 20) BMX_ADD(5, 17, 21) BMX_ADD(6, 18, 22) BMX_ADD(7, 19, 23)
#define BMX_CLEAR(n) "vpxord " BMX_V(n) ", " BMX_V(n) ", " BMX_V(n) "\n"
#define BMX_STORE(n) "vmovdqa64 " BMX_V(n) ", 64*(" #n " - 8)(%[sums])\n"
#define BMX_ALL(Operation)                                                                                        \
    Operation(8) Operation(9) Operation(10) Operation(11) Operation(12) Operation(13) Operation(14) Operation(15) \
    Operation(16) Operation(17) Operation(18) Operation(19) Operation(20) Operation(21) Operation(22) Operation(23)

#define BMX_ADD_SEXTETS(Table)                                                                                   \
    asm volatile(                                                                                                \
        "vpbroadcastq %[matrix], " BMX_V(31) "\n"                                                                \
        BMX_ALL(BMX_CLEAR)                                                                                       \
        "1:\n"                                                                                                   \
        BMX_FIRST_TAP(Table, 0, row0, "") BMX_TAP(Table, 1, row0, ",%[step]") BMX_TAP(Table, 2, row0, ",%[step],2") \
        BMX_TAP(Table, 3, row1, "") BMX_TAP(Table, 4, row1, ",%[step]")                                          \
        BMX_ADD_SUMS                                                                                             \
        BMX_FIRST_TAP(Table, 5, row1, ",%[step],2")                                                              \
        BMX_TAP(Table, 6, row2, "") BMX_TAP(Table, 7, row2, ",%[step]") BMX_TAP(Table, 8, row2, ",%[step],2")    \
        BMX_ADD_SUMS                                                                                             \
        "add %[plane_bytes], %[row0]\n"                                                                          \
        "add %[plane_bytes], %[row1]\n"                                                                          \
        "add %[plane_bytes], %[row2]\n"                                                                          \
        "add $64*9*4, %[tables]\n"                                                                               \
        "add $8*9, %[weights]\n"                                                                                 \
        "dec %[left]\n"                                                                                          \
        "jne 1b\n"                                                                                               \
        BMX_ALL(BMX_STORE)                                                                                       \
        : [row0] "+&r"(row0), [row1] "+&r"(row1), [row2] "+&r"(row2), [tables] "+&r"(tables),                    \
          [weights] "+&r"(weights), [left] "+&r"(left), [first] "=&r"(first), [second] "=&r"(second)             \
        : [step] "r"(part.column_step), [plane_bytes] "r"(part.plane_bytes), [sums] "r"(sums),                   \
          [lower] "r"(kSextetTables.lower), [matrix] "m"(kRightByFour)                                           \
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",        \
          "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",     \
          "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31")

// The same for two vectors. kWrites: the tables are written, too. That takes loads and stores, which sums leave idle, so
// that it takes half the time of a loop of its own. In assembly language, because compilers keep some of the 24 sums in
// memory. zmm0 to 7: sums of up to five taps, of the pairs of the first vector and of the second one; 8 to 23: sums of
// bytes and of upper halves of the first vector, then of the second one; 24 and 25: pixels; 26: a table; 27 to 30:
// numbers; 31: the matrix.
template <bool kWrites>
inline void add_sextets_of_two(const Part& part, const uint8_t* pixels, FilterPairSums* sums) {
    const uint8_t *row0 = pixels, *row1 = row0 + part.row_step, *row2 = row1 + part.row_step;
    const uint8_t *tables = part.tables, *weights = part.weights;
    ptrdiff_t left = part.sextets;
    uint64_t first, second;  // weights of a pair, then offsets
    if constexpr (kWrites) {
        BMX_ADD_SEXTETS(BMX_WRITE_TABLE);
    } else {
        BMX_ADD_SEXTETS(BMX_READ_TABLE);
    }
}
// clang-format on
#undef BMX_V
#undef BMX_PIXELS
#undef BMX_READ_TABLE
#undef BMX_WRITE_TABLE
#undef BMX_LOOK_UP
#undef BMX_SUM
#undef BMX_FIRST_TAP
#undef BMX_TAP
#undef BMX_ADD
#undef BMX_ADD_SUMS
#undef BMX_CLEAR
#undef BMX_STORE
#undef BMX_ALL
#undef BMX_ADD_SEXTETS

// --- results

// Transposes 8 x 8 numbers of 16 bits in each quarter of the vectors.
inline void transpose_words(__m512i (&x)[8]) {
    __m512i y[8];
    unrolled<4>([&](auto i) {
        y[2 * i] = _mm512_unpacklo_epi16(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm512_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
    });
    unrolled<2>([&](auto i) {
        unrolled<2>([&](auto j) {
            x[4 * i + 2 * j] = _mm512_unpacklo_epi32(y[4 * i + j], y[4 * i + 2 + j]);
            x[4 * i + 2 * j + 1] = _mm512_unpackhi_epi32(y[4 * i + j], y[4 * i + 2 + j]);
        });
    });
    unrolled<4>([&](auto i) {
        y[2 * i] = _mm512_unpacklo_epi64(x[i], x[4 + i]);
        y[2 * i + 1] = _mm512_unpackhi_epi64(x[i], x[4 + i]);
    });
    unrolled<8>([&](auto i) { x[i] = y[i]; });
}

// Transposes 4 x 4 quarters.
inline void transpose_quarters(__m512i (&x)[4]) {
    const __m512i a = _mm512_shuffle_i64x2(x[0], x[1], 0x44), b = _mm512_shuffle_i64x2(x[2], x[3], 0x44);
    const __m512i c = _mm512_shuffle_i64x2(x[0], x[1], 0xee), d = _mm512_shuffle_i64x2(x[2], x[3], 0xee);
    x[0] = _mm512_shuffle_i64x2(a, b, 0x88);
    x[1] = _mm512_shuffle_i64x2(a, b, 0xdd);
    x[2] = _mm512_shuffle_i64x2(c, d, 0x88);
    x[3] = _mm512_shuffle_i64x2(c, d, 0xdd);
}

// Results of eight filters for 64 pixels. Quarter q of vector [h][i] holds the results of pixel 16 q + 2 i + h.
struct BlockResults {
    __m512i of[2][8];
};

// Sets the results from the sums of the parts, which are `step` apart. Sums of bytes are the sums of the lower halves,
// which fit in a byte, plus 16 times the sums of the upper halves, modulo 256. `odd`: numbers of odd sextets under the
// windows, of even and of odd pixels.
inline void set_results(const FilterPairSums* sums, int parts, ptrdiff_t step, const int* constants,
                        const uint16_t* odd, int scale, BlockResults& results) {
    const __m512i left_by_four = _mm512_set1_epi64(kLeftByFour);
    WordSums words[kBlockFilters];
    for (int part = 0; part < parts; ++part, sums += step) {
        unrolled<kPairs>([&](auto p) {
            const __m512i second = sums->upper[p];
            words[2 * p].add(_mm512_sub_epi8(sums->bytes[p], _mm512_gf2p8affine_epi64_epi8(second, left_by_four, 0)));
            words[2 * p + 1].add(second);
        });
    }
    const __m128i log_scale = _mm_cvtsi32_si128(scale - 1), log_twice = _mm_cvtsi32_si128(scale);  // scales are 1 and 2
    unrolled<2>([&](auto half) {
        const __m512i of_pixels = _mm512_sll_epi16(_mm512_load_si512(odd + 32 * half), log_scale);
        __m512i numbers[kBlockFilters];
        unrolled<kBlockFilters>([&](auto f) {
            const __m512i of_filter = _mm512_set1_epi16(static_cast<int16_t>(constants[f]));
            numbers[f] = _mm512_add_epi16(_mm512_sll_epi16(half == 0 ? words[f].even() : words[f].odd(), log_twice),
                                          _mm512_sub_epi16(of_filter, of_pixels));
        });
        transpose_words(numbers);
        unrolled<8>([&](auto i) { _mm512_store_si512(&results.of[half][i], numbers[i]); });
    });
}

// The same for floats.
template <bool kAll>
inline void store_words(__m512i results, float* output, const float* addend, __mmask32 lanes) {
    store_pair(_mm512_cvtepi16_epi32(_mm512_castsi512_si256(results)),
               _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(results, 1)), output, addend, lanes);
}

// Stores the results of up to 32 filters from `begin` on for 64 pixels. Their blocks are `step` apart. `outputs`:
// places of the pixels in the output, -1 for those that are not part of it. Blocks that the last row lacks are read and
// masked.
template <bool kAll, typename T>
inline void store_rows(const BinaryConvRun& run, const BlockResults* results, ptrdiff_t step, const ptrdiff_t* outputs,
                       int begin, __mmask32 lanes) {
    T* const output = static_cast<T*>(run.output) + begin;
    const T* const addend = run.addend ? static_cast<const T*>(run.addend) + begin : nullptr;
    for (int i = 0; i < 16; ++i) {
        __m512i x[kRowBlocks];
        unrolled<kRowBlocks>([&](auto b) { x[b] = _mm512_load_si512(&results[b * step].of[i % 2][i / 2]); });
        transpose_quarters(x);
        unrolled<4>([&](auto quarter) {
            const ptrdiff_t place = outputs[16 * quarter + i];
            if (place >= 0) {
                store_words<kAll>(x[quarter], output + place, addend ? addend + place : nullptr, lanes);
            }
        });
    }
}

// --- runs

// The working memory of a run. All arrays are multiples of 64 bytes, so that each is aligned.
struct Scratch {
    uint8_t *planes, *tables;
    FilterPairSums* sums;   // [part][vector]
    BlockResults* results;  // [8 filters][vector]
    ptrdiff_t* outputs;     // of the pixels in the output
    uint16_t* odd;          // numbers of odd sextets under the windows
    size_t bytes = 0;       // of all

    // `memory` may be nullptr, for the number of bytes.
    Scratch(const BinaryConv& conv, const Planes& map, void* memory) {
        const auto take = [&](auto*& array, size_t count) {
            array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(uintptr_t(memory) + bytes);
            bytes += count * sizeof(*array);
        };
        take(planes, map.bytes());
        take(tables, kPartSextets * kTaps * kPairs * kTableBytes);
        take(sums, count_parts(conv) * map.vectors());
        take(results, kRowBlocks * map.vectors());
        take(outputs, kVectorPixels * map.vectors());
        take(odd, kVectorPixels * map.vectors());
    }
};

size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) {
    const size_t of_words = binary_kernels_avx512().scratch_bytes(conv, rows, columns);
    if (!uses_planes(conv)) {
        return of_words;
    }
    const Planes map(conv, rows, columns, columns + 2 * conv.dilation_w);  // the longest rows of any run
    const size_t of_planes = map.vectors() < kMinVectors ? 0 : Scratch(conv, map, nullptr).bytes;
    return of_planes > of_words ? of_planes : of_words;
}

void find_outputs(const BinaryConvRun& run, const Planes& map, ptrdiff_t* outputs) {
    for (ptrdiff_t pixel = 0; pixel < map.vectors() * kVectorPixels; ++pixel) {
        outputs[pixel] = -1;
    }
    for (int row = 0; row < run.rows; ++row) {
        for (int column = 0; column < run.columns; ++column) {
            outputs[row * map.pitch() + column] = row * run.output_row + column * run.output_pixel;
        }
    }
}

// Sets the sums of eight filters for all pixels.
void add_parts(const BinaryConv& conv, const Planes& map, const uint8_t* weights, const Scratch& scratch) {
    const int sextets = count_sextets(conv), parts = count_parts(conv);
    FilterPairSums* sums = scratch.sums;
    for (int i = 0; i < parts; ++i) {  // of nearly equal sizes
        const int begin = sextets * i / parts, count = sextets * (i + 1) / parts - begin;
        const uint8_t* const of_part = weights + begin * kTaps * kBlockFilters;
        const Part part = {count, of_part, scratch.tables, map.plane_bytes(), map.row_step(), map.column_step()};
        const uint8_t* pixels = scratch.planes + begin * map.plane_bytes();
        add_sextets_of_two<true>(part, pixels, sums);
        ptrdiff_t v = 2;
        for (; v + 2 <= map.vectors(); v += 2) {
            add_sextets_of_two<false>(part, pixels + v * kVectorPixels, sums + v);
        }
        if (v < map.vectors()) {
            add_sextets(part, pixels + v * kVectorPixels, sums + v);
        }
        sums += map.vectors();
    }
}

template <typename T>
void convolve_planes(const BinaryConvRun& run, const Planes& map) {
    const BinaryConv& conv = *run.conv;
    const WeightPlaces places(conv);
    const auto* const weights = static_cast<const uint8_t*>(run.weights);
    const int* const constants = reinterpret_cast<const int*>(weights + places.constants);
    const Scratch scratch(conv, map, run.scratch);
    const int group_filters = conv.out_channels / conv.groups, scale = affine_of_differing(conv).scale;
    const ptrdiff_t vectors = map.vectors();
    find_outputs(run, map, scratch.outputs);
    int filled = -1;
    for (int begin = run.filter_begin, end; begin < run.filter_end; begin = end) {
        const int group = begin / group_filters;
        if (group != filled) {
            map.fill(run, run.input + group * conv.group_units() * sizeof(uint32_t), scratch.planes);
            map.add_odd(scratch.planes, scratch.odd);
            filled = group;
        }
        end = min(begin + kRowFilters, min((group + 1) * group_filters, run.filter_end));
        BlockResults* results = scratch.results;
        for (int filter = begin; filter < end; filter += kBlockFilters) {
            add_parts(conv, map, weights + places.sextets + size_t(filter) * count_sextets(conv) * kTaps, scratch);
            for (ptrdiff_t v = 0; v < vectors; ++v) {
                set_results(scratch.sums + v, count_parts(conv), vectors, constants + filter,
                            scratch.odd + v * kVectorPixels, scale, *results++);
            }
        }
        const __mmask32 lanes = ~__mmask32(0) >> (kRowFilters - (end - begin));
        const auto store_all = ~lanes ? store_rows<false, T> : store_rows<true, T>;
        for (ptrdiff_t v = 0; v < vectors; ++v) {
            store_all(run, scratch.results + v, vectors, scratch.outputs + v * kVectorPixels, begin, lanes);
        }
    }
}

void convolve(const BinaryConvRun& run) {
    if (uses_planes(*run.conv)) {
        const Planes map(run);
        if (map.vectors() >= kMinVectors) {
            return run.type == DataType::f32 ? convolve_planes<float>(run, map) : convolve_planes<int16_t>(run, map);
        }
    }
    binary_kernels_avx512().convolve(run);
}

}  // namespace

const BinaryKernels& binary_kernels_avx512_planes() {
    static const BinaryKernels kernels = [] {
        BinaryKernels table = binary_kernels_avx512();
        table.name = "avx512, planes";
        table.band_pixels = 3200;  // a map of 56 x 56 at once
        table.weights_bytes = weights_bytes;
        table.prepare_weights = prepare_weights;
        table.scratch_bytes = scratch_bytes;
        table.convolve = convolve;
        return table;
    }();
    return kernels;
}

}  // namespace bmx
