"""Estimates of the code and the stack of an exported network: what GCC 12.2 makes of the kernels for a Cortex-M3 with -Os."""

# Bytes of each function, of a template with the types that need most. `make test-mcu` compares the total with that of a network.
FUNCTION_BYTES = {
    'bmx_abs_value': 106,
    'bmx_add_value_result': 90,
    'bmx_affine_value': 88,
    'bmx_avg_pool_value': 276,
    'bmx_binary_conv_result': 446,
    'bmx_channel_mean_value': 262,
    'bmx_clear_bits': 18,
    'bmx_clip_value': 114,
    'bmx_conv_planar_weight': 306,
    'bmx_conv_value_weight': 334,
    'bmx_copy_bit': 88,
    'bmx_copy_bits': 56,
    'bmx_copy_value_result': 68,
    'bmx_decay': 200,
    'bmx_differing': 276,
    'bmx_elu_value': 114,
    'bmx_expand': 84,
    'bmx_flatten_bits': 86,
    'bmx_flip': 50,
    'bmx_from_f16': 58,
    'bmx_gather_taps': 206,
    'bmx_gelu_value': 276,
    'bmx_long_mean_value': 172,
    'bmx_max_pool_value': 282,
    'bmx_maximum_value_result': 110,
    'bmx_mean_value': 98,
    'bmx_multiply_add': 756,
    'bmx_multiply_value': 116,
    'bmx_prelu_value': 102,
    'bmx_relu_value': 90,
    'bmx_shift_value': 116,
    'bmx_shuffle_value_result': 106,
    'bmx_sigmoid_value': 128,
    'bmx_tap_columns': 28,
    'bmx_tap_rows': 28,
    'bmx_taps_within': 60,
    'bmx_threshold_value': 190,
    'bmx_transpose_value_result': 108,
    'bmx_upsample_value': 162,
}
_CALL_BYTES = 30  # of a call with its arguments
_NORMALIZE_BYTES = 60

# Of GCC's library for processors without floating-point unit: comparisons, the rest of single and of double precision.
_COMPARISON_BYTES, _SINGLE_BYTES, _DOUBLE_BYTES = 130, 1300, 1900
_WITH_SINGLE = ('bmx_multiply_add', 'bmx_mean', 'bmx_avg_pool', 'bmx_add_', 'bmx_prelu', 'bmx_multiply', 'bmx_shift')
_WITH_DOUBLE = ('bmx_long_mean', 'bmx_channel_mean')

STACK_BYTES = 512  # limit for a run: `make test-mcu` measures 400 at most, with -Os and -O2


def code_bytes(functions, calls, normalizes):
    """Return the estimated bytes of code.

    Parameters
    ----------
    functions : dict of str to str
        Each function that a network uses, and the template it is made of.
    calls : int
        Number of calls in the function that runs the network.
    normalizes : bool
        Whether there is a function that normalizes images.
    """
    total = sum(FUNCTION_BYTES.get(template, 0) for template in functions.values()) + _CALL_BYTES * calls
    total += _NORMALIZE_BYTES if normalizes else 0
    if normalizes or any(name.startswith(_WITH_SINGLE + _WITH_DOUBLE) for name in functions):
        total += _SINGLE_BYTES
    elif any('f32' in name for name in functions):
        total += _COMPARISON_BYTES
    return total + (_DOUBLE_BYTES if any(name.startswith(_WITH_DOUBLE) for name in functions) else 0)
