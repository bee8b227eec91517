"""The command that converts networks: its report, its arguments, and the description of the input."""

import json

import bmx_melius as bmx

pytest_plugins = ['support.conversions']  # its fixtures


def test_command_prints_the_report_as_text_or_json(small, run, tmp_path):
    arguments = ['convert', *small, tmp_path / 'packed', '--input-shape', '1,3,8,8']
    status, output, _ = run(*arguments)
    assert status == 0 and '1 binary layer became 1 packed' in output and 'verified on a sample' in output
    status, output, _ = run(*arguments, '--no-verify', '--half', '--json')
    report = json.loads(output)
    assert status == 0 and report['packed_operators'] == 1 and report['verification'] is None and report['half']
    status, output, _ = run('convert', *small, tmp_path / 'packed-symbol.json', '--input-shape', 'data=1,3,8,8')
    assert status == 0 and sorted(path.name for path in tmp_path.glob('packed*')) == ['packed-0000.params', 'packed-symbol.json']


def test_command_takes_the_prefix_of_both_files_or_their_names(small, run, tmp_path):
    symbol, params = small
    for names in (['net'], ['net-symbol.json'], [symbol, params]):
        source = [tmp_path / name for name in names]
        assert run('convert', *source, tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0
        assert bmx.Session(tmp_path / 'packed').input_shapes == [(None, 3, 8, 8)]
        for written in tmp_path.glob('packed*'):
            written.unlink()
    params.rename(tmp_path / 'net-0007.params')
    assert run('convert', symbol, tmp_path / 'net-0007.params', tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0


def test_command_takes_the_shape_from_the_summary_and_stores_it_in_the_symbol(small, run, tmp_path):
    assert 'give the shape of the input with --input-shape' in run('convert', *small, tmp_path / 'packed')[2]
    assert 'there is no folder' in run('convert', *small, tmp_path / 'none' / 'packed', '--input-shape', '1,3,8,8')[2]
    spec = {'size': 8, 'resize': 9, 'channels': 3, 'mean': [0, 0, 0], 'std': [1, 1, 1]}
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': spec, 'class_names': ['a']}))
    assert run('convert', *small, tmp_path / 'packed')[0] == 0
    assert bmx.Session(tmp_path / 'packed').class_names == ['a']
    assert not (tmp_path / 'packed-summary.json').exists()
    (tmp_path / 'net-summary.json').rename(tmp_path / 'packed-summary.json')
    assert run('convert', *small, tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0
    assert not (tmp_path / 'packed-summary.json').exists(), 'of another network'
    assert bmx.Session(tmp_path / 'packed').class_names is None
