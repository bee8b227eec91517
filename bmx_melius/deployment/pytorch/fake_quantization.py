"""Fake quantization (`torch.ao.quantization`, `torchao`) in plain operators: those that exporters write for it have 8 bits only in ONNX."""

import copy

from .package import import_torch_package

_PACKAGES = 'torch.', 'torchao.'  # a subclass with a forward of its own may compute something else
_ATTRIBUTES = ('fake_quant_enabled', 'observer_enabled', 'scale', 'zero_point', 'quant_min', 'quant_max', 'ch_axis', 'is_per_channel')


def without_observers(module):
    """Stop the observers of fake quantization in a module, which would change its ranges in evaluation mode as well; return the module."""
    for each in _quantizers(module):
        each.observer_enabled.zero_()
    return module


def in_plain_operators(module):
    """Return a module that computes the same as another one, with its fake quantization in operators that exporters write for any bits.

    Parameters
    ----------
    module : torch.nn.Module
        In evaluation mode and without observers. It stays as it is.

    Returns
    -------
    torch.nn.Module
        The module itself if it has no fake quantization, otherwise a copy.
    """
    torch = import_torch_package()
    found = (each for each in _quantizers(module) if type(each).forward.__module__.startswith(_PACKAGES))
    replaced = {id(each): _rounded(torch, each) for each in found if each.fake_quant_enabled[0]}
    return copy.deepcopy(module, replaced) if replaced else module


def _quantizers(module):
    """Return the modules that quantize as `torch.ao.quantization.FakeQuantize` does: several packages have such classes."""
    return [each for each in module.modules() if all(hasattr(each, name) for name in _ATTRIBUTES)]


def _rounded(torch, quantizer):
    """Return a module that computes what a quantizer does, by the definition of `torch.fake_quantize_per_channel_affine`."""

    class Rounded(torch.nn.Module):
        def __init__(self):
            super().__init__()
            scale = quantizer.scale.detach()
            self.register_buffer('scale', scale.clone())
            self.register_buffer('inverse', 1 / scale)  # rounded to float32, as there
            self.register_buffer('zero_point', quantizer.zero_point.detach().to(scale.dtype))
            self.rounds_sum = quantizer.zero_point.is_floating_point()  # as PyTorch does with real zero points
            self.axis = quantizer.ch_axis if quantizer.is_per_channel else None
            self.limits = quantizer.quant_min, quantizer.quant_max

        def forward(self, x):
            sizes = [-1 if axis == self.axis else 1 for axis in range(x.dim())]
            scale, inverse, zero_point = (each.reshape(sizes) for each in (self.scale, self.inverse, self.zero_point))
            levels = torch.round(x * inverse + zero_point) if self.rounds_sum else torch.round(x * inverse) + zero_point
            return (torch.clamp(levels, *self.limits) - zero_point) * scale

    return Rounded().eval()
