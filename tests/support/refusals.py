"""Messages of the two readers of programs: they name the same place, each in words of its own."""

DAMAGED = 'the attribute structure is damaged: '


def place_of(message):
    """Return the place with which a message begins: word, operation with its name, field. An empty string if there is no message."""
    return message.replace(DAMAGED, '').split(': ')[0]
