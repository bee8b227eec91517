"""What can be told of an encoded image without decoding it."""

JPEG_START, JPEG_END = b'\xff\xd8\xff', b'\xff\xd9'
PNG_START, PNG_END = b'\x89PNG\r\n\x1a\n', b'IEND\xaeB`\x82'
TAIL = 64  # bytes: some encoders append a few after the end marker


def has_known_start(start):
    """Whether the first 8 bytes are those of a JPEG or PNG file. Other formats that OpenCV decodes are rare in training data."""
    return start.startswith((JPEG_START, PNG_START))


def is_cut_off(start, tail):
    """Whether a JPEG or PNG file, of which the first 8 and the last `TAIL` bytes are given, lacks its end marker.

    Decoders fill the missing part with gray and do not complain.
    """
    if start.startswith(JPEG_START):
        return JPEG_END not in tail
    return start.startswith(PNG_START) and PNG_END not in tail
