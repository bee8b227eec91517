// clang-format off
#include <cstddef>
#include <cstdio>
#include <jpeglib.h>  // needs the two above
#include <jerror.h>
// clang-format on

#include <algorithm>
#include <csetjmp>
#include <utility>

#include "exif.h"
#include "files.h"
#include "image_file.h"

namespace classify {
namespace {

constexpr size_t kExif = 0xE1, kStartOfScan = 0xDA, kFill = 0xFF;
constexpr int kMaxScans = 32;  // as in image_headers.py: each takes as long as a whole image

// Returns the orientation in the first EXIF header before the pixels.
int orientation_in(const std::string& content) {
    const Bytes bytes(content);
    for (size_t position = 2; bytes.has(position, 10);) {
        const size_t marker = bytes.number(position + 1, 1, false), length = bytes.number(position + 2, 2, false);
        if (bytes.number(position, 1, false) != 0xFF || marker == kStartOfScan) {
            return 1;
        }
        if (marker == kFill) {
            position++;
            continue;
        }
        if (marker == kExif && content.compare(position + 4, 6, "Exif\0\0", 6) == 0 && length > 8) {
            const size_t begin = position + 10;
            return exif_orientation(content.substr(begin, length - 8));
        }
        position += 2 + length;
    }
    return 1;
}

// A decoder; its errors jump to `failed`, from where libjpeg's frames need no unwinding.
struct Decoder {
    jpeg_error_mgr errors;  // first: libjpeg has a pointer to it
    jpeg_decompress_struct state;
    jpeg_progress_mgr progress;
    std::jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
};

void fail(j_common_ptr state) {
    Decoder* decoder = reinterpret_cast<Decoder*>(state->err);
    state->err->format_message(state, decoder->message);
    std::longjmp(decoder->failed, 1);
}

void warn(j_common_ptr state, int level) {
    if (level < 0 && state->err->msg_code == JWRN_JPEG_EOF) {
        fail(state);  // libjpeg would fill the missing part with gray
    }
}

void count_scans(j_common_ptr state) {
    if (reinterpret_cast<j_decompress_ptr>(state)->input_scan_number > kMaxScans) {
        Decoder* decoder = reinterpret_cast<Decoder*>(state->err);
        std::snprintf(decoder->message, sizeof decoder->message, "it has more than %d scans", kMaxScans);
        std::longjmp(decoder->failed, 1);
    }
}

J_COLOR_SPACE result_space(const jpeg_decompress_struct& state, int64_t channels) {
    if (state.num_components == 4) {
        return JCS_CMYK;
    }
    return state.num_components == 1 || channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
}

// Decodes into `image`, with 1, 3 or 4 channels. Returns whether it succeeded. Has no objects that a jump would leave.
bool decode(Decoder* decoder, const std::string& content, int64_t channels, Image* image) {
    if (setjmp(decoder->failed)) {
        return false;
    }
    jpeg_decompress_struct* state = &decoder->state;
    jpeg_create_decompress(state);
    state->progress = &decoder->progress;
    jpeg_mem_src(state, reinterpret_cast<const unsigned char*>(content.data()), content.size());
    jpeg_read_header(state, TRUE);
    require_size(state->image_height, state->image_width);
    state->out_color_space = result_space(*state, channels);
    jpeg_start_decompress(state);
    *image = Image(state->output_height, state->output_width, state->output_components);
    while (state->output_scanline < state->output_height) {
        JSAMPROW row = image->at(state->output_scanline, 0);
        jpeg_read_scanlines(state, &row, 1);
    }
    jpeg_finish_decompress(state);
    return true;
}

// Converts as OpenCV does, with the inverted values of Adobe's files.
Image rgb_of_cmyk(const Image& inks) {
    Image result(inks.height, inks.width, 3);
    const uint8_t* from = inks.pixels.data();
    for (uint8_t* to = result.pixels.data(); to < result.pixels.data() + result.pixels.size(); to += 3, from += 4) {
        for (int c = 0; c < 3; c++) {
            to[c] = static_cast<uint8_t>(from[3] - ((255 - from[c]) * from[3] >> 8));
        }
    }
    return result;
}

}  // namespace

Image decode_jpeg(const std::string& content, int64_t channels) {
    Decoder decoder = {};
    decoder.state.err = jpeg_std_error(&decoder.errors);
    decoder.errors.error_exit = fail;
    decoder.errors.emit_message = warn;
    decoder.progress.progress_monitor = count_scans;
    Image image;
    {
        struct Destroyed {  // its memory is needed for what follows
            jpeg_decompress_struct* state;
            ~Destroyed() { jpeg_destroy_decompress(state); }
        } destroyed{&decoder.state};
        if (!decode(&decoder, content, channels, &image)) {
            throw Error(decoder.message);
        }
    }
    if (image.channels == 4) {
        image = rgb_of_cmyk(image);
    }
    return turned(std::move(image), orientation_in(content));
}

}  // namespace classify
