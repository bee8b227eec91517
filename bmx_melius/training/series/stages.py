"""Training in stages: the runs of a preset in `STAGES`, one after the other.

A stage begins with the weights of the best epoch of the one before, whose exported network may also be its teacher.
"""

import os

from ...arguments import flag_of, require
from ...data.datasets import DATASETS
from ..options.presets import DEPENDENT, OF_OPTIMIZER, PRESETS, PREVIOUS_NETWORK, PREVIOUS_WEIGHTS, STAGES, preset_values
from .run_series import RunSeries

PREDECESSOR = (PREVIOUS_WEIGHTS, PREVIOUS_NETWORK)


class StagedTraining(RunSeries):
    """The stages of a preset. For parameters see `RunSeries`."""

    set_by_series = ('bits', 'weight_bits', 'use_pretrained', 'resume_params', 'resume_states', 'resume_epoch')

    def __init__(self, options, zoo):
        self._stages = STAGES[options['preset']]
        if any('teacher' in stage.flags for stage in self._stages):
            self.set_by_series += ('teacher', 'teacher_params', 'teacher_pretrained', 'teacher_options')
        super().__init__(options, zoo, [stage.name for stage in self._stages], options['model'])

    @property
    def title(self):
        return f'--preset {self._options["preset"]}'

    def check(self, defaults):
        super().check(defaults)
        require(
            not self._network or self._zoo.takes_option(self._network, 'bits'),
            f'--model {self._network}: the stages of {self.title} end with a binary network, and this is a float network of GluonCV; '
            'choose a network of this project',
        )

    def values(self, number):
        values = {}
        for name, value in self._flags(number).items():
            if value in PREDECESSOR:
                value = self._of_predecessor(value, number)
            if self._options[name] is None or value is False:
                values[name] = value
        if values.get('teacher', self._options['teacher']) is None:
            values.update(dict.fromkeys(DEPENDENT['teacher']))
        return values

    def describe(self, number):
        flags = self._flags(number)
        values = {name: value for name, value in flags.items() if value not in (*PREDECESSOR, False)}
        chosen = {name: self._options[name] for name in values if self._options[name] is not None}
        text = ' '.join(f'{flag_of(name)} {value}' for name, value in {**values, **chosen}.items())
        if not number:
            return text
        return f'{text}; starts from the best weights of {self.folder(number - 1)}' + (
            ', its teacher' if PREVIOUS_NETWORK in flags.values() else ''
        )

    def _of_predecessor(self, which, number):
        """Return the weights or the exported network of the stage before, None in a dry run if it is not finished."""
        if not self.is_finished(number - 1):
            return None
        return os.path.abspath(self.exported(number - 1).prefix) if which == PREVIOUS_NETWORK else self.best_weights(number - 1)

    def _flags(self, number):
        """Return the values of the flags of a stage; its protocol's as the dataset and other flags change them."""
        options, stage = self._options, self._stages[number]
        row = {**PRESETS[options['preset']], **stage.protocol}
        values = preset_values(row, DATASETS[options['dataset']], options['optimizer'], options['num_epochs'])
        names = {*stage.protocol, *(OF_OPTIMIZER if 'optimizer' in stage.protocol else ())}
        return {**{name: value for name, value in values.items() if name in names and value is not None}, **stage.flags}
