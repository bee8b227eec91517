/* Classifies an image from C: a binary PPM or PGM file in, a class a line out, with its number, probability and name.
 *
 *   gcc classify_image.c $(pkg-config --cflags --libs bmx_melius) -o classify_image
 *   ./classify_image PREFIX photo.ppm
 *
 * PREFIX belongs to a packed network, whose files have the preprocessing of images and the names of the classes. Other
 * formats need a decoder, such as libjpeg: the library takes the pixels. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "bmx_melius.h"

enum { TOP = 5, MAX_PIXELS = 1 << 27 /* of bmx_classifier_classify */ };

struct image {
    int width, height, channels;
    uint8_t* pixels; /* height x width x channels */
};

static int fail(const char* message) {
    fprintf(stderr, "error: %s\n", message);
    return 1;
}

/* Reads a number of the header, after whitespace and comments (from # to the end of the line). Returns whether there is
 * one, which whitespace or a comment ends. */
static int read_number(FILE* file, int* number) {
    int letter = fgetc(file);
    while (isspace(letter) || letter == '#') {
        if (letter == '#') {
            while (letter != '\n' && letter != EOF) {
                letter = fgetc(file);
            }
        } else {
            letter = fgetc(file);
        }
    }
    ungetc(letter, file);
    if (fscanf(file, "%9d", number) != 1) {
        return 0;
    }
    letter = fgetc(file);
    ungetc(letter, file);
    return isspace(letter) || letter == '#';
}

/* Reads a file with the header "P6 WIDTH HEIGHT 255" (RGB) or "P5 ..." (gray). Returns 0, or 1 with a message. */
static int read_image(const char* path, struct image* image) {
    FILE* file = fopen(path, "rb");
    char kind = 0;
    int most = 0;
    if (!file) {
        return fail("the image cannot be opened");
    }
    const int found = fscanf(file, "P%c", &kind) == 1 && (kind == '5' || kind == '6') &&
                      read_number(file, &image->width) && read_number(file, &image->height) &&
                      read_number(file, &most) && isspace(fgetc(file));
    if (!found || most != 255 || image->width < 1 || image->height < 1) {
        fclose(file);
        return fail("the image is not a binary PPM or PGM file of 8 bits");
    }
    if (image->width > MAX_PIXELS / image->height) {
        fclose(file);
        return fail("the image is too large");
    }
    image->channels = kind == '6' ? 3 : 1;
    const size_t bytes = (size_t)image->height * (size_t)image->width * (size_t)image->channels;
    image->pixels = malloc(bytes);
    const int complete = image->pixels && fread(image->pixels, 1, bytes, file) == bytes;
    fclose(file);
    return complete ? 0 : fail("the image is truncated, or too large for the memory");
}

/* Prints the classes of an image. Returns 0, or 1 with a message. */
static int classify(const bmx_classifier* classifier, const struct image* image) {
    size_t numbers[TOP];
    double probabilities[TOP];
    const size_t found = bmx_classifier_classify(classifier, image->pixels, image->height, image->width,
                                                 image->channels, 0, TOP, numbers, probabilities);
    if (!found) {
        return fail(bmx_last_error());
    }
    for (size_t i = 0; i < found; i++) {
        const char* name = bmx_classifier_class_name(classifier, numbers[i]);
        printf("%zu %.17g %s\n", numbers[i], probabilities[i], name ? name : "");
    }
    return 0;
}

int main(int argc, char** argv) {
    if (argc != 3) {
        return fail("usage: classify_image PREFIX photo.ppm");
    }
    bmx_classifier* classifier = bmx_classifier_load(argv[1], BMX_EXACT);
    if (!classifier) {
        return fail(bmx_last_error());
    }
    struct image image = {0, 0, 0, NULL};
    int status = read_image(argv[2], &image);
    if (!status) {
        status = classify(classifier, &image);
    }
    free(image.pixels);
    bmx_classifier_destroy(classifier);
    return status;
}
