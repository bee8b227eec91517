"""Boosting of BENN: Zhu et al. 2019, *Binary Ensemble Neural Network: More Bits per Network or More Networks per Bit?*, arXiv:1806.07550.

Members are trained one after the other. Each classifies all training images; the images that it gets wrong are drawn more often for the
next one, and its voting weight alpha grows with its accuracy. The paper describes AdaBoost with weighted drawing, which it prefers to
weighted losses, for labels of +1 and -1; for more classes its authors' code uses SAMME (Zhu et al. 2009, *Multi-class AdaBoost*, Statistics
and Its Interface 2, algorithm 2), which equals AdaBoost for two classes. For member m and the weights w_i of the images ::

    err = sum_i w_i [m errs on i] / sum_i w_i,    alpha = log((1 - err) / err) + log(classes - 1),    w_i <- w_i exp(alpha [m errs on i])

The code also multiplies the weights of correct images by exp(-alpha), which is twice the step; the article on SAMME is followed here.
"""

from typing import List, Tuple

import numpy as np

from ...arguments import require


def boost(correct: np.ndarray, classes: int) -> Tuple[List[float], np.ndarray]:
    """Return the voting weights of the members so far, and the weights of the images for the next member.

    Parameters
    ----------
    correct : numpy.ndarray of shape (members, images), bool
        Whether each member classifies each training image correctly.
    classes : int
        At least 2, otherwise `UserError`.

    Returns
    -------
    alphas : list of float
        At least 0. A member that is not better than guessing has no vote, and the weights of the images become equal again.
    weights : numpy.ndarray of shape (images,), float64
        Their sum is 1.

    Without errors alpha would be infinite; the error is taken as at least half an image of average weight.
    """
    require(classes > 1, f'boosting needs at least two classes, not {classes}')
    images = correct.shape[1]
    uniform = np.full(images, 1 / images)
    alphas, weights = [], uniform
    for row in correct:
        error = max(weights[~row].sum(), 0.5 / images)
        alpha = np.log(max(1 - error, 0.5 / images) / error) + np.log(classes - 1)
        alphas.append(max(float(alpha), 0.0))
        weights = np.where(row, weights, weights * np.exp(alpha)) if alpha > 0 else uniform
        weights = weights / weights.sum()
    return alphas, weights
