// Packed networks in WebAssembly, in a page (a global class) and in Node.js (require): `Session` of the Python package.
//
//   const engine = await createBmxMelius();                       // bmx_melius.js, which loads the fastest module
//   const session = new Session(engine, params);                  // the bytes of PREFIX-0000.params
//   const [scores] = session.run(image);                          // a Float32Array of the shape session.inputShape
'use strict';

class Session {
    static SIZES = 4;  // numbers of a shape in the C interface
    static BYTES_OF_SIZE = 8;
    static BYTES_OF_POINTER = 4;
    static BYTES_OF_FLOAT = 4;

    // `params`: a Uint8Array or an ArrayBuffer.
    constructor(engine, params) {
        params = new Uint8Array(params);
        this.engine = engine;
        this.program = this.withMemory((allocate) => {
            const content = allocate(params.length);
            engine.HEAPU8.set(params, content);
            return engine._bmx_program_load_memory(content, params.length, 0);
        });
        if (!this.program) {
            throw this.error();
        }
        if (engine._bmx_program_inputs(this.program) !== 1) {
            engine._bmx_program_destroy(this.program);
            throw new Error('the network has several inputs; this class runs networks with one');
        }
        const { SIZES, BYTES_OF_SIZE } = Session;
        this.inputShape = this.withMemory((allocate) => {
            const shape = allocate(SIZES * BYTES_OF_SIZE);
            const rank = engine._bmx_program_input_shape(this.program, 0, shape);
            return this.sizes(shape).slice(0, rank);
        });
    }

    // Runs the network on one image, a Float32Array; returns a Float32Array for each output.
    run(image) {
        const count = this.inputShape.reduce((product, size) => product * size, 1);
        if (image.length !== count) {
            throw new Error(`the image has ${image.length} numbers, not the ${count} of the shape ${this.inputShape}`);
        }
        const { SIZES, BYTES_OF_SIZE, BYTES_OF_POINTER, BYTES_OF_FLOAT } = Session;
        const engine = this.engine, outputs = engine._bmx_program_outputs(this.program);
        return this.withMemory((allocate) => {
            const shape = allocate(SIZES * BYTES_OF_SIZE), shapes = allocate(outputs * SIZES * BYTES_OF_SIZE);
            const ranks = allocate(outputs * BYTES_OF_POINTER);
            new BigInt64Array(engine.HEAPU8.buffer, shape, SIZES).set([...this.inputShape, 0, 0].slice(0, SIZES).map(BigInt));
            if (engine._bmx_program_infer(this.program, shape, shapes, ranks)) {
                throw this.error();
            }
            const counts = [...Array(outputs).keys()].map((i) => {
                const rank = engine.HEAP32[ranks / BYTES_OF_POINTER + i];
                return this.sizes(shapes + i * SIZES * BYTES_OF_SIZE).slice(0, rank).reduce((product, size) => product * size, 1);
            });
            const input = allocate(image.length * BYTES_OF_FLOAT), inputs = allocate(BYTES_OF_POINTER);
            const results = counts.map((size) => allocate(size * BYTES_OF_FLOAT)), pointers = allocate(outputs * BYTES_OF_POINTER);
            engine.HEAPF32.set(image, input / BYTES_OF_FLOAT);
            engine.HEAPU32[inputs / BYTES_OF_POINTER] = input;
            engine.HEAPU32.set(results, pointers / BYTES_OF_POINTER);
            if (engine._bmx_program_run(this.program, shape, inputs, pointers, 1)) {
                throw this.error();
            }
            return results.map((at, i) => engine.HEAPF32.slice(at / BYTES_OF_FLOAT, at / BYTES_OF_FLOAT + counts[i]));
        });
    }

    // Frees the memory of the network, which cannot be used afterwards.
    destroy() {
        this.engine._bmx_program_destroy(this.program);
        this.program = 0;
    }

    error() {
        return new Error(this.engine.UTF8ToString(this.engine._bmx_last_error()));
    }

    sizes(at) {
        return [...new BigInt64Array(this.engine.HEAPU8.buffer, at, Session.SIZES)].map(Number);
    }

    // Calls a function with one that allocates memory of the engine, which is freed afterwards.
    withMemory(use) {
        const allocated = [];
        const allocate = (bytes) => {
            const at = this.engine._malloc(bytes);
            if (!at) {
                throw new Error('out of memory');
            }
            allocated.push(at);
            return at;
        };
        try {
            return use(allocate);
        } finally {
            allocated.forEach((at) => this.engine._free(at));
        }
    }
}

if (typeof module === 'object') {
    module.exports = { Session };
}
