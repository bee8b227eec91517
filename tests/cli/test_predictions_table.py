"""``bmx-melius predict --csv``: a row for each image, in a file that is complete or not there, or on standard output."""

import csv
import io
import json
import sys

import pytest
from mxnet.gluon import nn
from support.classifiers import NAMES, classifier, describe, write_image


@pytest.fixture
def prefix(tmp_path):
    classifier(nn.Conv2D(4, 3, 2)).export(str(tmp_path / 'net'))
    describe(tmp_path / 'net')
    return tmp_path / 'net'


@pytest.fixture
def photos(tmp_path):
    (tmp_path / 'photos').mkdir()
    for seed, name in enumerate(('a, "b".png', 'c.png')):
        write_image(tmp_path / 'photos' / name, seed=seed)
    return tmp_path / 'photos'


def rows_of(text):
    return list(csv.reader(io.StringIO(text)))


def test_the_table_has_the_predictions_of_json(run, prefix, photos, tmp_path):
    expected = json.loads(run('predict', prefix, photos, '--top', '2', '--json')[1])['predictions']
    status, output, _ = run('predict', prefix, photos, '--top', '2', '--csv', tmp_path / 'table.csv')
    assert status == 0 and output == f'{tmp_path}/table.csv: 2 images\n'
    header, *rows = rows_of((tmp_path / 'table.csv').read_text())
    assert header == ['image', 'class_1', 'class_2', 'probability_1', 'probability_2']
    for row, prediction in zip(rows, expected):
        top = prediction['top']
        assert row[:3] == [prediction['image'], *(one['name'] for one in top)]
        assert [float(value) for value in row[3:]] == [one['probability'] for one in top]
    assert rows_of(run('predict', prefix, photos, '--top', '2', '--csv', '-')[1]) == [header, *rows]


def test_there_are_no_more_columns_than_classes_and_numbers_where_there_are_no_names(run, prefix, photos):
    describe(prefix, class_names=None)
    header, first, _ = rows_of(run('predict', prefix, photos, '--top', '100', '--csv', '-')[1])
    assert len(header) == 1 + 2 * len(NAMES)
    assert sorted(first[1 : 1 + len(NAMES)]) == [str(number) for number in range(len(NAMES))]


def test_unreadable_images_have_no_row_and_are_named(run, prefix, photos, tmp_path):
    (photos / 'b.png').write_bytes(b'no image')
    status, _, errors = run('predict', prefix, photos, '--csv', tmp_path / 'table.csv')
    assert status == 2 and 'b.png cannot be decoded' in errors
    assert len(rows_of((tmp_path / 'table.csv').read_text())) == 1 + 2


@pytest.mark.parametrize('terminal,shown', [(True, 'c\\x1b[31m.png'), (False, 'c\x1b[31m.png')])
def test_control_characters_of_names_reach_no_terminal_and_stay_in_data(run, prefix, photos, monkeypatch, capsys, terminal, shown):
    (photos / 'c.png').rename(photos / 'c\x1b[31m.png')
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: terminal, raising=False)
    _, _, second = rows_of(run('predict', prefix, photos, '--csv', '-')[1])
    assert second[0] == f'{photos}/{shown}'


def test_mistakes_leave_an_older_table_unchanged(run, prefix, photos, tmp_path):
    (tmp_path / 'table.csv').write_text('old')
    assert run('predict', prefix, tmp_path / 'none', '--csv', tmp_path / 'table.csv')[0] == 2
    assert (tmp_path / 'table.csv').read_text() == 'old'
    status, output, errors = run('predict', prefix, photos, '--csv', tmp_path / 'none' / 'table.csv')
    assert status == 2 and output == '' and 'there is no folder' in errors
    status, _, errors = run('predict', prefix, photos, '--csv', '-', '--json')
    assert status == 2 and 'not allowed with argument --csv' in errors
