"""Output of ``bmx-melius evaluate``: text, JSON, and a CSV file of predictions."""

import csv
import dataclasses

import numpy as np

from ..analysis.evaluation import RATES
from ..errors import counted
from ..files.io import replacing
from ..reporting import table

_NAMES = {'f1': 'F1'}  # in tables
_WHY_DIFFERENT = '(a packed network rounds sums differently, which may flip a sign near its threshold: compare predictions, not scores)'


@dataclasses.dataclass(frozen=True)
class EvaluationReport:
    """Results of one network, or of two networks on the same images.

    Attributes
    ----------
    network, compared : str
        Names of the networks; `compared` is None if there is only one.
    images : bmx_melius.data.labelled_images.LabelledImages
    names : list of str
        Names of the classes.
    scores : {'logit', 'probability'}
        Kind of the scores.
    evaluations : list of bmx_melius.analysis.evaluation.Evaluation
    differences : list of bmx_melius.analysis.evaluation.Difference
        As `bmx_melius.analysis.evaluation.evaluate` returns them.
    """

    network: str
    compared: 'str | None'
    images: object
    names: list
    scores: str
    evaluations: list
    differences: list

    def text(self, per_class):
        """Return the tables as text; `per_class` adds one of the classes."""
        parts = [f'{self.images.origin}: {counted(len(self.images), "image")}, {counted(len(self.names), "class")}', self._accuracies()]
        for difference in self.differences:
            parts.append(
                f'different predictions: {difference.predictions} of {len(self.images)}\n'
                f'largest difference of a {self.scores}: {difference.score:.3g}' + (f'\n{_WHY_DIFFERENT}' if difference.score else '')
            )
        if per_class:
            parts.append(self._classes())
        return '\n\n'.join(parts)

    def to_json(self, per_class):
        """Return the results as a dict that `json` can serialize; accuracies are 0 to 1."""
        first, *others = map(_figures, self.evaluations)
        content = {'network': self.network, 'data': self.images.origin, 'classes': len(self.names), **first}
        for other, difference in zip(others, self.differences):
            content['compared'] = {
                'network': self.compared,
                **other,
                'different_predictions': difference.predictions,
                'largest_difference': difference.score,
            }
        if per_class:
            content['per_class'] = self.evaluations[0].confusion.rows(self.names)
        return content

    def write_predictions(self, path):
        """Write a CSV file with a row per image: its name, its class, the predicted class and the probability of the latter."""
        with replacing(path) as temporary, open(temporary, 'w', newline='', encoding='utf-8', errors='surrogateescape') as file:
            writer = csv.writer(file)
            writer.writerow(('image', 'label', 'prediction', 'probability'))
            for image, label, prediction, probability in zip(self.images.names, *self.evaluations[0].predictions()):
                writer.writerow((image, self.names[label], self.names[prediction], f'{probability:.6g}'))

    def mistakes(self):
        """Return the misclassified images of the first network: a list of (number, class, predicted class, its probability).

        Those with the largest probability come first.
        """
        labels, predictions, probabilities = self.evaluations[0].predictions()
        wrong = np.flatnonzero(labels != predictions)
        order = wrong[np.argsort(-probabilities[wrong], kind='stable')]
        return [(int(n), self.names[labels[n]], self.names[predictions[n]], float(probabilities[n])) for n in order]

    def _accuracies(self):
        networks = [name for name in (self.network, self.compared) if name]
        rows = [
            (name, f'{result.accuracy.top1:.2%}', f'{result.accuracy.top5:.2%}', f'{result.images_per_second:.1f}')
            for name, result in zip(networks, self.evaluations)
        ]
        lines = []
        for name, result in zip(networks, self.evaluations):
            rates = ', '.join(f'{_NAMES.get(key, key)} {value:.2%}' for key, value in result.confusion.macro().items())
            lines.append(f'macro average over the classes{f", {name}" if self.compared else ""}: {rates}')
        return '\n'.join([table(('network', 'top-1', 'top-5', 'images/s'), rows, align='<>>>'), *lines])

    def _classes(self):
        rows = []
        for name, row in zip(self.names, self.evaluations[0].confusion.per_class()):
            rates = [None if getattr(row, key) is None else f'{getattr(row, key):.2%}' for key in RATES]
            rows.append((name, row.images, *rates, None if row.taken_for is None else f'{self.names[row.taken_for]} ({row.mistakes})'))
        return table(('class', 'images', *(_NAMES.get(key, key) for key in RATES), 'most often predicted instead'), rows, align='<>>>><')


def _figures(result):
    return {
        'images': result.accuracy.images,
        'top1': result.accuracy.top1,
        'top5': result.accuracy.top5,
        'macro': result.confusion.macro(),
        'images_per_second': result.images_per_second,
    }
