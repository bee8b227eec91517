"""Training objective: loss of each image with label smoothing, mixup and distillation, as in GluonCV, CutMix, and attention transfer."""

import functools

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from ..arithmetic import seed_for
from ..gluon_cv import gluoncv
from .attention import AttentionTransfer
from .teacher import TeacherOptions, load_teacher

LABEL_SMOOTHING = 0.1  # GluonCV's
MIXUP, CUTMIX = 1, 2  # appended to epoch and batch, so that no other random numbers have these seeds


class Mixup:
    """Mixup: replace each image and its label by a mixture with another one of the batch (Zhang et al. 2018, arXiv:1710.09412).

    Parameters
    ----------
    alpha : float
        The mixing ratio is drawn from Beta(alpha, alpha), once per batch as in GluonCV.
    seed : int
        Seed of the run; it determines the ratio together with epoch and batch.
    end : int
        First epoch without mixup.
    """

    def __init__(self, alpha, seed, end):
        self._alpha, self._seed, self._end = alpha, seed, end

    def share(self, epoch, batch):
        """Return the mixing ratio of a batch, 0 to 1: the weight of each image in its mixture."""
        if epoch >= self._end:
            return 1.0
        return np.random.RandomState(seed_for(self._seed, epoch, batch, MIXUP)).beta(self._alpha, self._alpha)

    def mix(self, images, epoch, batch):
        """Return the mixtures of a batch with itself in reverse order, and the share of each image in its mixture."""
        share = self.share(epoch, batch)
        return share * images + (1 - share) * images.flip(axis=0), share


class CutMix:
    """CutMix: paste a rectangle of another image of the batch into each image (Yun et al. 2019, arXiv:1905.04899, section 3.2).

    Labels are mixed by the areas. The rectangle has the image's aspect ratio and a share of 1 - s of its area, s uniform in [0, 1] (the
    paper's alpha of 1), and a uniform centre; it is cut off at the borders. It is drawn once per batch, as in the authors' code, and used
    in each batch, as there for ImageNet. Their code mixes images in a random order, this class the batch with itself in reverse order.

    Parameters
    ----------
    seed : int
        Seed of the run; it determines the rectangle together with epoch and batch.
    """

    def __init__(self, seed):
        self._seed = seed

    def rectangle(self, height, width, epoch, batch):
        """Return the slices of rows and columns of the rectangle of a batch."""
        random = np.random.RandomState(seed_for(self._seed, epoch, batch, CUTMIX))
        side, *centre = np.sqrt(1 - random.uniform()), random.randint(height), random.randint(width)
        halves = (int(length * side) // 2 for length in (height, width))
        return tuple(
            slice(max(0, middle - half), min(length, middle + half)) for middle, half, length in zip(centre, halves, (height, width))
        )

    def mix(self, images, epoch, batch):
        """Return the mixtures of a batch with itself in reverse order, and the share of each image in its mixture."""
        height, width = images.shape[2:]
        rows, columns = self.rectangle(height, width, epoch, batch)
        mask = np.zeros((1, 1, height, width), np.float32)
        mask[..., rows, columns] = 1
        cut = mx.nd.array(mask, ctx=images.context, dtype=images.dtype)
        mixed = mx.nd.where(mx.nd.broadcast_to(cut, images.shape), images.flip(axis=0), images)
        return mixed, 1 - float(mask.sum()) / (height * width)


class Teacher:
    """Teacher of a distillation, whose softened probabilities supplement the labels (Hinton et al. 2015, arXiv:1503.02531).

    With logits z, teacher's logits t, target y and softmax cross-entropy CE, the loss of an image is
    ``hard_weight CE(z, y) + (1 - hard_weight) T^2 CE(z / T, softmax(t / T))``.

    Parameters
    ----------
    net : gluon.Block
        Maps images to logits.
    temperature : float
        T; values above 1 soften the probabilities.
    hard_weight : float
        Weight of the labels, 0 to 1.
    attention : AttentionTransfer or None
        Its loss is added.
    assistants : Assistants or None
    """

    def __init__(self, net, temperature, hard_weight, attention=None, assistants=None):
        self.net, self.temperature, self.hard_weight, self.attention = net, temperature, hard_weight, attention
        self.assistants = assistants

    def answers(self, images):
        """Return the softened probabilities, (N, classes) float32, and the compared feature maps; both are not differentiated."""
        return self._answers(self.attention.teacher if self.attention else self.net, images)

    def answers_of_assistant(self, images, epoch):
        """Return the softened probabilities of the second teacher of an epoch."""
        return self._answers(self.assistants.of_epoch(epoch), images)[0]

    def _answers(self, net, images):
        with autograd.pause(train_mode=False):
            outputs = net(images.astype('float32', copy=False))
            logits, *maps = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
            return mx.nd.softmax(logits, temperature=self.temperature), maps


class Assistants:
    """Second teachers of a distillation, each for an equal part of the epochs, from the weakest to the strongest (BNext, arXiv:2211.12933).

    Parameters
    ----------
    nets : sequence of gluon.Block
        Map images to logits.
    num_epochs : int
        Of the training.
    """

    def __init__(self, nets, num_epochs):
        self._nets, self._num_epochs = list(nets), num_epochs

    def of_epoch(self, epoch):
        """Return the network of an epoch, which counts from 0."""
        return self._nets[min(epoch * len(self._nets) // self._num_epochs, len(self._nets) - 1)]


def weighted_by_difficulty(losses):
    """Return the mean of the losses with several teachers, each (N,), times their weights, of which the greater loss has the greater one.

    A weight is the mean, over the images, of the softmax of the losses of an image, and is not differentiated. That is what the authors'
    code of BNext computes (github.com/hpi-xnor/BNext, src/train_assistant_group_amp.py, with its default ``hard_knowledge_grains``).
    """
    weights = mx.nd.softmax(mx.nd.BlockGrad(mx.nd.stack(*losses, axis=1)), axis=1).mean(axis=0).split(len(losses), axis=0)
    return sum(weight * loss for weight, loss in zip(weights, losses)) / len(losses)


class Objective:
    """Softmax cross-entropy, or another loss, optionally with label smoothing, mixup and distillation.

    Training calls `prepare` on every batch before the forward pass, and `loss` on the outputs of the network. With second teachers, the
    loss is that of the epoch of the last call of `prepare`.

    Parameters
    ----------
    classes : int, optional
        Required with `smoothing` or `mixup`.
    smoothing : float
        Probability that is distributed evenly over all classes (Szegedy et al. 2016, arXiv:1512.00567, section 7).
    mixup : Mixup, CutMix or None
    teacher : Teacher or None
    class_weights : sequence of float or None
        Factor of the loss of an image by its class; for a mixture the mean of the factors, weighted by its shares. Attention transfer is
        not weighted.
    loss : callable (logits, targets) -> NDArray (N,), optional
        Used instead of softmax cross-entropy; not with a teacher.

    Attributes
    ----------
    attention : AttentionTransfer or None
        If not None, `loss` requires the outputs of ``attention.student`` instead of the network's.
    """

    def __init__(self, classes=None, smoothing=0.0, mixup=None, teacher=None, class_weights=None, loss=None):
        self._weights = None if class_weights is None else mx.nd.array(class_weights)
        self._classes, self._smoothing, self._mixup, self._teacher = classes, smoothing, mixup, teacher
        self.attention = teacher.attention if teacher else None
        self._epoch = 0
        self._distributions = bool(smoothing or mixup)  # whether targets are probabilities instead of class numbers
        if teacher:
            self._loss = gluoncv.loss.DistillationSoftmaxCrossEntropyLoss(
                teacher.temperature, teacher.hard_weight, sparse_label=not self._distributions
            )
        else:
            self._loss = loss or gluon.loss.SoftmaxCrossEntropyLoss(sparse_label=not self._distributions)

    def prepare(self, images, labels, epoch, batch):
        """Return the images and targets to train on.

        Parameters
        ----------
        images, labels : NDArray
            Shapes (N, C, H, W) and (N,): a batch as yielded by a `Source`.
        epoch, batch : int
            Number of the epoch and of the batch in it, from 0.

        Returns
        -------
        images : NDArray of the same shape
        targets : NDArray
            Class numbers (N,), or with smoothing or mixup probabilities (N, classes).
        """
        self._epoch = epoch
        if not self._distributions:
            return images, labels
        rest = self._smoothing / self._classes
        targets = labels.one_hot(self._classes, on_value=1 - self._smoothing + rest, off_value=rest)
        if self._mixup:
            images, share = self._mixup.mix(images, epoch, batch)
            targets = share * targets + (1 - share) * targets.flip(axis=0)
        return images, targets

    def loss(self, images, outputs, targets, maps=()):
        """Return the loss of each image, (N,) float32, for logits `outputs`, (N, classes), and with attention transfer feature `maps`."""
        outputs = outputs.astype('float32', copy=False)
        if not self._teacher:
            return self._weighted(self._loss(outputs, targets), targets)
        answers, teacher_maps = self._teacher.answers(images)
        loss = self._weighted(self._loss(outputs, targets, answers), targets)
        if self._teacher.assistants:
            answers = self._teacher.answers_of_assistant(images, self._epoch)
            loss = weighted_by_difficulty([loss, self._weighted(self._loss(outputs, targets, answers), targets)])
        return loss + self.attention.loss(maps, teacher_maps) if self.attention else loss

    def _weighted(self, loss, targets):
        """Return the loss of each image (N,), multiplied by the weights of the classes in `targets`."""
        if self._weights is None:
            return loss
        weights = self._weights.as_in_context(targets.context)
        return loss * (mx.nd.dot(targets, weights) if self._distributions else mx.nd.take(weights, targets))

    def labels(self, targets):
        """Return the class of each image, (N,), for the training accuracy; for a mixture, the class with the larger weight."""
        return targets.argmax(axis=1) if self._distributions else targets


def make_teacher(net, classes, input_shape, devices, get_model, options):
    """Return the `Teacher` that `TeacherOptions` describe, of the network `net`, or None. Raises `UserError` when it cannot be used.

    `get_model` has the interface of `model_zoo.get_model`.
    """
    if not options.teacher:
        return None
    load = functools.partial(load_teacher, get_model, classes=classes, input_shape=input_shape, devices=devices)
    teacher = load(options)
    attention = AttentionTransfer(net, teacher, input_shape, options.attention_weight) if options.attention_weight else None
    assistants = [load(TeacherOptions(name), flag='--assistants') for name in options.assistants or ()]
    shared = Assistants(assistants, options.num_epochs) if assistants else None
    return Teacher(teacher, options.temperature, options.hard_weight, attention, shared)


def make_objective(options, classes, teacher):
    """Return the objective of a run with these `TrainingOptions`, and with a `Teacher` or None."""
    mixing = CutMix(options.seed) if options.cutmix else None
    if options.mixup:
        mixing = Mixup(options.mixup_alpha, options.seed, options.num_epochs - options.mixup_off_epoch)
    return Objective(classes, LABEL_SMOOTHING if options.label_smoothing else 0.0, mixing, teacher, options.class_weight_values)
