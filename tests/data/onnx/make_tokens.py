"""Train a binary transformer of tokens on handwritten digits and store it: ``python make_tokens.py``.

The environment is that of ``make_pytorch.py`` with scikit-learn. A token is a block of 2 x 2 pixels of four levels each, one of 256 ids.
"""

import sys

import make_pytorch
import networks
import numpy as np
import recording
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

SHARE = 5  # one of so many images of each digit is a test image, as in bmx_melius.data.small_images
EPOCHS, BATCH = 40, 64
MODELS = {'tokens': {'opset': 17, 'dynamic': True}, 'tokens-dynamo': {'opset': 18, 'dynamo': True}}
INT32 = ('tokens-dynamo',)  # ids of 32 bits


def ids_of(images):
    """Return the ids (N, 16), int64, of images (N, 8, 8) with numbers from 0 to 16."""
    levels = np.minimum(images.astype(np.int64) // 4, 3)
    blocks = levels.reshape(len(images), 4, 2, 4, 2).transpose(0, 1, 3, 2, 4).reshape(len(images), 16, 4)
    return blocks @ 4 ** np.arange(4)


def is_test(labels):
    """Return which images are for the test, a bool array."""
    places = np.empty(len(labels), int)
    for label in range(10):
        same = np.flatnonzero(labels == label)
        places[same] = np.arange(len(same)) % SHARE
    return places == 0


def train(ids, labels):
    """Return a trained network. The embedding begins as a projection of the levels of a block, so that similar blocks begin alike."""
    torch.manual_seed(1)
    model = networks.TokenNet()
    levels = torch.arange(256)[:, None] // 4 ** torch.arange(4) % 4
    model.embedding.weight.data = (levels - 1.5) @ torch.randn(4, model.embedding.embedding_dim)
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    steps = EPOCHS * (len(ids) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(ids))
        for begin in range(0, len(ids) - BATCH + 1, BATCH):
            chosen = order[begin : begin + BATCH]
            loss = F.cross_entropy(model(ids[chosen]), labels[chosen], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for value in model.parameters():
        value.data = value.data.bfloat16().float()  # compresses better
    return model.eval()


def main():
    images, labels = load_digits(return_X_y=True)
    test = is_test(labels)
    ids, labels = torch.from_numpy(ids_of(images.reshape(-1, 8, 8))), torch.from_numpy(labels)
    model = train(ids[~test], labels[~test])
    with torch.no_grad():
        accuracy = float((model(ids[test]).argmax(1) == labels[test]).float().mean())
    print(f'accuracy {accuracy:.4f} of {test.sum()} test digits', flush=True)
    for name, options in MODELS.items():
        store(name, model, ids[test], options, f'trained on digits, {accuracy:.1%} of {test.sum()} test digits')


def store(name, model, ids, options, training):
    """Export the network and store it with two test digits that are far from the jumps of signs."""
    dtype = torch.int32 if name in INT32 else torch.int64
    path = recording.WORK / f'{name}.onnx'
    exporter = make_pytorch.export(model, ids.to(dtype)[:1], path, **options)
    loaded, found = recording.onnx.load(path), None
    for begin in range(0, len(ids) - 1, 2):
        chosen = ids[begin : begin + 2].to(dtype)
        distance = recording.distance_to_steps(loaded, [chosen.numpy()])
        if found is None or distance > found[0]:
            found = distance, chosen
        if distance > recording.EXACT_LIMIT:
            break
    with torch.no_grad():
        outputs = model(found[1])
    facts = make_pytorch.described(
        make_pytorch.BIBERT,
        f'{make_pytorch.TOKEN_FORM}; ids, Gather; {training}',
        4,
    )
    recording.record(name, [found[1].numpy()], [np.ascontiguousarray(outputs.numpy())], exporter=exporter, **facts)


if __name__ == '__main__':
    sys.exit(main())
