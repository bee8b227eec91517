"""Published figures of the networks of this zoo, as printed; `bmx-melius tables` compares them with the counts of this project."""

import dataclasses
from typing import Tuple

PAPER = 'Bethge et al. 2020, arXiv:2001.05936, tables 2 and 4'
LOGS = "the authors' training logs, github.com/hpi-xnor/BMXNet-v2-wiki, CurrentBestResults"
ABOUT_2_4 = 'table 3 prints about 2.4 OPs, which 2-bit weights and activations would have'
MOBILENET = 'Howard et al. 2017, arXiv:1704.04861, tables 6 and 7'


@dataclasses.dataclass(frozen=True)
class Row:
    """A network and its published figures, as strings; empty if not published.

    Attributes
    ----------
    network, initial_layers : str
        Arguments of `model_zoo.get_model`; an empty `initial_layers` is not passed on.
    bops, flops, ops : str
        In units of 10^9, 10^8 and 10^8.
    size : str
        In MB of 2^20 bytes.
    top1, top5 : str
        Accuracy on the validation set of ImageNet in percent.
    note : str
        Contradictions between the figures, or to the network.
    """

    network: str
    initial_layers: str
    bops: str = ''
    flops: str = ''
    ops: str = ''
    size: str = ''
    top1: str = ''
    top5: str = ''
    note: str = ''


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows from one source."""

    title: str
    source: str
    rows: Tuple[Row, ...]


def _stems(network, *figures):
    return tuple(
        Row(network, stem, ops=ops, size=size, top1=top1, top5=top5, note=note)
        for stem, (ops, size, top1, top5, note) in zip(('imagenet', 'grouped_stem'), figures)
    )


TABLES = (
    Table(
        'The networks of the paper',
        PAPER,
        (
            Row('meliusnet22', 'grouped_stem', '4.62', '1.35', '2.08', '3.9', '63.6', '84.7'),
            Row('meliusnet29', 'grouped_stem', '5.47', '1.29', '2.14', '5.1', '65.8', '86.2'),
            Row('meliusnet42', 'grouped_stem', '9.69', '1.74', '3.25', '10.1', '69.2', '88.3'),
            Row(
                'meliusnet59',
                'grouped_stem',
                '18.3',
                '2.45',
                '5.25',
                '17.4',
                '71.0',
                '89.7',
                '5.25 is a misprint: its own figures give 18.3 / 64 + 2.45 = 5.31',
            ),
            Row('meliusneta', 'grouped_stem', '4.85', '0.86', '1.62', '4.0', '63.4', '84.2'),
            Row('meliusnetb', 'grouped_stem', '5.72', '1.06', '1.96', '5.0', '65.7', '85.9'),
            Row('meliusnetc', 'grouped_stem', '4.35', '0.82', '1.50', '4.5', '64.1', '85.0'),
        ),
    ),
    Table(
        'One 7x7 convolution or a grouped stem',
        LOGS,
        (
            *_stems('resnet_e18', ('1.63', '4.0', '60.0', '81.9', ''), ('1.14', '3.98', '60.6', '82.4', '')),
            *_stems('resnet_e34', ('1.92', '5.23', '63.2', '84.7', 'the paper prints 1.93'), ('1.43', '5.21', '63.7', '84.9', '')),
            *_stems('binary_densenet28', ('2.58', '4.04', '61.7', '83.3', ''), ('2.09', '4.03', '62.6', '84.0', '')),
            *_stems('binary_densenet37', ('2.70', '5.13', '63.3', '84.4', 'the paper prints 2.71'), ('2.20', '5.12', '64.2', '85.1', '')),
            *_stems(
                'meliusnet22', ('2.58', '3.89', '62.9', '84.3', 'the paper prints 2.57, cut off'), ('2.08', '3.88', '63.6', '84.7', '')
            ),
            *_stems(
                'meliusnet29', ('2.64', '5.08', '64.9', '85.7', 'the paper prints 2.63, cut off'), ('2.14', '5.07', '65.8', '86.2', '')
            ),
        ),
    ),
    Table(
        'Compact float networks',
        MOBILENET,
        (
            Row('mobilenet0.5', '', flops='1.49', ops='1.49', top1='63.7'),
            Row('mobilenet0.75', '', flops='3.25', ops='3.25', top1='68.4'),
            Row(
                'mobilenet1.0',
                '',
                flops='5.69',
                ops='5.69',
                top1='70.6',
                note='569 million includes the last layer, 1 million; here only convolutions are counted',
            ),
        ),
    ),
    Table(
        'Other methods with one binary base',
        'Bethge et al. 2020, arXiv:2001.05936, table 3, and for QuickNet and AlexNet https://docs.larq.dev/zoo/, version 1.0 and 0.2.0',
        (
            Row('resnet18_bnn', 'imagenet', top1='42.2', note='table 3 prints 1.57 OPs and not what they consist of'),
            Row('resnet18_xnor', 'imagenet', top1='51.2', note='table 3 prints 1.59 OPs, likewise'),
            Row('resnet18_xnorpp', 'imagenet', top1='57.1', note='table 3 prints 1.59 OPs, likewise'),
            Row('resnet18_strong_baseline', 'imagenet', top1='60.9', note='table 3 prints 1.82 OPs, likewise'),
            Row('alexnet_xnor', 'alexnet', top1='44.96', top5='69.18'),
            Row(
                'quicknet',
                'quicknet',
                top1='63.3',
                top5='84.6',
                note='published are 4.17 MB, with blurring filters, which are pooling here',
            ),
            Row('quicknet_large', 'quicknet', top1='66.9', top5='87.0', note='published are 5.40 MB, likewise'),
        ),
    ),
    Table(
        'Low-bit quantization, and several binary bases',
        'Bethge et al. 2020, arXiv:2001.05936, table 3',
        (
            Row('resnet18_bwn', 'imagenet', ops='18.1', size='4.0', top1='60.8'),
            Row('resnet18_ttq', 'imagenet', ops='18.1', size='5.3', top1='66.6'),
            Row('resnet18_hwgq', 'imagenet', size='4.0', top1='59.6', note=ABOUT_2_4),
            Row('resnet34_hwgq', 'imagenet', top1='64.3', note='table 3 prints about 3.4 OPs and 5.1 MB'),
            Row('resnet18_lqnet_w1a2', 'imagenet', size='4.0', top1='62.6', note='about 2.4 OPs, likewise'),
            Row('resnet34_lqnet_w1a2', 'imagenet', top1='66.6', note='about 3.4 OPs and 5.1 MB, likewise'),
            Row('resnet18_syq_w1a2', 'imagenet', size='4.0', top1='55.4', note='about 2.4 OPs, likewise'),
            Row('resnet18_dorefa_w2a2', 'imagenet', ops='2.4', size='5.3', top1='62.6'),
            Row('resnet18_benn', 'imagenet', top1='61.0'),
            Row('resnet18_cbcn', 'imagenet', top1='61.4'),
            Row('resnet18_abcnet', 'imagenet', ops='7.8', size='8.7', top1='65.0'),
            Row(
                'groupnet18',
                'imagenet',
                ops='2.68',
                top1='67.0',
                note='published are 9.2 MB, the size with one BN for all bases of a layer',
            ),
            Row('groupnet34', 'imagenet', ops='4.13', top1='70.5', note='published are 15.3 MB, likewise'),
        ),
    ),
    Table(
        'Other networks of the zoo',
        '',
        (
            Row('binary_densenet45', 'grouped_stem'),
            Row('naivenet17', 'grouped_stem'),
            Row('birealnet18', 'imagenet'),
            Row('birealnet34', 'imagenet'),
            Row('resnet34_bnn', 'imagenet'),
            Row('resnet34_xnor', 'imagenet'),
            Row('resnet34_xnorpp', 'imagenet'),
            Row('resnet34_strong_baseline', 'imagenet'),
            Row('real_to_binary18', 'imagenet'),
            Row('real_to_binary34', 'imagenet'),
            Row('reactnet18', 'imagenet'),
            Row('reactnet34', 'imagenet'),
            Row('quicknet_small', 'quicknet'),
            Row('resnet34_bwn', 'imagenet'),
            Row('resnet34_ttq', 'imagenet'),
            Row('resnet34_dorefa_w2a2', 'imagenet'),
            Row('resnet34_syq_w1a2', 'imagenet'),
            Row('resnet34_abcnet', 'imagenet'),
            Row('resnet34_cbcn', 'imagenet'),
            Row('resnet34_benn', 'imagenet'),
            Row('meliusnet_32bit', 'imagenet'),
            Row('densenet_32bit', 'imagenet'),
            Row('resnet18_v1', ''),
            Row('resnet34_v1', ''),
        ),
    ),
)
