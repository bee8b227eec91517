"""Configuration of a training run: frozen dataclasses, one per group of flags, which check their values on construction.

Fields are named like the flags of ``train_imagenet.py``, whose help (`flags.py`) describes them; error messages name the flags.
"""

import dataclasses
import os
from typing import Any, Dict, List, Optional, Union

from ...arguments import flag_of, require, require_not_negative
from ...data.data_config import DataConfig
from ..optimizer_names import check_optimizer_params


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """Network and initial weights."""

    model: str
    initial_layers: Optional[str] = None  # None: the network's default, or that of the pretrained weights
    clip_threshold: Optional[float] = None
    bits: Optional[int] = 1  # None: the network has no such option, as those of GluonCV
    weight_bits: Optional[int] = 1
    activation_bits: Optional[int] = None
    activation_method: Optional[str] = None
    weight_quantization: Optional[str] = None
    approximation: Optional[str] = None
    downsample_structure: Optional[str] = None
    slices: Optional[int] = None
    shortcut_groups: Optional[int] = None
    binary_shortcut: Optional[bool] = None
    strided_shortcut: Optional[bool] = None
    last_gamma: bool = False
    model_options: Dict[str, Any] = dataclasses.field(default_factory=dict)
    ensemble_training: Optional[str] = None  # 'joint' for an ensemble, None for other networks
    use_pretrained: Union[bool, str] = False
    initialization: str = 'gaussian'
    mode: str = 'hybrid'
    dtype: str = 'float32'

    def __post_init__(self):
        require(
            None in (self.bits, self.weight_bits) or self.bits <= self.weight_bits,
            f'--weight-bits {self.weight_bits} with --bits {self.bits}: binary weights need binary activations',
        )


@dataclasses.dataclass(frozen=True)
class FineTuningConfig:
    """Training of a network that starts from the weights of another one.

    `new_parameters` is not a flag: it has the names of the parameters that were not loaded, which a resumed run must know. None if no
    weights were loaded.
    """

    freeze: Optional[str] = None
    pretrained_lr_factor: float = 1.0
    new_parameters: Optional[List[str]] = None

    def __post_init__(self):
        require(
            self.pretrained_lr_factor > 0,
            f'--pretrained-lr-factor must be positive, not {self.pretrained_lr_factor:g}; --freeze keeps weights unchanged',
        )


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, learning-rate schedule and weight decay; `preset` names the protocol that supplied the defaults."""

    preset: str
    optimizer: str
    lr: float
    wd: float
    momentum: Optional[float]
    lr_mode: str
    lr_decay: Union[float, List[float]]
    lr_decay_epoch: List[int]
    lr_power: float
    warmup_epochs: int
    warmup_lr: float
    num_epochs: int
    batch_size: int
    lr_scaling: str = 'none'
    lr_factor: float = 1.0
    lr_decay_period: int = 0
    no_wd: bool = False
    optimizer_params: Dict[str, Any] = dataclasses.field(default_factory=dict)
    binary_optimizer: Optional[str] = None  # None: one optimizer for all parameters
    binary_lr: Optional[float] = None
    binary_optimizer_params: Optional[Dict[str, Any]] = None

    def __post_init__(self):
        require(self.lr_factor > 0, f'--lr-factor must be positive, not {self.lr_factor:g}')
        require_not_negative(self, 'lr', 'warmup_lr', 'wd', 'warmup_epochs', 'lr_decay_period')
        factors = self.lr_decay if isinstance(self.lr_decay, (list, tuple)) else [self.lr_decay]
        require(min(factors) >= 0, '--lr-decay must not be negative')
        require(self.lr_power > 0, f'--lr-power must be positive, not {self.lr_power:g}')
        listed = self.lr_decay_epoch
        require(
            factors == [self.lr_decay] or (len(factors) == len(listed) and not self.lr_decay_period),
            f'--lr-decay has {len(factors)} factors, {",".join(map(str, factors))}: give one for all, or one for each epoch of '
            f'--lr-decay-epoch, here {",".join(map(str, listed))}, without --lr-decay-period',
        )
        check_optimizer_params('--optimizer-params', self.optimizer, self.optimizer_params)
        if self.binary_optimizer:
            require_not_negative(self, 'binary_lr')
            check_optimizer_params('--binary-optimizer-params', self.binary_optimizer, self.binary_optimizer_params)


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Loss: label smoothing, mixup, distillation and class weights. The fields of an option that is off are None.

    `class_weight_values` is not a flag: it has the weight of each class with which a run was started.
    """

    label_smoothing: bool = False
    mixup: bool = False
    mixup_alpha: Optional[float] = None
    mixup_off_epoch: Optional[int] = None
    cutmix: bool = False
    teacher: Optional[str] = None
    teacher_params: Optional[str] = None
    teacher_pretrained: Union[bool, str, None] = False
    teacher_options: Optional[Dict[str, Any]] = None
    temperature: Optional[float] = None
    hard_weight: Optional[float] = None
    attention_weight: Optional[float] = None
    class_weights: Optional[str] = None
    class_weight_values: Optional[List[float]] = None

    def __post_init__(self):
        require(not (self.mixup and self.cutmix), '--mixup and --cutmix both mix the images of a batch: give only one of them')
        if self.mixup:
            require(self.mixup_alpha > 0, f'--mixup-alpha must be positive, not {self.mixup_alpha:g}')
        if self.teacher:
            require(self.temperature > 0, f'--temperature must be positive, not {self.temperature:g}')
            require(
                0 <= self.hard_weight < 1,
                f'--hard-weight must be at least 0 and below 1 (at 1 the teacher would have no influence), not {self.hard_weight:g}',
            )
            require_not_negative(self, 'attention_weight')


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    """Files written by a run, and how often they are written."""

    save_dir: str = 'params'
    save_frequency: int = 10
    save_interval: int = 0
    log_interval: int = 50
    track_flips: bool = False
    tensorboard: bool = False
    write_summary: Optional[str] = None
    logging_file: Optional[str] = None

    def __post_init__(self):
        require_not_negative(self, 'save_frequency', 'save_interval', 'log_interval')


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Complete configuration of a training run.

    Raises
    ------
    UserError
        When values contradict each other or name files that do not exist.
    """

    network: NetworkConfig
    fine_tuning: FineTuningConfig
    data: DataConfig
    optimizer: OptimizerConfig
    objective: ObjectiveConfig
    output: OutputConfig
    num_gpus: int = 0
    gpus: Optional[List[int]] = None  # None: the first `num_gpus` ones
    interrupt_at: Optional[int] = None
    kvstore: str = 'device'
    seed: int = 0
    resume: bool = False
    resume_params: Optional[str] = None
    resume_states: Optional[str] = None
    resume_epoch: int = 0
    early_stop: int = 0
    ema: Optional[float] = None
    dry_run: bool = False

    def __post_init__(self):
        require_not_negative(self, 'num_gpus', 'seed', 'resume_epoch', 'early_stop')
        require(
            not self.objective.attention_weight or self.network.dtype == 'float32',
            f'--attention-weight requires --dtype float32, not {self.network.dtype}',
        )
        if self.ema is not None:
            require(0 < self.ema < 1, f'--ema must be above 0 and below 1, for example 0.999, not {self.ema:g}')
            require(self.network.dtype == 'float32', f'--ema requires --dtype float32, not {self.network.dtype}')
            require(
                not self.kvstore.startswith('dist') and self.kvstore != 'horovod',
                f'--ema averages the weights of one process, which --kvstore {self.kvstore} does not train with; leave one of them out',
            )
        epochs = self.optimizer.num_epochs
        if self.objective.mixup or self.objective.cutmix:
            flag = '--mixup' if self.objective.mixup else '--cutmix'
            require(self.images_per_batch > 1, f'{flag} mixes the images of a batch: raise --batch-size above 1')
        if self.objective.mixup:
            require(
                0 <= self.objective.mixup_off_epoch < epochs,
                f'--mixup-off-epoch {self.objective.mixup_off_epoch}: must be less than the number of epochs, {epochs}',
            )
        require(
            self.resume_params or not (self.resume_states or self.resume_epoch),
            '--resume-states and --resume-epoch require --resume-params (to continue an interrupted run, use only --resume)',
        )
        require(
            not (self.network.use_pretrained and self.resume_params),
            '--use-pretrained and --resume-params both select the initial weights: give only one of them',
        )
        loads = bool(self.resume_params or self.network.use_pretrained)
        for name, value, default in (
            ('freeze', self.fine_tuning.freeze, None),
            ('pretrained_lr_factor', self.fine_tuning.pretrained_lr_factor, 1),
        ):
            require(
                loads or value == default,
                f'{flag_of(name)} {value} applies to loaded weights: give --resume-params FILE or --use-pretrained as well',
            )
        require(self.resume_epoch < epochs, f'--resume-epoch {self.resume_epoch}: the run has only {epochs} epochs (--num-epochs)')
        if not self.resume:
            for name, path in (
                ('resume_params', self.resume_params),
                ('resume_states', self.resume_states),
                ('teacher_params', self.objective.teacher_params),
            ):
                require(not path or os.path.isfile(path), f'{flag_of(name)}: there is no file {path}')

    @property
    def images_per_batch(self) -> int:
        """Number of images of an update in this process, over all of its devices."""
        return self.optimizer.batch_size * max(1, self.num_gpus)

    @classmethod
    def from_flags(cls, values):
        """Return the configuration for the values of all flags, a dict whose keys are flag names with underscores."""
        groups = {field.name: field.type for field in dataclasses.fields(cls) if dataclasses.is_dataclass(field.type)}
        parts = {name: _pick(kind, values) for name, kind in groups.items()}
        return cls(**parts, **{field.name: values[field.name] for field in dataclasses.fields(cls) if field.name not in groups})

    def to_flags(self):
        """Return the values of all flags, the inverse of `from_flags`: a flat dict that `json` can write."""
        values = {}
        for name, value in dataclasses.asdict(self).items():
            is_group = dataclasses.is_dataclass(getattr(self, name))
            values.update(value if is_group else {name: value})
        return values


def _pick(kind, values):
    """Return a dataclass of type `kind` with its fields taken from a dict."""
    return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})
