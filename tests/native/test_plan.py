"""The planner of the engine, pass by pass: what becomes one step, where values lie, in which order steps run."""

import random
import subprocess

from support.random_programs import Maker


def test_every_pass_of_planning_is_correct_on_small_and_on_random_programs(build_native, tmp_path, long_run):
    program = build_native('tests/csrc/plan_test.cc', None, 'sanitized')
    paths = []
    for seed in range(5000 if long_run else 300):
        maker = Maker(random.Random(seed), exact=seed % 2 == 0)
        paths.append(tmp_path / f'program {seed}')
        maker.program(random.Random(seed).randint(1, 40)).to_words().tofile(paths[-1])
    done = subprocess.run([program, *paths], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
