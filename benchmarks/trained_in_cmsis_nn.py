"""Run the 8-bit ResNet-8 of LiteRT by CMSIS-NN on Cortex-M processors under emulation, and count its instructions.

    # in the environment of trained_in_litert.py, which has written the folder; the checkout is a clone of github.com/ARM-software/CMSIS-NN
    apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm
    out/litert-env/bin/python benchmarks/trained_in_cmsis_nn.py out/litert CHECKOUT [--images 20] [--level=-O2]

Layers, weights and scales are read from resnet8_fashion-int8.tflite. A C program calls a function of CMSIS-NN for each layer, with values
that share memory where their lifetimes allow it. The test program and the boards are those of ``trained_on_microcontrollers.py``. So are
the flags of the compiler, but for ``-ffreestanding``, which CMSIS-NN advises against: it relies on the compiler's own memcpy.

The outputs of test images are compared with those of LiteRT's reference kernels, whose accuracy on all test images is printed. Flash is
what the network adds to a program without it, with the functions that it takes from the C library; RAM are its values and the largest
buffer that a layer asks for, without input and output.
"""

import argparse
import math
import pathlib
import re
import sys
import tempfile
from importlib import metadata

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / 'tools')]

from ai_edge_litert import schema_py_generated as schema  # noqa: E402  the path comes first
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402
from commands import output_of, run_main  # noqa: E402
from mcu_emulator import COUNTED, LARGE_CORTEX_M0, make, value_of  # noqa: E402
from trained_in_litert import IMAGES, INT8_FILE, channels_last  # noqa: E402

from bmx_melius.errors import UserError  # noqa: E402

PROCESSORS = ('cortex-m0', 'cortex-m4')
SYMBOLS = ('flash_origin', 'flash_size', 'ram_origin', 'ram_size')  # of the linker script, as in MEMORY of examples/mcu/Makefile
TICK = 40  # instructions: the timer of both boards has 25 MHz, and an instruction takes 1 ns of the emulator's time
EXAMPLE, TEST = ROOT / 'examples' / 'mcu', ROOT / 'tools' / 'mcu'
PARTS = ('BasicMathFunctions', 'ConvolutionFunctions', 'FullyConnectedFunctions', 'NNSupportFunctions', 'PoolingFunctions')
SOURCES = ('*_s8*.c', '*_q7*.c')  # functions of 8-bit integers: those of floats need another configuration of the library
ALIGNMENT = 16
ADDITION_SHIFT = 20  # of the inputs of an addition, as in LiteRT
SAME, RELU = schema.Padding.SAME, schema.ActivationFunctionType.RELU
SECONDS = 600  # for a command at most


def main():
    """Run the network on both processors and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=pathlib.Path, help='folder that trained_in_litert.py has written')
    parser.add_argument('checkout', type=pathlib.Path, help='sources of CMSIS-NN')
    parser.add_argument('--images', type=int, default=20, help='test images that each processor classifies (default: %(default)s)')
    parser.add_argument('--level', default='-O2', help='optimization of the compiler, as --level=-O3 (default: %(default)s)')
    arguments = parser.parse_args()
    path = arguments.folder / INT8_FILE
    network = Network(path.read_bytes())
    data = np.load(arguments.folder / IMAGES)
    inputs, expected = results_of_litert(path, data['images'])
    accuracy = 100 * np.mean(expected.argmax(axis=1) == data['labels'])
    print(f'ai-edge-litert {metadata.version("ai-edge-litert")}, reference kernels: top-1 {accuracy:.2f} % of {len(inputs):,} images')
    inputs, expected = inputs[: arguments.images], expected[: arguments.images]
    memory = f'{network.arena_bytes + network.scratch_bytes:,} of RAM ({network.scratch_bytes:,} of them a buffer of layers)'
    for processor in PROCESSORS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            programs = {'network': network.source(), 'nothing': EMPTY_SOURCE}
            for name, source in programs.items():
                build(folder / name, source, network.sizes, processor, arguments)
            flash = flash_bytes(folder / 'network') - flash_bytes(folder / 'nothing')
            outputs, stack, ticks, layers = run(folder / 'network', inputs, processor)
        differences = np.abs(outputs.astype(int) - expected)
        counts = {}
        for kind, layer in zip(network.kinds, layers):
            counts[kind] = counts.get(kind, 0) + layer * TICK / 1e6
        kinds = ', '.join(f'{kind} {count:.2f}' for kind, count in counts.items())
        print(f'{processor}: {flash:,} bytes of flash, {memory}, {stack:,} of stack')
        print(f'    {ticks * TICK / 1e6:.2f} million instructions for an image: {kinds}')
        print(
            f'    {np.count_nonzero(differences)} of {differences.size} outputs differ from LiteRT, by at most {differences.max()}',
            flush=True,
        )


def results_of_litert(path, images):
    """Return images as 8-bit inputs, and the 8-bit outputs of LiteRT's reference kernels."""
    interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
    interpreter.allocate_tensors()
    (source,), (target,) = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero = source['quantization']
    inputs = np.clip(np.rint(channels_last(images) / scale + zero), -128, 127).astype(np.int8)
    outputs = []
    for image in inputs:
        interpreter.set_tensor(source['index'], image[None])
        interpreter.invoke()
        outputs.append(interpreter.get_tensor(target['index'])[0])
    return inputs, np.stack(outputs)


# --- source -----------------------------------------------------------------------------------------------------------------------------

HEADER = '#include <stdint.h>\nvoid network_run(const int8_t* input, int8_t* output);\n'
EMPTY_SOURCE = '#include "network.h"\nvoid network_run(const int8_t* input, int8_t* output) { output[0] = input[0]; }\n'
BEGIN = """\
#include "arm_nnfunctions.h"
#include "hooks.h"
#include "network.h"

void fault(void);

static int8_t arena[{arena}] __attribute__((aligned({alignment})));
static int8_t scratch[{scratch}] __attribute__((aligned({alignment})));

static void require(int is_met) {{
    if (!is_met) {{
        fault();
    }}
}}
"""


class Network:
    """A network of LiteRT with 8-bit weights and values, and its source for CMSIS-NN.

    Attributes
    ----------
    kinds : list of str
        The kind of each layer.
    sizes : list of int
        Number of inputs and of outputs.
    arena_bytes, scratch_bytes : int
        Memory for values, and the largest buffer for a layer.
    """

    def __init__(self, content):
        model = schema.ModelT.InitFromPackedBuf(content)
        self.graph, self.buffers = model.subgraphs[0], model.buffers
        codes = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes]
        operations = schema.BuiltinOperator
        self.writers = {
            operations.CONV_2D: self.convolution,
            operations.ADD: self.addition,
            operations.AVERAGE_POOL_2D: self.pooling,
            operations.FULLY_CONNECTED: self.dense,
        }
        self.operations = [codes[operator.opcodeIndex] for operator in self.graph.operators]
        if not set(self.operations) <= set(self.writers):
            raise UserError('the network has operations other than convolution, addition, average pooling and dense layer')
        self.kinds = [self.kind(*each) for each in zip(self.operations, self.graph.operators)]
        (source,), (target,) = self.graph.inputs, self.graph.outputs
        self.sizes = [self.size(source), self.size(target)]
        self.places = self.planned()
        self.arena_bytes = max(place + self.size(value) for value, place in self.places.items())
        # As arm_convolve_s8 asks for two columns of 16 bits; the program ends with a fault if a layer asks for more.
        columns = [math.prod(self.shape(operator.inputs[1])[1:]) for operator in self.graph.operators if len(operator.inputs) == 3]
        self.scratch_bytes = max(4 * (-(-column // 4) * 4) for column in columns)

    def source(self):
        """Return the source of the program."""
        constants, calls = [], []
        for number, (operation, operator) in enumerate(zip(self.operations, self.graph.operators)):
            declared, statements = self.writers[operation](number, operator)
            constants += declared
            calls += [f'    begin_layer({number});', '    {', *(f'        {line}' for line in statements), '    }']
        begin = BEGIN.format(arena=self.arena_bytes, scratch=self.scratch_bytes, alignment=ALIGNMENT)
        context = 'static const cmsis_nn_context context = {scratch, sizeof scratch};'
        return '\n'.join([begin, context, *constants, 'void network_run(const int8_t* input, int8_t* output) {', *calls, '}', ''])

    def kind(self, operation, operator):
        if operation != schema.BuiltinOperator.CONV_2D:
            names = {schema.BuiltinOperator.ADD: 'additions', schema.BuiltinOperator.FULLY_CONNECTED: 'dense layer'}
            return names.get(operation, 'pooling')
        _, height, width, channels = self.shape(operator.inputs[1])
        return f'{height}x{width} convolutions' if channels > 1 else 'first convolution'

    def convolution(self, number, operator):
        source, weight, bias, (target,) = *operator.inputs, operator.outputs
        options, pads = operator.builtinOptions, []
        strides = options.strideH, options.strideW
        for size, filter_size, result, stride in zip(*(self.shape(each)[1:3] for each in (source, weight, target)), strides):
            total = max((result - 1) * stride + filter_size - size, 0) if options.padding == SAME else 0
            pads.append(total // 2)
        multipliers, shifts = self.rescaling(source, weight, target)
        declared = self.constants(number, weight, bias, multipliers, shifts)
        return declared, [
            f'const cmsis_nn_conv_params parameters = {{{-self.zero(source)}, {self.zero(target)}, {{{strides[1]}, {strides[0]}}}, '
            f'{{{pads[1]}, {pads[0]}}}, {{1, 1}}, {{{self.limits(target, options)}}}}};',
            f'const cmsis_nn_per_channel_quant_params scales = {{(int32_t*)multipliers{number}, (int32_t*)shifts{number}}};',
            f'const cmsis_nn_dims input_size = {self.dimensions(source)}, filter_size = {self.dimensions(weight)};',
            f'const cmsis_nn_dims bias_size = {{1, 1, 1, {len(shifts)}}}, output_size = {self.dimensions(target)};',
            'const int32_t needed = arm_convolve_wrapper_s8_get_buffer_size(&parameters, &input_size, &filter_size, &output_size);',
            'require((uint32_t)needed <= sizeof scratch);',
            f'require(!arm_convolve_wrapper_s8(&context, &parameters, &scales, &input_size, {self.pointer(source)}, &filter_size, '
            f'weights{number}, &bias_size, biases{number}, &output_size, {self.pointer(target)}));',
        ]

    def dense(self, number, operator):
        source, weight, bias, (target,) = *operator.inputs, operator.outputs
        multipliers, shifts = self.rescaling(source, weight, target)
        (outputs, inputs), limits = self.shape(weight), self.limits(target, operator.builtinOptions)
        return self.constants(number, weight, bias, multipliers, shifts), [
            f'const cmsis_nn_fc_params parameters = {{{-self.zero(source)}, 0, {self.zero(target)}, {{{limits}}}}};',
            f'const cmsis_nn_quant_params scales = {{(int32_t*)multipliers{number}, (int32_t*)shifts{number}, {int(len(shifts) > 1)}}};',
            f'const cmsis_nn_dims input_size = {{1, 1, 1, {inputs}}}, filter_size = {{{inputs}, 1, 1, {outputs}}};',
            f'const cmsis_nn_dims output_size = {{1, 1, 1, {outputs}}};',
            'require((uint32_t)arm_fully_connected_s8_get_buffer_size(&filter_size) <= sizeof scratch);',
            f'require(!arm_fully_connected_wrapper_s8(&context, &parameters, &scales, &input_size, {self.pointer(source)}, &filter_size, '
            f'weights{number}, &output_size, biases{number}, &output_size, {self.pointer(target)}));',
        ]

    def addition(self, number, operator):
        (target,) = operator.outputs
        scales = [self.scale(each)[0] for each in operator.inputs]
        largest = 2 * max(scales)
        arguments = []
        for value, scale in zip(operator.inputs, scales):
            arguments += [-self.zero(value), *multiplier_and_shift(scale / largest)]
        result = multiplier_and_shift(largest / (self.scale(target)[0] * 2**ADDITION_SHIFT))
        arguments += [ADDITION_SHIFT, self.pointer(target), self.zero(target), *result]
        arguments += [self.limits(target, operator.builtinOptions), self.size(target)]
        pointers = ', '.join(self.pointer(each) for each in operator.inputs)
        return [], [f'require(!arm_elementwise_add_s8({pointers}, {", ".join(map(str, arguments))}));']

    def pooling(self, number, operator):
        (source,), (target,), options = operator.inputs, operator.outputs, operator.builtinOptions
        if options.padding == SAME:
            raise UserError('average pooling with padding is not translated')
        _, _, width, channels = self.shape(target)
        return [], [
            f'const cmsis_nn_tile strides = {{{options.strideW}, {options.strideH}}};',
            f'const cmsis_nn_pool_params parameters = {{strides, {{0, 0}}, {{{self.limits(target, options)}}}}};',
            f'const cmsis_nn_dims input_size = {self.dimensions(source)}, output_size = {self.dimensions(target)};',
            f'const cmsis_nn_dims filter_size = {{1, {options.filterHeight}, {options.filterWidth}, 1}};',
            f'require((uint32_t)arm_avgpool_s8_get_buffer_size({width}, {channels}) <= sizeof scratch);',
            f'require(!arm_avgpool_s8(&context, &parameters, &input_size, {self.pointer(source)}, &filter_size, &output_size, '
            f'{self.pointer(target)}));',
        ]

    # --- values -------------------------------------------------------------------------------------------------------------------------

    def planned(self):
        """Return the place of each value in the arena, whose lifetimes overlap with no other there: the largest values come first."""
        uses = {}
        for number, operator in enumerate(self.graph.operators):
            for value in [*operator.inputs[: 2 if self.operations[number] == schema.BuiltinOperator.ADD else 1], *operator.outputs]:
                uses.setdefault(value, []).append(number)
        for end in (*self.graph.inputs, *self.graph.outputs):
            del uses[end]  # those arrays belong to the caller
        places = {}
        for value in sorted(uses, key=self.size, reverse=True):
            place = 0
            for other in sorted(places, key=places.get):
                overlap = uses[value][0] <= uses[other][-1] and uses[other][0] <= uses[value][-1]
                if overlap and places[other] < place + self.size(value):
                    place = max(place, -(-(places[other] + self.size(other)) // ALIGNMENT) * ALIGNMENT)
            places[value] = place
        return places

    def pointer(self, value):
        if value in self.places:
            return f'arena + {self.places[value]}'
        return 'input' if value in self.graph.inputs else 'output'

    def constants(self, number, weight, bias, multipliers, shifts):
        """Return declarations of the constants of a layer."""
        arrays = {
            'int8_t weights': self.data(weight, np.int8),
            'int32_t biases': self.data(bias, np.int32),
            'int32_t multipliers': multipliers,
            'int32_t shifts': shifts,
        }
        return [f'static const {name}{number}[] = {{{", ".join(map(str, numbers))}}};' for name, numbers in arrays.items()]

    def rescaling(self, source, weight, target):
        """Return multipliers and shifts that bring sums of each channel to the scale of the target."""
        factors = self.scale(source)[0] * self.scale(weight) / self.scale(target)[0]
        return zip(*map(multiplier_and_shift, factors))

    def data(self, value, kind):
        return np.asarray(self.buffers[self.graph.tensors[value].buffer].data, np.uint8).view(kind)

    def shape(self, value):
        return [int(size) for size in self.graph.tensors[value].shape]

    def size(self, value):
        return math.prod(self.shape(value))

    def dimensions(self, value):
        return f'{{{", ".join(map(str, self.shape(value)))}}}'

    def scale(self, value):
        return np.asarray(self.graph.tensors[value].quantization.scale, np.float32).astype(float)

    def zero(self, value):
        return int(self.graph.tensors[value].quantization.zeroPoint[0])

    def limits(self, target, options):
        """Return the smallest and largest output, those of ReLU if it is fused."""
        if options.fusedActivationFunction not in (RELU, schema.ActivationFunctionType.NONE):
            raise UserError('activations other than ReLU are not translated')
        return f'{self.zero(target) if options.fusedActivationFunction == RELU else -128}, 127'


def multiplier_and_shift(factor):
    """Return the multiplier of 31 bits and the shift to the left with which LiteRT multiplies by a factor."""
    fraction, shift = math.frexp(factor)
    multiplier = math.floor(fraction * 2**31 + 0.5)
    return (multiplier // 2, shift + 1) if multiplier == 2**31 else (multiplier, shift)


# --- programs ---------------------------------------------------------------------------------------------------------------------------


def build(folder, source, sizes, processor, arguments):
    """Compile a network with the test program and CMSIS-NN, of which the linker takes what is called, to firmware.elf in a new folder."""
    folder.mkdir()
    (folder / 'network.h').write_text(HEADER)
    (folder / 'network.c').write_text(source)
    defined = {'NETWORK_HEADER': '"network.h"', 'NETWORK_RUN': 'network_run', 'LAYERS': source.count('begin_layer(')}
    defined.update(INPUT_TYPE='int8_t', INPUT_SIZE=sizes[0], OUTPUT_TYPE='int8_t', OUTPUT_SIZE=sizes[1])
    flags = [*value_of(f'FLAGS_{processor}', folder), '-mthumb', arguments.level, '-std=gnu99', '-ffunction-sections', '-fdata-sections']
    flags += [f'-D{name}={value}' for name, value in defined.items()]
    flags += [f'-I{each}' for each in (folder, TEST, EXAMPLE, arguments.checkout / 'Include')]
    memory = zip(SYMBOLS, value_of('MEMORY', folder, f'PROCESSOR={processor}', *LARGE_CORTEX_M0))
    linked = [*(f'-Wl,--defsym={name}={value}' for name, value in memory), '-Wl,--gc-sections', '-nostartfiles']
    sources = [folder / 'network.c', TEST / 'run.c', EXAMPLE / 'start_cortex_m.c']
    sources += [path for part in PARTS for name in SOURCES for path in sorted((arguments.checkout / 'Source' / part).glob(name))]
    command(['arm-none-eabi-gcc', *flags, *linked, '-T', EXAMPLE / 'memory.ld', *sources, '-o', 'firmware.elf'], folder)


def flash_bytes(folder):
    """Return the bytes of a program in flash: its sections for code, constants and initialized data."""
    text, data = command(['arm-none-eabi-size', 'firmware.elf'], folder).splitlines()[1].split()[:2]
    return int(text) + int(data)


def run(folder, inputs, processor):
    """Return outputs, bytes of stack, ticks, and ticks of each layer of a program in the emulator."""
    inputs.tofile(folder / 'images.bin')
    printed = make('emulate', folder, f'PROCESSOR={processor}', *LARGE_CORTEX_M0, COUNTED)
    stack, ticks = map(int, re.match(r'stack (\d+) ticks (\d+)', printed).groups())
    layers = [int(count) for count in re.findall(r'^layer \d+ ticks (\d+)', printed, re.MULTILINE)]
    return np.fromfile(folder / 'outputs.bin', np.int8).reshape(len(inputs), -1), stack, ticks, layers


def command(words, folder):
    return output_of(words, folder=folder, seconds=SECONDS)


if __name__ == '__main__':
    run_main(main)
