"""The table of rules: the modules beside this one add to it."""

RULES = {}  # MXNet's name of an operator -> function (builder, node)


def rule(*operators):
    """Decorator: the rule of these operators."""

    def add(function):
        RULES.update(dict.fromkeys(operators, function))
        return function

    return add
