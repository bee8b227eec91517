"""Table of conversion rules, filled by the other modules of this package."""

RULES = {}  # MXNet operator name -> function (builder, node)
MARKED_RULES = {}  # role of a marked node (`bmx_melius.marks`) -> function (builder, node), which replaces that of its operator


def rule(*operators):
    """Register the decorated function as the rule for these MXNet operators."""
    return _registered(RULES, operators)


def marked_rule(role):
    """Register the decorated function as the rule for nodes marked with this role."""
    return _registered(MARKED_RULES, [role])


def _registered(rules, keys):
    def add(function):
        rules.update(dict.fromkeys(keys, function))
        return function

    return add
