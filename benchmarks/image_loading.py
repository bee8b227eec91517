"""Processor time of reading and augmenting an image of a folder for training, by this project and by torchvision, in turns.

Both decode the images, crop and mirror them at random, change brightness, contrast and saturation in random order by up to .4, and make
normalized float32 batches of 3 x 224 x 224 in one thread; this project also adds noise to the colours.

    python benchmarks/image_loading.py photos --torchvision-python /path/to/environment/bin/python

The folder has train/CLASS/*.jpg and val/CLASS/*.jpg. The environment has torch and torchvision.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

BATCH = 32


def read_by_bmx_melius(folder):
    """Return a function that reads all training images once and returns their number."""
    from bmx_melius.data.opening import AugmentationOptions, DataOptions, open_source
    from bmx_melius.data.source import Batching

    source = open_source(Batching(BATCH, seed=1), DataOptions('imagenet', folder), augmentation=AugmentationOptions('high'))

    def read():
        number = 0
        for images, labels in source.train(0):
            images.wait_to_read()
            number += len(labels)
        return number

    return read


def read_by_torchvision(folder):
    """Like `read_by_bmx_melius`."""
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    images = datasets.ImageFolder(os.path.join(folder, 'train'), transform)
    loader = torch.utils.data.DataLoader(images, BATCH, shuffle=True, drop_last=True)
    return lambda: sum(len(labels) for _, labels in loader)


READERS = {'bmx-melius': read_by_bmx_melius, 'torchvision': read_by_torchvision}


def answer(reader, folder):
    """Read all images for each line of standard input, and print the milliseconds of processor time of an image."""
    read = READERS[reader](folder)
    read()
    for _ in sys.stdin:
        begin = time.process_time()
        number = read()
        print(1e3 * (time.process_time() - begin) / number, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', help='images, at least 32 for training')
    parser.add_argument('--torchvision-python', metavar='PROGRAM', help='Python of an environment with torch and torchvision')
    parser.add_argument('--repetitions', type=int, default=12, metavar='N', help='times that each reads all images (default: 12)')
    parser.add_argument('--reader', choices=READERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.reader:
        answer(arguments.reader, arguments.folder)
        return
    programs = {'bmx-melius': sys.executable, 'torchvision': arguments.torchvision_python}
    environment = {**os.environ, 'OMP_NUM_THREADS': '1', 'MXNET_CPU_WORKER_NTHREADS': '1'}
    pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE, 'text': True}
    processes = {
        reader: subprocess.Popen([program, __file__, arguments.folder, '--reader', reader], env=environment, **pipes)
        for reader, program in programs.items()
        if program
    }
    times = {reader: [] for reader in processes}
    for _ in range(arguments.repetitions):
        for reader, process in processes.items():
            process.stdin.write('\n')
            process.stdin.flush()
            times[reader].append(float(process.stdout.readline()))
    for reader, process in processes.items():
        process.stdin.close()
        process.wait()
        print(f'{reader:12} least {min(times[reader]):6.2f} ms, median {statistics.median(times[reader]):6.2f} ms an image')


if __name__ == '__main__':
    main()
