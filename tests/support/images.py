"""Small training images for tests, as folders and as record files packed by MXNet's im2rec."""

import contextlib
import io
import os
import runpy
import struct
import unittest.mock

import cv2
import mxnet as mx
import numpy as np
import PIL.Image

CLASSES, TRAIN, VALIDATION = 3, 10, 4  # images of each class


def make_folders(root):
    """Write ROOT/{train,val}/CLASS/*.jpg: noise with one bright colour channel, which determines the class."""
    random = np.random.RandomState(0)
    for part, number in (('train', TRAIN), ('val', VALIDATION)):
        for label in range(CLASSES):
            os.makedirs(f'{root}/{part}/class{label}')
            for index in range(number):
                image = cv2.resize(random.randint(0, 256, (4, 5, 3)).astype(np.uint8), (60 + index, 50))
                image[..., label] = 255
                cv2.imwrite(f'{root}/{part}/class{label}/{index}.jpg', image)


def make_large_photos(root):
    """Write ROOT/{train,val}/CLASS/*.jpg: textures with a short side above 480 pixels, one of them rotated by its EXIF header."""
    random = np.random.RandomState(0)
    training = [('train', label, 500, 500) for label in range(2)]
    validation = [('val', 0, 600, 801), ('val', 0, 990, 530), ('val', 1, 700, 500), ('val', 1, 501, 640)]
    for number, (part, label, height, width) in enumerate([*training, *validation]):
        scales = (random.randint(0, 256, (height // scale, width // scale, 3)).astype(np.uint8) for scale in (1, 3, 20, 100))
        image = np.mean([cv2.resize(scale, (width, height)) for scale in scales], axis=0)
        os.makedirs(f'{root}/{part}/class{label}', exist_ok=True)
        content = encode(image.astype(np.uint8), '.jpg')
        with open(f'{root}/{part}/class{label}/{number}.jpg', 'wb') as file:
            file.write(turned(content) if number == 5 else content)


def turned(jpeg):
    """Return a JPEG file (bytes) with an EXIF header that rotates it by 90 degrees."""
    exif = b'Exif\0\0' + struct.pack('<2sHIHHHIHHI', b'II', 42, 8, 1, 0x112, 3, 1, 6, 0, 0)
    return jpeg[:2] + struct.pack('>HH', 0xFFE1, len(exif) + 2) + exif + jpeg[2:]


def pack_folders(root):
    """Pack the folders into ROOT/rec/{train,val}.{lst,rec,idx} by MXNet's im2rec."""
    os.makedirs(f'{root}/rec')
    for part, number in (('train', TRAIN), ('val', VALIDATION)):
        places = [(label, index) for label in range(CLASSES) for index in range(number)]
        lines = [f'{key}\t{label}\t{part}/class{label}/{index}.jpg\n' for key, (label, index) in enumerate(places)]
        pack_list(root, f'{root}/rec/{part}', lines)


def pack_list(root, prefix, lines):
    """Pack images in `root`, given as lines of a list, into PREFIX.{lst,rec,idx} by MXNet's im2rec."""
    with open(f'{prefix}.lst', 'w') as file:
        file.writelines(lines)
    arguments = ['im2rec', str(prefix), str(root), '--pass-through']
    with unittest.mock.patch('sys.argv', arguments), contextlib.redirect_stdout(io.StringIO()):
        runpy.run_module('mxnet.tools.im2rec', run_name='__main__')['record'].close()


def write_records(prefix, images, labels=None):
    """Write encoded images to PREFIX.rec and PREFIX.idx; the default labels are their numbers."""
    file = mx.recordio.MXIndexedRecordIO(f'{prefix}.idx', f'{prefix}.rec', 'w')
    for number, image in enumerate(images):
        label = number if labels is None else labels[number]
        file.write_idx(number, mx.recordio.pack(mx.recordio.IRHeader(0, label, number, 0), image))
    file.close()


def encode(image, suffix='.png'):
    """Encode RGB pixels as an image file (bytes)."""
    return cv2.imencode(suffix, image[..., ::-1])[1].tobytes()


def stored(pixels, form, mode=None, **options):
    """Encode pixels as an image file (bytes) by Pillow, in one of its formats and modes."""
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def record_span(prefix, number):
    """Return (offset, length) of the image of a record in PREFIX.rec, after its frame and label header."""
    with open(f'{prefix}.idx') as index:
        offset = int(index.read().splitlines()[number].split('\t')[1])
    with open(f'{prefix}.rec', 'rb') as file:
        file.seek(offset + 4)
        return offset + 32, struct.unpack('<I', file.read(4))[0] - 24


def overwrite(path, offset, content):
    """Overwrite bytes at an offset of a file."""
    with open(path, 'r+b') as file:
        file.seek(offset)
        file.write(content)


def damage_record(prefix, number):
    """Overwrite the image of a record in PREFIX.rec behind its first bytes; return its place there and what was there."""
    offset, length = record_span(prefix, number)
    with open(f'{prefix}.rec', 'rb') as file:
        file.seek(offset + 8)
        before = file.read(length - 10)
    overwrite(f'{prefix}.rec', offset + 8, b'\0' * (length - 10))
    return offset + 8, before


def damage_file(path):
    """Overwrite an image file except its first and last bytes; return the place and what was there."""
    content = path.read_bytes()[8:-2]
    overwrite(path, 8, b'\0' * len(content))
    return 8, content
