"""Several processes that train one network: they compute what one process does, stop together, and end when one of them is missing."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import mxnet as mx
import numpy as np
import pytest
from support.forked_program import SCRIPT, ForkedProgram
from support.images import make_folders
from support.training_runs import SMALL, state_of, train

from bmx_melius.distributed.heartbeats import INTERVAL, JOIN_TIMEOUT, LOST, TIMEOUT
from bmx_melius.distributed.workers import Workers
from bmx_melius.training.optimization import scaled_rate

NETWORK = ['--model-options', '{"block_numbers": [1, 1], "transitions": [0.5]}']
FLAGS = [*SMALL, *NETWORK, '--num-epochs', '2', '-j', '0', '--kvstore', 'dist_sync']  # 30 images: 3 updates of 8
ENVIRONMENT = {**os.environ, 'OMP_NUM_THREADS': '1', INTERVAL: '1', TIMEOUT: '3', JOIN_TIMEOUT: '120'}


@pytest.fixture(scope='module')
def flags(make_once):
    return [*FLAGS, '--data-dir', str(make_once('images', make_folders))]


@pytest.fixture(scope='module')
def one_process(flags, make_once):
    """The folder of a run of one process with two devices: as many images in an update, normalized in the same halves."""

    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(mx.context, 'num_gpus', lambda: 2)
            patch.setattr(mx, 'gpu', mx.cpu)  # two contexts of the CPU represent two GPUs
            train(*flags, '--kvstore', 'device', '--num-gpus', '2', '--save-dir', folder / 'run')

    return make_once('run-of-two-devices', make) / 'run'


def assert_same_end(folder, other):
    """Both runs have the same weights, running statistics, moments of the optimizer and results, but for rounding."""
    states = [state_of(folder), state_of(other)]
    assert states[0]['weights'] == states[1]['weights']
    arrays, expected = (mx.nd.load(str(path / state['weights'])) for path, state in zip((folder, other), states))
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array.asnumpy(), expected[name].asnumpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    rows = [state['progress']['history'][-1] for state in states]
    for column in ('loss', 'train_top1', 'top1', 'top5', 'macro_f1', 'learning_rate'):
        assert rows[0][column] == pytest.approx(rows[1][column], rel=1e-4), column


INCOMPLETE = ('scheduler', 'server', 'worker')  # without the second worker


def start_job(*arguments, roles=('scheduler', 'server', 'worker', 'worker'), worker=(SCRIPT,), **further):
    """A scheduler, a server and two workers on this machine, as the variables of MXNet's parameter servers tell them.

    `worker`: the program of workers, in the place of train_imagenet.py.
    """
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    environment = {
        **ENVIRONMENT,
        **further,
        'DMLC_PS_ROOT_URI': '127.0.0.1',
        'DMLC_PS_ROOT_PORT': str(port),
        'DMLC_NUM_WORKER': '2',
        'DMLC_NUM_SERVER': '1',
    }
    return [
        subprocess.Popen(
            [sys.executable, *(worker if role == 'worker' else (SCRIPT,)), *map(str, arguments)],
            env={**environment, 'DMLC_ROLE': role},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for role in roles
    ]


def end_of_job(processes):
    """(status, output) of each process, once all have ended."""
    try:
        return [(process.wait(), output) for process in processes for output in [process.communicate(timeout=240)[0]]]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.parametrize(
    'launcher, kvstore',
    [
        (['bmx_melius.distributed.launcher', '-n', '2', '-s', '1', '--launcher', 'local'], 'dist_sync'),
        (['horovod.runner.launch', '-np', '2', '-H', 'localhost:2'], 'horovod'),
    ],
)
def test_a_job_ends_like_one_process_with_as_many_devices(launcher, kvstore, flags, one_process, tmp_path):
    if kvstore == 'horovod':
        pytest.importorskip('horovod.mxnet', reason='Horovod with MXNet is not installed')
    program = [sys.executable, SCRIPT, *flags, '--kvstore', kvstore, '--save-dir', str(tmp_path / 'run')]
    command = [sys.executable, '-m', *launcher, *program]
    done = subprocess.run(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout
    assert_same_end(tmp_path / 'run', one_process)
    if kvstore == 'dist_sync':
        assert done.stdout.count('epoch 1, update 1 of 3') == 1, 'one process reports'
        assert 'exported to' in done.stdout and (tmp_path / 'run' / 'meliusnet_flex-0000.params').exists()


@pytest.mark.long
def test_a_job_whose_worker_was_killed_then_one_interrupted_and_resumed_ends_like_the_uninterrupted_one(flags, one_process, tmp_path):
    run = tmp_path / 'run'

    def wait_for(line, processes):
        log = run / 'experiment.log'
        while not (log.exists() and line in log.read_text()):
            assert all(process.poll() is None for process in processes), end_of_job(processes)
            time.sleep(0.01)

    processes = start_job(*flags, '--save-interval', '1', '--save-dir', run)
    wait_for('epoch 1, update 2', processes)
    processes[2].kill()
    ended = end_of_job(processes)
    assert [status for status, _ in ended] == [LOST, LOST, -signal.SIGKILL, LOST], ended
    assert 'a process is missing: worker ' in ended[0][1]
    assert 'a process is missing: the scheduler' in ended[3][1] and f'--resume --save-dir {run}' in ended[3][1]
    position = state_of(run)['progress']
    assert position['batch'] > 0 or position['epoch'] > 0, 'the epoch is not lost'

    processes = start_job('--resume', '--save-dir', run)
    wait_for('epoch 2, update 1', processes)
    for process in processes[:3]:  # the scheduler, the server and one worker
        process.send_signal(signal.SIGTERM)
    ended = end_of_job(processes)
    assert [status for status, _ in ended] == [0, 0, 128 + signal.SIGTERM, 128 + signal.SIGTERM], ended
    shutil.copytree(run, tmp_path / 'stopped')

    ended = end_of_job(start_job('--resume', '--save-dir', run))
    assert [status for status, _ in ended] == [0, 0, 0, 0], ended
    assert ended[0][1] == ended[1][1] == '', 'scheduler and server have nothing to say'
    assert_same_end(run, one_process)

    stopped = state_of(tmp_path / 'stopped')['progress']
    assert stopped['epoch'] == 1 and stopped['batch'] >= 1
    train('--resume', '--save-dir', tmp_path / 'stopped', '--kvstore', 'dist_sync', status=2)  # without the other processes


def test_a_job_that_lacks_a_worker_ends_after_the_join_timeout(flags, tmp_path):
    processes = start_job(*flags, '--save-dir', tmp_path / 'run', roles=INCOMPLETE, **{JOIN_TIMEOUT: '1'})
    for status, output in end_of_job(processes):
        assert status == LOST and 'not all of its processes have joined within 1 s' in output


def test_a_job_that_has_not_begun_ends_at_the_first_signal(flags, tmp_path):
    processes = start_job(*flags, '--save-dir', tmp_path / 'run', roles=INCOMPLETE)
    time.sleep(2)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    assert {status for status, _ in end_of_job(processes)} <= {-signal.SIGTERM, 128 + signal.SIGTERM}


# A worker of another program: each sends an optimizer as MXNet does, whose pickle creates a file where it is read, and then trains nothing.
FOREIGN_WORKER = """
import os, pickle, sys
role = os.environ.pop('DMLC_ROLE')
import mxnet as mx
os.environ['DMLC_ROLE'] = role

class Optimizer:
    def __reduce__(self):
        return open, (sys.argv[-1] + '/executed', 'w')

kvstore = mx.kv.create('dist_sync')
kvstore._send_command_to_servers(0, pickle.dumps(Optimizer(), 0).decode())
kvstore._barrier()
"""


def test_a_server_does_not_unpickle_what_is_sent_to_it(flags, tmp_path):
    processes = start_job(*flags, '--save-dir', tmp_path, worker=('-c', FOREIGN_WORKER))
    ended = end_of_job(processes)
    assert not (tmp_path / 'executed').exists()
    assert [status for status, _ in ended] == [0, 0, 0, 0], ended
    assert ended[1][1].count('refused a command') == 2, ended


@pytest.mark.parametrize('role', ['scheduler', 'server'])
def test_a_process_of_the_job_can_be_asked_whether_it_has_begun_before_mxnet_runs_it(role):
    ask = (
        'from bmx_melius.distributed.heartbeats import SCHEDULER, Heartbeats\n'
        f'import os; os.environ["DMLC_ROLE"] = {role!r}\n'  # MXNet would run the process while it is imported
        'heartbeats = Heartbeats("dist", SCHEDULER, "")\n'
        'heartbeats.start()\n'
        'assert not heartbeats.has_begun()\n'
        'heartbeats.stop()'
    )
    done = subprocess.run([sys.executable, '-c', ask], env=ENVIRONMENT, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, '')


@pytest.mark.parametrize('value', ['0', '1.5', 'soon', ''])
def test_a_time_that_is_no_number_of_seconds_is_named(value, flags, tmp_path):
    environment = {**ENVIRONMENT, TIMEOUT: value, 'DMLC_ROLE': 'server'}
    with ForkedProgram(*flags, '--save-dir', tmp_path / 'run', environment=environment) as process:
        output = process.stdout.read()
    assert process.returncode == 2 and f'error: {TIMEOUT} is {value!r}' in output and len(output.splitlines()) == 1


def test_running_statistics_of_several_devices_become_their_mean():
    net = mx.gluon.nn.BatchNorm(in_channels=3)
    net.initialize(ctx=[mx.cpu(0), mx.cpu(1)])
    for device in (0, 1):
        net.running_mean.data(mx.cpu(device))[:] = [device, 2 * device, 5]
    Workers().average_statistics(net)
    for device in (0, 1):
        np.testing.assert_array_equal(net.running_mean.data(mx.cpu(device)).asnumpy(), [0.5, 1, 5])
        np.testing.assert_array_equal(net.running_var.data(mx.cpu(device)).asnumpy(), [1, 1, 1])


@pytest.mark.parametrize('scaling,expected', [('none', 0.002), ('linear', 0.008), ('sqrt', 0.004)])
def test_the_learning_rate_is_scaled_by_the_chosen_rule(scaling, expected):
    assert scaled_rate(0.002, 256, scaling) == pytest.approx(expected)
    assert scaled_rate(0.002, 64, scaling) == pytest.approx(0.002)


def test_missing_horovod_is_an_error_with_installation_instructions(flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'horovod.mxnet', None)
    train(*flags, '--kvstore', 'horovod', '--save-dir', tmp_path / 'run', status=2)
    assert 'HOROVOD_WITH_MXNET=1 pip install' in capsys.readouterr().err


def test_launcher_without_hosts_names_the_flags_for_them():
    command = [sys.executable, '-m', 'bmx_melius.distributed.launcher', '-n', '2', '-s', '1', 'true']
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1 and '--launcher local' in done.stderr
