"""Table of conversion rules, filled by the other modules of this package, and the reasons why other operators have none."""

from ....graph.operations import key_of

RULES = {}  # (class of an operation, kind) -> function (builder, node); kind None: of all kinds without a rule of their own
MARKED_RULES = {}  # role of a marked node (`bmx_melius.nn.marks`) -> function (builder, node), which replaces the rule of its operation
TAKES_3D = set()  # rules of operations that also have a packed form for 3-D maps (`maps_3d`)

_DATA_DEPENDENT = 'it divides by a number that depends on the value, for which there is no operation'
REASONS = {  # common operators of MXNet without a rule -> the reason
    'softmax': f'{_DATA_DEPENDENT}; apply it to the logits after the packed network',
    'log_softmax': f'{_DATA_DEPENDENT}; apply it to the logits after the packed network',
    'SoftmaxActivation': f'{_DATA_DEPENDENT}; apply it to the logits after the packed network',
    'SoftmaxOutput': f'{_DATA_DEPENDENT}; apply softmax to the logits after the packed network',
    'LRN': _DATA_DEPENDENT,
    'L2Normalization': _DATA_DEPENDENT,
    '_rdiv_scalar': _DATA_DEPENDENT,
    'exp': 'only ELU, SELU, GELU, Mish, sigmoid, softplus and tanh are computed from exponentials',
    'log': 'there is no operation for logarithms',
    'sqrt': 'there is no operation for roots',
    'sign': 'it is 0 at 0, where the sign of binary layers is +1; use QActivation',
    'rint': 'it rounds ties down; mx.np.around, which rounds them to even, can be packed',
    'round': 'it rounds ties away from 0; mx.np.around, which rounds them to even, can be packed',
    'sum': 'its result depends on the size of the map, which is unknown at conversion; use mean',
    'dot': 'a program multiplies with constant matrices only',
    'batch_dot': 'a program multiplies with constant matrices only',
    'stack': 'it makes a new axis',
    'Embedding': 'it reads indices, and a program computes with float32',
    'RNN': 'a program has no state and no loop',
    '_contrib_AdaptiveAvgPooling2D': 'its windows depend on the size; global pooling can be packed',
}


def missing_rule(operator):
    """Return why an operator without a rule is not packed."""
    return f'the operator {operator} has no packed form' + (f': {REASONS[operator]}' if operator in REASONS else '')


def rule(operation_class, *kinds, maps_3d=False):
    """Register the decorated function as the rule for a class of operations, or for some kinds of it.

    Its docstring is the text of `bmx-melius operators`. `maps_3d` is whether it accepts 3-D maps.
    """
    return _registered(RULES, [(operation_class, kind) for kind in kinds or (None,)], maps_3d)


def rule_of(operation):
    """Return the rule for an operation, or None."""
    operation_class, kind = key_of(operation)
    return RULES.get((operation_class, kind)) or RULES.get((operation_class, None))


def marked_rule(role, maps_3d=False):
    """Register the decorated function as the rule for nodes marked with this role."""
    return _registered(MARKED_RULES, [role], maps_3d)


def _registered(rules, keys, maps_3d):
    def add(function):
        rules.update(dict.fromkeys(keys, function))
        if maps_3d:
            TAKES_3D.add(function)
        return function

    return add
