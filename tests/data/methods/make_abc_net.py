"""Make ``abc_net.npz``: a convolution of a third party's ABC-Net, in float32. The authors of ABC-Net published no code.

Repository github.com/layog/Accurate-Binary-Convolution-Network at commit 37c3a2f285c8, ``ABC.ipynb``, with tensorflow-cpu 2.13.1:
``python make_abc_net.py CHECKOUT``.

The scales alpha are variables there, which Adam fits to the weights: 20,000 of its updates are run. Signs have no gradient in TensorFlow,
so only the gradient of beta is stored. Signs of 0 are 0 there; the random values have none.
"""

import json
import pathlib
import sys

import numpy as np
import tensorflow
from recording import channels_first, commit_of, save, to_mxnet

tf = tensorflow.compat.v1
BASES, UPDATES = 5, 20000


def functions(notebook):
    """Return what the code of a notebook before its tests defines."""
    names = {'range': lambda *numbers: list(range(*numbers))}  # as in Python 2
    for cell in json.loads(pathlib.Path(notebook).read_text(encoding='utf-8'))['cells']:
        source = ''.join(cell['source'])
        if source.startswith('## Testing'):
            return names
        if cell['cell_type'] == 'code':
            exec(source, names)
    raise ValueError(f'{notebook} has no tests')


def main():
    (checkout,) = sys.argv[1:]
    tf.disable_eager_execution()
    sys.modules['tensorflow'] = tf
    code = functions(pathlib.Path(checkout) / 'ABC.ipynb')
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(2, 6, 6, 4)).astype(np.float32), (random.normal(0.1, 0.5, (3, 3, 4, 3))).astype(np.float32)
    shifts, betas = random.uniform(-0.5, 1.5, (BASES, 1)), random.normal(1, 0.25, (BASES, 1))
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)
        fit, layer, _ = code['ABC'](weight, padding='SAME')
        y = layer(tf.constant(x))
        dy = random.normal(size=y.shape).astype(np.float32)
        variables = {variable.op.name.rsplit('/')[-1]: variable for variable in tf.trainable_variables()}
        (dbeta,) = tf.gradients(tf.reduce_sum(y * dy), [variables['betas']])
        bases = code['get_binary_filters'](tf.constant(weight), BASES)
        session.run(tf.global_variables_initializer())
        variables['shift_parameters'].load(shifts, session)
        variables['betas'].load(betas, session)
        for _ in range(UPDATES):
            session.run(fit)
        alphas, result, gradient, signs = session.run([variables['alphas'], y, dbeta, bases])
    case = {'x': channels_first(x), 'y': channels_first(result), 'dy': channels_first(dy), 'weight': to_mxnet(weight)}
    case['bases'] = np.stack([to_mxnet(base) for base in signs])
    vectors = {'shift': shifts, 'beta': betas, 'alpha': alphas, 'dbeta': gradient}
    case.update({name: array.ravel() for name, array in vectors.items()})
    repository = 'github.com/layog/Accurate-Binary-Convolution-Network'
    versions = {'commit': commit_of(checkout), 'tensorflow-cpu': tensorflow.__version__, 'numpy': np.__version__}
    save('abc_net', {'layer': case}, repository=repository, **versions)


if __name__ == '__main__':
    main()
