"""Training of the members of an ensemble one after the other: bagging and boosting, as in BENN (Zhu et al. 2019, arXiv:1806.07550).

Each member is an ordinary run in a subfolder, with its own seed, of the network that the members have:

- bagging: on images drawn once with replacement (``--bootstrap``);
- boosting: in each epoch on images drawn with the weights in ``image-weights-K.npy``, which result from the errors of the members before
  on all training images (`bmx_melius.nn.methods.benn`). ``correct-K.npz`` says which of them member K classifies correctly.

The members begin with new weights (in the paper "independent" training; "sequential" training, where each begins with the weights of the
one before, is not implemented). At the end the best weights of all members form the ensemble, which is evaluated and exported to the
folder itself.
"""

import os

import mxnet as mx
import numpy as np

from ...analysis.evaluation import Accuracy, ranks
from ...analysis.summary import Summary
from ...arguments import flag_of, require
from ...arithmetic import seed_for
from ...data.imagenet import with_words
from ...data.opening import AugmentationOptions, DataOptions, InputOptions, open_source
from ...data.source import Batching
from ...errors import UserError
from ...files.exported import Exported, description_fields
from ...files.io import replacing, sha256
from ...files.npz import read_npz
from ...graph.tracing import read_graph
from ...nn.methods.benn import boost
from ...reporting import LOG, logging_to_file
from ..network import create_network, make_network, model_arguments
from ..options.presets import BAGGING, BOOSTING, JOINT, STAGES
from ..recording.run_folder import LOG_FILE
from ..saving.export import export_network
from ..saving.stored_checkpoints import read_last, verify_file
from .run_series import RunSeries


class EnsembleTraining(RunSeries):
    """The runs of the members of an ensemble. For parameters see `RunSeries`."""

    unit = 'member'
    set_by_series = set_by_folder = ('bootstrap',)

    def __init__(self, options, zoo):
        self._members = zoo.get_members(options['model'], options['model_options'])
        kind = options.get('ensemble_training') or BAGGING
        self._boosts = kind == BOOSTING
        super().__init__({**options, 'ensemble_training': kind}, zoo, ['member'] * self._members.count, self._members.name)

    @property
    def title(self):
        return f'{self._options["model"]}, --ensemble-training {self._options["ensemble_training"]}'

    def check(self, defaults):
        super().check(defaults)
        require(
            self._options['dataset'] != 'dummy',
            f'--dataset dummy has no images, of which {self.title} draws samples; choose another dataset, or '
            f'{flag_of("ensemble_training")} {JOINT}',
        )
        require(
            self._options['preset'] not in STAGES,
            f'--preset {self._options["preset"]}: the members of an ensemble are not trained in stages; choose another preset, or '
            f'{flag_of("ensemble_training")} {JOINT}',
        )
        require(
            'alphas' not in self._options['model_options'],
            f'--model-options: alphas are the votes that {self.title} determines; leave them out, or use '
            f'{flag_of("ensemble_training")} {JOINT}',
        )

    def values(self, number):
        return {
            'model': self._members.name,
            'model_options': self._members.arguments,
            'ensemble_training': None,
            'seed': seed_for(self._options['seed'], number + 1),
            'bootstrap': self._sample(number),
        }

    def _sample(self, number):
        """Return the value of ``--bootstrap`` of a member. Dry runs do not weight the images by members that are not trained."""
        path = os.path.abspath(self._path(number))
        weighted = self._boosts and number and (os.path.exists(path) or not self._options['dry_run'])
        return path if weighted else True

    def describe(self, number):
        if not self._boosts or not number:
            return f'{self._members.name} on a sample of the training images'
        return f'{self._members.name} on samples weighted by the errors of the members before'

    def prepare(self, number):
        if self._boosts and number and not (os.path.exists(self._path(number)) and read_last(self.folder(number))):
            _, weights = self._boost(number)
            with replacing(self._path(number)) as temporary:
                np.save(temporary, weights)

    def finish(self):
        """Evaluate and export the ensemble."""
        exported = Exported.in_run(self._folder, self._options['model'])
        if os.path.exists(exported.description_file):
            LOG.info('%s is finished', self._folder)
            return
        with logging_to_file(os.path.join(self._folder, LOG_FILE)):
            alphas = self._boost(self._members.count)[0] if self._boosts else None
            if alphas is not None and not any(alphas):
                raise UserError(
                    f'no member in {self._folder} is better than guessing: start a new training in another --save-dir, longer or at '
                    'another learning rate'
                )
            self._export(alphas)

    def _export(self, alphas):
        config, source = self._open(0)
        network = self._network_of_all(config, {} if alphas is None else {'alphas': alphas})
        model = model_arguments(network, source.classes)
        net = self._load(network, model, source)
        for number, member in enumerate(net.members):
            member.load_parameters(self._weights(number), ctx=self._device, cast_dtype=True)
        accuracy = Accuracy()
        for images, labels in source.validation():
            accuracy.add(net(images.as_in_context(self._device)), labels)
        members = [self.metrics(number)['top1'] for number in range(self._members.count)]
        metrics = {'top1': accuracy.top1, 'top5': accuracy.top5, 'members_top1': members}
        counts = Summary.of(read_graph(net, (1, *source.spec.shape))).counts
        description = description_fields(model, source.spec, counts, with_words(source.class_names), source.split)
        target = export_network(self._folder, net, source.spec.shape, description, metrics)
        if alphas is not None:
            LOG.info('votes of the members: %s', ', '.join(f'{alpha:.3f}' for alpha in alphas))
        LOG.info(
            'the ensemble: top-1 %.2f%%, top-5 %.2f%%, its members: top-1 %s; exported to %s and %s',
            100 * accuracy.top1,
            100 * accuracy.top5,
            ', '.join(f'{100 * top1:.2f}%' for top1 in members),
            target.symbol_file,
            target.parameter_file(0),
        )

    def _check_networks(self):
        config = self._network_of_all(self.config(0), {})
        create_network(config, self._zoo.get_model, model_arguments(config, classes=2))

    def _network_of_all(self, config, votes):
        """Return the `TrainingOptions` of the ensemble for the options of a member."""
        model_options = {**self._options['model_options'], **votes}
        return config.replace(model=self._options['model'], model_options=model_options, ensemble_training=JOINT)

    def _boost(self, members):
        """Return the result of `boost` for the first `members` members, which are finished."""
        correct = [self._correct(number) for number in range(members)]
        if len({len(row) for row in correct}) > 1:
            counts = ', '.join(str(len(row)) for row in correct)
            raise UserError(
                f'the members in {self._folder} have classified {counts} training images, so the images have changed: '
                'put the former images back, or start a new training in another --save-dir'
            )
        alphas, weights = boost(np.stack(correct), self._classes(members - 1))
        if not alphas[-1]:
            LOG.warning('%s is not better than guessing: it has no vote, and all images have equal weights again', self.folder(members - 1))
        return alphas, weights

    def _correct(self, number):
        """Return whether a finished member classifies each training image correctly, a bool array; it is kept in a file."""
        path, weights = os.path.join(self._folder, f'correct-{number + 1}.npz'), self._weights(number)
        checksum = sha256(weights)
        correct = _read_correct(path, checksum)
        if correct is not None:
            return correct
        config, source = self._open(number)
        LOG.info('classifying the %d training images by %s', source.train_images, self.folder(number))
        net = self._load(config, model_arguments(config, source.classes), source)
        net.load_parameters(weights, ctx=self._device, cast_dtype=True)
        before = [ranks(net(images.as_in_context(self._device)), labels) for images, labels in source.train_in_order()]
        correct = np.concatenate(before) == 0
        with replacing(path) as temporary:
            np.savez(temporary, correct=correct, weights=checksum)
        return correct

    def _weights(self, number):
        """Return the file of the best weights of a finished member. Raises `UserError` if it is missing or damaged."""
        path = self.best_weights(number)
        verify_file(path)
        require(os.path.isfile(path), f'{path} is missing: put back a copy, or remove {self.folder(number)} to train the member again')
        return path

    def _classes(self, number):
        return self.exported(number).description().model()['classes']

    def _open(self, number):
        """Return the `TrainingOptions` of a member and its images."""
        config = self.config(number).replace(bootstrap=True)  # a member's images are not drawn here; its source can read them in order
        batching = Batching(config.images_per_batch, config.seed)
        return config, open_source(batching, *map(config.make, (DataOptions, InputOptions, AugmentationOptions)))

    def _load(self, config, model, source):
        """Return a network in float32 whose weights are to be loaded."""
        net = make_network(config, self._zoo.get_model, model, source.spec, [self._device])
        net.cast('float32')
        return net

    @property
    def _device(self):
        return mx.gpu() if self._options['num_gpus'] else mx.cpu()

    def _path(self, number):
        """Return the file of the weights of the training images for a member."""
        return os.path.join(self._folder, f'image-weights-{number + 1}.npy')


def _read_correct(path, checksum):
    """Return the array in a ``correct-K.npz``; None if it is missing, damaged or of weights with another checksum."""
    if not os.path.exists(path):
        return None
    try:
        file = read_npz(path)
        correct, weights = file['correct'], str(file['weights'])
    except (UserError, KeyError):
        LOG.warning('%s is damaged: the images are classified again', path)
        return None
    return correct if correct.dtype == bool and correct.ndim == 1 and weights == checksum else None
