"""Gradients of functions of arrays, and single updates by them."""

from mxnet import autograd, nd


def gradients(function, arrays, dy=None, training=True):
    """Return the result of a function of arrays, and their gradients for the gradient `dy` of the result, in NumPy."""
    for array in arrays:
        array.attach_grad()
    with autograd.record(train_mode=training):
        y = function(*arrays)
    y.backward(None if dy is None else nd.array(dy, dtype=y.dtype), train_mode=training)
    return [y.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


def descend(trainer, images, loss):
    """Update parameters once by the gradient of ``loss()``, an array or one for each device, of a number of images; return it."""
    with autograd.record():
        losses = loss()
    autograd.backward(losses)
    trainer.step(images)
    return losses
