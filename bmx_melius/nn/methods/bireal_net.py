"""Bi-Real Net: Liu et al. 2018, arXiv:1808.00278; layers as in the authors' code in PyTorch (github.com/liuzechun/Bi-Real-net).

Forward, for filters W with n weights::

    y = conv(sign(x), Wb),    Wb = alpha sign(W),    alpha = mean |W| of the filter

Backward (equation 5 for x; W as in the code)::

    dx = d sign(x) (2 - 2|x|) 1[|x| <= 1],    dW = dWb 1[|W| <= 1]

The paper's magnitude-aware gradient (equation 7) has another factor, alpha: dW = alpha dWb 1[|W| <= 1]. That is
``scaling_gradient=False``; Larq computes it, too. The code does not clip the latent weights, which therefore stop where they leave [-1, 1].

ReActNet has the same layer (`bmx_melius.nn.methods.reactnet`). sign(0) is +1, in the code 0, and padding is -1, in the code 0.
"""

# Arguments of `bmx_melius.BinaryConv2D`; the threshold of sign is 1.
BIREAL_CONVOLUTION = {
    'activation_method': 'approx_sign',
    'apply_scaling': True,
    'scaling_gradient': 'straight_through',
    'weight_threshold': 1,
    'clip_weights': False,
}
