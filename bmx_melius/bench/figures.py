"""Summary figures from measured rows and steps. A figure is None if a row that it needs is missing or failed."""

from .rows import BATCH, LAYERS, WIDTHS

FLOAT_FORMS = ('exported', 'folded', 'thresholds')


def from_steps(steps, seconds, peaks):
    """Return the percentages of the machine's peaks that the steps of each kind reach, and the time at these peaks.

    Parameters
    ----------
    steps : list of StepTime
    seconds : float
        Time of a run.
    peaks : dict of kind to float
        Peak multiply-accumulates per second of as many threads as the steps used; 0 if it is not known.
    """
    working = [step for step in steps if step.macs]
    known = all(peaks[step.kind] for step in working)
    floor = sum(step.macs / peaks[step.kind] for step in working) if known else 0
    layers = {step.name: 100 * step.macs / step.seconds / peaks['binary'] for step in working if step.kind == 'binary'}
    return {
        'binary_peak_percent': _share(working, 'binary', peaks),
        'binary_peak_percent_by_layer': layers,
        'binary_peak_percent_least': min(layers.values(), default=None),
        'float_peak_percent': _share(working, 'float', peaks),
        'int8_peak_percent': _share(working, 'int8', peaks),
        'floor_ms': floor * 1e3 if floor else None,
        'floor_ratio': seconds / floor if floor else None,
    }


def _share(steps, kind, peaks):
    chosen = [step for step in steps if step.kind == kind]
    seconds = sum(step.seconds for step in chosen)
    return 100 * sum(step.macs for step in chosen) / seconds / peaks[kind] if seconds and peaks[kind] else None


def from_rows(results):
    """Return the ratios of a comparison.

    ``speedup`` is the time of another library divided by the time of the packed network, ``time_to`` the inverse.

    Parameters
    ----------
    results : dict of row key to dict
        The result of `comparison.compare`.
    """

    def seconds(*keys, which='seconds'):
        """Return the median time, or another one, of the fastest of these rows, or None."""
        return min((results[key][which] for key in keys if which in results.get(key, {})), default=None)

    def ratio(slow, fast):
        return None if slow is None or fast is None else slow / fast

    packed = seconds('packed')
    images = results.get('packed', {}).get('images', 1)
    one_thread = seconds('packed one thread') or packed
    batch = seconds(f'packed batch {BATCH}')
    figures = {
        'time_of_int8_to_float_ratio': ratio(seconds('packed'), seconds('packed float')),
        'time_of_int8_to_float_ratio_least': ratio(seconds('packed', which='least'), seconds('packed float', which='least')),
        'speedup_over_mxnet_exported': ratio(seconds('mxnet float exported'), packed),
        'speedup_over_mxnet_float': ratio(seconds(*(f'mxnet float {form}' for form in FLOAT_FORMS)), packed),
        'speedup_over_onnxruntime_model': ratio(seconds('onnxruntime model'), packed),
        'speedup_of_two_threads': ratio(one_thread, seconds('packed two threads')),
        'busy_two_threads_ratio': ratio(seconds('busy two threads'), seconds('busy one thread')),
        f'throughput_of_batch_{BATCH}_ratio': None if None in (packed, batch) else ratio(packed / images, batch / BATCH),
        'time_in_mxnet_to_session_ratio': ratio(seconds('packed in mxnet'), packed),
        'time_to_mxnet_resnet18_v1_ratio': ratio(packed, seconds('mxnet resnet18_v1')),
        'time_to_mxnet_resnet18_v1_fused_ratio': ratio(packed, seconds('mxnet resnet18_v1 fused')),
    }
    for width in WIDTHS:
        for library, forms in (('mxnet', ('', ' fused')), ('onnxruntime', ('', ' int8')), ('litert', ('', ' int8'))):
            for form in forms:
                row = f'{library} mobilenet{width}{form}'
                figures[f'time_to_{row.replace(" ", "_")}_ratio'] = ratio(packed, seconds(row))
    figures['speedup_over_larq'] = ratio(seconds('larq meliusnet22 default', 'larq meliusnet22 best settings'), packed)
    for channels, size in LAYERS:
        name = f'{channels}@{size}'
        ours = f'layer {name}'
        figures[f'speedup_over_openvino_{name}'] = ratio(seconds(f'{ours} openvino'), seconds(ours))
        figures[f'speedup_over_openvino_{name}_convolution_alone'] = ratio(
            fact(results, f'{ours} openvino', 'convolution_seconds'), fact(results, ours, 'convolution_seconds')
        )
        figures[f'speedup_avx2_over_mxnet_avx2_{name}'] = ratio(seconds(f'{ours} mxnet avx2'), seconds(f'{ours} avx2'))
    return figures


def fact(results, key, name):
    """Return a fact that the worker of a row reported in addition to its times, or None."""
    return results.get(key, {}).get('facts', {}).get(name)
