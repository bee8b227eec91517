"""Table of conversion rules, filled by the other modules of this package."""

RULES = {}  # MXNet operator name -> function (builder, node)


def rule(*operators):
    """Register the decorated function as the rule for these MXNet operators."""

    def add(function):
        RULES.update(dict.fromkeys(operators, function))
        return function

    return add
