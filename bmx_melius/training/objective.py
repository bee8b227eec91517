"""What a network is trained for: from images and labels to the loss of each image. GluonCV's options, which all go together."""

import gluoncv
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..seeding import seed_for
from .teacher import load_teacher

LABEL_SMOOTHING = 0.1  # GluonCV's
MIXUP = 1  # behind epoch and batch: a place of its own among those where random numbers are drawn


class Mixup:
    """Each image becomes a mixture with another one of its batch, and so does its label (Zhang et al. 2018, arXiv:1710.09412).

    Parameters
    ----------
    alpha : float
        The share of an image is drawn from Beta(alpha, alpha), once for each batch, as GluonCV does.
    seed : int
        Of the run; the share follows from it, the epoch and the batch.
    end : int
        From this epoch on nothing is mixed.
    """

    def __init__(self, alpha, seed, end):
        self._alpha, self._seed, self._end = alpha, seed, end

    def share(self, epoch, batch):
        """The share of an image in its mixture, 0 to 1; that of the other one is the rest."""
        if epoch >= self._end:
            return 1.0
        return np.random.RandomState(seed_for(self._seed, epoch, batch, MIXUP)).beta(self._alpha, self._alpha)


class Teacher:
    """Distillation: a trained network's softened answers beside the labels (Hinton et al. 2015, arXiv:1503.02531).

    The loss of an image with logits z, teacher's logits t and target y is, with CE the cross-entropy with softmax,
    ``hard_weight CE(z, y) + (1 - hard_weight) T^2 CE(z / T, softmax(t / T))``.

    Parameters
    ----------
    net : gluon.Block
        images -> logits.
    temperature : float
        T, at least 1 softens.
    hard_weight : float
        0 to 1.
    """

    def __init__(self, net, temperature, hard_weight):
        self.net, self.temperature, self.hard_weight = net, temperature, hard_weight

    def answers(self, images):
        """The teacher's probabilities, (N, classes) float32, constants for the gradient."""
        with autograd.pause(train_mode=False):
            return mx.nd.softmax(self.net(images.astype('float32', copy=False)), temperature=self.temperature)


class Objective:
    """Softmax cross-entropy with the labels, smoothed, mixed and beside a teacher's answers as wanted.

    Training calls `prepare` on every batch before the forward pass, then `loss` on what the network makes of it.

    Parameters
    ----------
    classes : int
    smoothing : float
        This share of each label is spread over all classes evenly (Szegedy et al. 2016, arXiv:1512.00567, section 7).
    mixup : Mixup or None
    teacher : Teacher or None
    """

    def __init__(self, classes, smoothing=0.0, mixup=None, teacher=None):
        self._classes, self._smoothing, self._mixup, self._teacher = classes, smoothing, mixup, teacher
        self._distributions = bool(smoothing or mixup)  # whether targets are such, or classes
        if teacher:
            self._loss = gluoncv.loss.DistillationSoftmaxCrossEntropyLoss(
                teacher.temperature, teacher.hard_weight, sparse_label=not self._distributions
            )
        else:
            self._loss = gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=not self._distributions)

    def prepare(self, images, labels, epoch, batch):
        """The images and targets to train on.

        Parameters
        ----------
        images, labels : NDArray
            (N, C, H, W) and (N,), batch number `batch` of `epoch` as a `Source` yields it.

        Returns
        -------
        images : NDArray of the same shape
        targets : NDArray, (N,) of classes, or (N, classes) of probabilities with smoothing or mixup
        """
        if not self._distributions:
            return images, labels
        rest = self._smoothing / self._classes
        targets = labels.one_hot(self._classes, on_value=1 - self._smoothing + rest, off_value=rest)
        if self._mixup:
            share = self._mixup.share(epoch, batch)
            images, targets = (share * array + (1 - share) * array.flip(axis=0) for array in (images, targets))
        return images, targets

    def loss(self, images, outputs, targets):
        """The loss of each image, (N,) float32, to be differentiated; `outputs` are the logits (N, classes) for `images`."""
        outputs = outputs.astype('float32', copy=False)
        return self._loss(outputs, targets, self._teacher.answers(images)) if self._teacher else self._loss(outputs, targets)

    def labels(self, targets):
        """The class of each image, (N,), that counts as right in the accuracy of training: of a mixture the one with the larger share."""
        return targets.argmax(axis=1) if self._distributions else targets


def make_objective(config, get_model, classes, input_shape, devices):
    """Return the objective that a `RunConfig` describes. Raises `UserError` where the teacher cannot be used.

    `get_model` is as `model_zoo.get_model`.
    """
    options, mixup = config.objective, None
    if options.mixup:
        mixup = Mixup(options.mixup_alpha, config.seed, config.optimizer.num_epochs - options.mixup_off_epoch)
    teacher = None
    if options.teacher:
        net = load_teacher(
            get_model,
            options.teacher,
            classes,
            input_shape,
            devices,
            options.teacher_params,
            options.teacher_pretrained,
            options.teacher_options,
        )
        teacher = Teacher(net, options.temperature, options.hard_weight)
    return Objective(classes, LABEL_SMOOTHING if options.label_smoothing else 0.0, mixup, teacher)
