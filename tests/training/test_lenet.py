"""examples/lenet.py: BMXNet-v2's LeNet learns digits, is packed, and gives the same answers."""

import re
import subprocess
import sys

from support.paths import ROOT

EXAMPLE = ROOT / 'examples' / 'lenet.py'


def test_lenet_learns_digits_and_gives_the_same_answers_when_packed(tmp_path):
    arguments = ['--folder', tmp_path, '--epochs', '5', '--channels', '32', '--hidden', '128']
    result = subprocess.run([sys.executable, '-W', 'ignore', EXAMPLE, *arguments], capture_output=True, text=True, check=True)
    trained, packed = re.findall(r'validation top-1 (\d+\.\d)%', result.stdout)[-2:]
    assert float(trained) > 80 and packed == trained
    assert '2 binary layers became 1 packed' in result.stdout
    assert (tmp_path / 'lenet-packed-0000.params').stat().st_size < (tmp_path / 'lenet-0000.params').stat().st_size / 8
