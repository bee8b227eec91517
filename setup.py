"""Packaging of bmx-melius. pyproject.toml contains the build backend and the configuration of the development tools."""

import pathlib
import re
import sys

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / 'tools'))
from native_build import COMMANDS, extensions  # noqa: E402

# MXNet 1.9.1 uses names that NumPy 1.24 removed, and NumPy below 1.24 does not support Python 3.12. Newer Pythons only run packed networks.
WITH_MXNET = 'python_version < "3.12"'
VERSION = re.search(r"^__version__ = '(.+)'$", (HERE / 'bmx_melius' / '_version.py').read_text(), re.MULTILINE).group(1)
README = HERE / 'README.md'
# A wheel stays small: pictures of cards and large weights for training are only in the repository.
WEIGHTS = (path for path in (HERE / 'model_zoo' / 'weights').iterdir() if path.suffix != '.png' and path.stat().st_size < 1 << 20)
SERVICE = ['starlette>=0.40,<2', 'uvicorn>=0.30,<1', 'h11>=0.14,<1', 'python-multipart>=0.0.18,<0.1', 'prometheus-client>=0.17,<1']
# Newer versions need NumPy 2, without declaring it.
PARQUET = [f'pyarrow>=14,<26 ; {WITH_MXNET}', 'pyarrow>=14,<27']
ONNX = ['onnx>=1.14,<2', 'onnxruntime>=1.16,<2']


setup(
    name='bmx-melius',
    version=VERSION,
    description='Train, count, export and deploy the binary networks of the MeliusNet paper on stock MXNet',
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    keywords='binary neural networks, quantization, MeliusNet, MXNet, Gluon',
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Developers',
        'Intended Audience :: Science/Research',
        'Operating System :: POSIX :: Linux',
        'Programming Language :: Python :: 3.8',
        'Programming Language :: Python :: 3.9',
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    packages=find_packages(include=['bmx_melius', 'bmx_melius.*', 'model_zoo', 'model_zoo.*']),
    py_modules=['train_imagenet'],  # the program of `bmx-melius train`
    package_data={
        # bmx_melius.h is for programs that use the engine without Python; export-c copies kernels
        'bmx_melius': [
            'csrc/api/bmx_melius.h',
            'deployment/c_export/kernels/*.c',
            'deployment/runtime/zoo_layers.json',
            'py.typed',
            'serving/page.html',
        ],
        'model_zoo': ['counts.json', 'published.json', 'py.typed', 'times.json', *sorted(f'weights/{path.name}' for path in WEIGHTS)],
    },
    ext_modules=extensions(),
    cmdclass=COMMANDS,
    python_requires='>=3.8',
    install_requires=[
        'numpy>=1.21',  # Pillow from 10.3 on fails with an older one
        'pillow',  # reads images for packed networks, without MXNet
        *(
            f'{requirement} ; {WITH_MXNET}'
            for requirement in (
                'mxnet>=1.9.1,<2',
                'numpy<1.24',
                'gluoncv>=0.10.5',  # also installs OpenCV, which decodes images
                'tqdm',
                'matplotlib',
                'pyyaml',  # train_imagenet.py --config
                'graphviz',  # MXNet determines the range of versions
            )
        ),
    ],
    extras_require={
        'demo': ['scikit-learn>=1.3,<2'],
        'tensorboard': ['tensorboardX>=2.6,<3'],
        'horovod': ['horovod>=0.28,<0.29'],  # --kvstore horovod; docs/distributed.md explains its installation
        'onnx': ONNX,  # export-onnx; onnxruntime verifies the exported model
        # import-torch; these versions work with NumPy below 1.24. On Python 3.8 PyTorch is 2.4, which does not use onnxscript.
        'torch': [*ONNX, 'onnxscript>=0.3,<1 ; python_version >= "3.9"', 'torch>=2.4,<2.15'],
        'larq': ['h5py>=3.11,<4'],  # import-larq
        'score': [
            'dask>=2023.5,<2027',
            'distributed>=2023.5,<2027',
            *PARQUET,
        ],  # score, on one machine and on a Dask cluster
        'ray': [*PARQUET, 'ray>=2.10,<3'],  # score --engine ray
        'serve': SERVICE,  # not MXNet
        'test': [
            *('h5py>=3.11,<4', 'hypothesis>=6.113,<7', 'packaging>=24,<27', 'scikit-learn>=1.3,<2'),
            *('pytest>=8.3,<10', 'pytest-timeout>=2.3,<3', 'pytest-xdist>=3.6,<4'),
            *ONNX,
            *SERVICE,
        ],
        # Libraries of `bmx-melius bench --compare`, in versions that work with NumPy below 1.24.
        'bench': [
            'onnx>=1.16,<1.18',
            'onnxruntime>=1.18,<1.21',
            'openvino>=2023.3,<2024',
            'tensorflow-cpu>=2.13,<2.14',
            'ai-edge-litert<3 ; python_version >= "3.9"',
            'larq>=0.13,<0.15 ; python_version >= "3.10"',
            'larq-compute-engine>=0.13,<0.17 ; python_version >= "3.10"',
        ],
        'docs': ['mkdocs-material>=9.7,<10', 'mkdocstrings[python]>=0.26,<2'],
    },
    entry_points={'console_scripts': ['bmx-melius = bmx_melius.__main__:main']},
    zip_safe=False,
)
