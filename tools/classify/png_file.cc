#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <utility>

#include "exif.h"
#include "files.h"
#include "image_file.h"

namespace classify {
namespace {

// Compressed texts that are kept, one fewer: they are not used, and each may take 8 MB.
constexpr png_uint_32 kTexts = 9;

// A decoder; its errors jump to libpng's buffer, from where libpng's frames need no unwinding.
struct Decoder {
    const std::string& content;
    size_t position;
    png_structp state;
    png_infop info;
    char message[200];

    explicit Decoder(const std::string& bytes)
        : content(bytes), position(0), state(nullptr), info(nullptr), message() {}
    ~Decoder() { png_destroy_read_struct(&state, &info, nullptr); }
};

void fail(png_structp state, png_const_charp message) {
    Decoder* decoder = static_cast<Decoder*>(png_get_error_ptr(state));
    std::snprintf(decoder->message, sizeof decoder->message, "%s", message);
    png_longjmp(state, 1);
}

void ignore(png_structp, png_const_charp) {}

void read(png_structp state, png_bytep to, size_t bytes) {
    Decoder* decoder = static_cast<Decoder*>(png_get_io_ptr(state));
    if (bytes > decoder->content.size() - decoder->position) {
        png_error(state, "the file is truncated");
    }
    std::copy_n(decoder->content.data() + decoder->position, bytes, to);
    decoder->position += bytes;
}

// Decodes into `image`, with 1 or 3 channels; `rows` is memory for pointers. Returns whether it succeeded. Has no
// objects that a jump would leave.
bool decode(Decoder* decoder, Image* image, std::vector<png_bytep>* rows) {
    png_structp state = decoder->state;
    png_infop info = decoder->info;
    if (setjmp(png_jmpbuf(state))) {
        return false;
    }
    png_set_chunk_cache_max(state, kTexts);
    png_set_read_fn(state, decoder, read);
    png_read_info(state, info);
    require_size(png_get_image_height(state, info), png_get_image_width(state, info));
    const int kind = png_get_color_type(state, info);
    if (kind == PNG_COLOR_TYPE_PALETTE) {
        png_set_palette_to_rgb(state);
    } else if (kind == PNG_COLOR_TYPE_GRAY) {
        png_set_expand_gray_1_2_4_to_8(state);
    }
    png_set_strip_16(state);
    png_set_strip_alpha(state);
    png_set_interlace_handling(state);
    png_read_update_info(state, info);
    *image = Image(png_get_image_height(state, info), png_get_image_width(state, info), png_get_channels(state, info));
    rows->resize(static_cast<size_t>(image->height));
    for (int64_t row = 0; row < image->height; row++) {
        (*rows)[row] = image->at(row, 0);
    }
    png_read_image(state, rows->data());
    png_read_end(state, info);
    return true;
}

// Returns the orientation in the EXIF header, or 1.
int orientation_in(const Decoder& decoder) {
    png_uint_32 size = 0;
    png_bytep header = nullptr;
    if (!png_get_eXIf_1(decoder.state, decoder.info, &size, &header)) {
        return 1;
    }
    return exif_orientation(std::string(reinterpret_cast<const char*>(header), size));
}

// Converts colours as libpng does for OpenCV: with weights of 15 bits, rounded down.
Image gray(const Image& colours) {
    Image result(colours.height, colours.width, 1);
    const uint8_t* from = colours.pixels.data();
    for (uint8_t& pixel : result.pixels) {
        pixel = static_cast<uint8_t>((from[0] * 9797 + from[1] * 19234 + from[2] * 3737) >> 15);
        from += 3;
    }
    return result;
}

}  // namespace

Image decode_png(const std::string& content, int64_t channels) {
    Decoder decoder(content);
    decoder.state = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, fail, ignore);
    decoder.info = decoder.state ? png_create_info_struct(decoder.state) : nullptr;
    if (!decoder.info) {
        throw Error("out of memory");
    }
    Image image;
    std::vector<png_bytep> rows;
    if (!decode(&decoder, &image, &rows)) {
        throw Error(decoder.message);
    }
    return turned(channels == 1 && image.channels == 3 ? gray(image) : std::move(image), orientation_in(decoder));
}

}  // namespace classify
