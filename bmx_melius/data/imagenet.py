"""The 1000 classes of ImageNet-1k (ILSVRC 2012): WordNet identifiers, which name the folders of its images, and words."""

import re
from typing import List, Optional, Sequence

SYNSET = re.compile(r'n\d{8}')


def imagenet_classes() -> List[str]:
    """Return the names of the classes in the order of their identifiers, as lines ``n01440764 tench, Tinca tinca``."""
    from ..gluon_cv import gluoncv  # imports much

    attributes = gluoncv.data.ImageNet1kAttr()
    return [f'{synset} {words}' for synset, words in zip(attributes.synset, attributes.classes_long)]


def with_words(names: Optional[Sequence[str]]) -> Optional[List[str]]:
    """Return class names with words after the identifiers of ImageNet's classes; other names, and None, as they are.

    Examples
    --------
    >>> from bmx_melius.data.imagenet import with_words
    >>> with_words(['n01440764', 'cat'])
    ['n01440764 tench, Tinca tinca', 'cat']
    """
    if names is None or not any(map(SYNSET.fullmatch, names)):
        return names
    known = {identifier(name): name for name in imagenet_classes()}
    return [known.get(name, name) for name in names]


def identifier(name: str) -> str:
    """Return the identifier at the beginning of a class name of ImageNet, other names as they are.

    Examples
    --------
    >>> from bmx_melius.data.imagenet import identifier
    >>> identifier('n01440764 tench, Tinca tinca'), identifier('tench')
    ('n01440764', 'tench')
    """
    first = name.partition(' ')[0]
    return first if SYNSET.fullmatch(first) else name
