"""Files of other programs, recognized by their first bytes or their ending, and what makes an ONNX model of each."""

import os

_PYTORCH = "torch.onnx.export(net.eval(), torch.zeros(1, 3, 224, 224), 'net.onnx')"
_EXPORT = f'load it into the network in PyTorch and export that: {_PYTORCH}'
_UNPACK = 'unpack it first'

# What the file is and what to do -> bytes, with their position, or endings of a name that tell it.
_FORMATS = (
    (f'a TorchScript file of PyTorch: export the network that it was made of: {_PYTORCH}', ((0, b'PK', b'constants.pkl'),), ('.ptl',)),
    (f'a checkpoint of PyTorch, weights without the network: {_EXPORT}', ((0, b'PK', b'data.pkl'),), ('.pth', '.pt', '.ckpt', '.bin')),
    (f'a pickle, as old checkpoints of PyTorch are: {_EXPORT}', ((0, b'\x80\x02'), (0, b'\x80\x03'), (0, b'\x80\x04')), ('.pkl',)),
    ('a model of Keras: python -m tf2onnx.convert makes an ONNX model of it', ((0, b'PK', b'config.json'),), ('.keras',)),
    (
        'a file of Keras (HDF5): `bmx-melius import-larq` reads weights of Larq; python -m tf2onnx.convert --keras makes a model of others',
        ((0, b'\x89HDF'),),
        ('.h5', '.hdf5'),
    ),
    ('a model of TensorFlow Lite: python -m tf2onnx.convert --tflite makes an ONNX model of it', ((4, b'TFL3'),), ('.tflite',)),
    ('a model of TensorFlow: python -m tf2onnx.convert --saved-model FOLDER makes an ONNX model of it', (), ('.pb', '.pbtxt')),
    ('the format of ONNX Runtime for small devices: give the ONNX model that it was made of', ((4, b'ORTM'),), ('.ort',)),
    (f'a file of safetensors, weights without the network: {_EXPORT}', ((8, b'{"'),), ('.safetensors',)),
    ('arrays of NumPy, not a network', ((0, b'\x93NUMPY'),), ('.npy', '.npz')),
    ('compressed by gzip: gunzip it first', ((0, b'\x1f\x8b'),), ('.gz', '.tgz')),
    (
        f'compressed: {_UNPACK}',
        ((0, b'BZh'), (0, b'\xfd7zXZ'), (0, b'\x28\xb5\x2f\xfd'), (0, b'7z\xbc\xaf')),
        ('.bz2', '.xz', '.zst', '.7z'),
    ),
    (f'an archive: {_UNPACK}, and give the .onnx file in it', ((0, b'PK\x03\x04'), (257, b'ustar')), ('.zip', '.tar')),
    (
        'the parameters of a network of MXNet: `bmx-melius convert PREFIX PACKED` converts such a network',
        ((0, b'\x12\x01\0\0\0\0\0\0'),),
        ('.params',),
    ),
    ('JSON, as the symbol of a network of MXNet is: `bmx-melius convert PREFIX PACKED` converts such a network', ((0, b'{'),), ('.json',)),
    ('a pointer of Git LFS in place of the file: git lfs pull', ((0, b'version https://git-lfs'),), ()),
    ('a web page, not the file that should have been downloaded', ((0, b'<!DOCTYPE'), (0, b'<!doctype'), (0, b'<html')), ('.html',)),
    ('XML, as models of OpenVINO are: give the ONNX model that it was made of', ((0, b'<?xml'), (0, b'<net')), ('.xml',)),
    ('a model of Core ML: export the network to ONNX', (), ('.mlmodel', '.mlpackage')),
    (f'a program of Python: run it, and export the network: {_PYTORCH}', (), ('.py', '.ipynb')),
)


def other_format(path, content):
    """Return what a file is that is neither an ONNX model nor a network of MXNet, and what to do; '' if that is not known.

    Parameters
    ----------
    path : str
    content : bytes
    """
    for text, beginnings, _ in _FORMATS:
        for position, beginning, *inner in beginnings:
            if content[position : position + len(beginning)] == beginning and all(part in content for part in inner):
                return text
    ending = os.path.splitext(path)[1].lower()
    return next((text for text, _, endings in _FORMATS if ending in endings), '')
