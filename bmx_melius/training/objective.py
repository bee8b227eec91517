"""What a network is trained for: from images and labels to the loss of each image."""
from mxnet import gluon


class Objective:
    """Softmax cross-entropy with the labels.

    Training calls `prepare` on every batch before the forward pass, then `loss` on what the network makes of it.
    """

    def __init__(self):
        self._cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

    def prepare(self, images, labels):
        """The images and targets to train on.

        Parameters
        ----------
        images, labels : NDArray
            (N, C, H, W) and (N,), a batch as a `Source` yields it.

        Returns
        -------
        images : NDArray of the same shape
        targets : NDArray (N,) of classes
        """
        return images, labels

    def loss(self, images, outputs, targets):
        """The loss of each image, (N,), to be differentiated; `outputs` are the logits (N, classes)."""
        return self._cross_entropy(outputs, targets)

    def labels(self, targets):
        """The class of each image, (N,), that counts as right in the accuracy of training."""
        return targets
