// Choice of the module: make wasm puts this file into the function createBmxMelius (option --pre-js of Emscripten) after a
// line that defines HAS_RELAXED_MODULE.
//
// The results of f32x4.relaxed_madd depend on the engine: a b + c rounded once, where the processor has that instruction, or
// a product and a sum rounded separately. Each engine has made one choice for all its modules. PROBE is a module whose
// function `madd` has this instruction with a, b and c in all lanes.
const PROBE = new Uint8Array([
    0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00,                                      // magic number and version
    0x01, 0x08, 0x01, 0x60, 0x03, 0x7d, 0x7d, 0x7d, 0x01, 0x7d,                          // type: three f32 -> f32
    0x03, 0x02, 0x01, 0x00,                                                              // a function of this type
    0x07, 0x08, 0x01, 0x04, 0x6d, 0x61, 0x64, 0x64, 0x00, 0x00,                          // exported as "madd"
    0x0a, 0x16, 0x01, 0x14, 0x00, 0x20, 0x00, 0xfd, 0x13, 0x20, 0x01, 0xfd, 0x13,        // code: f32x4.splat of a, b ...
    0x20, 0x02, 0xfd, 0x13, 0xfd, 0x85, 0x02, 0xfd, 0x1f, 0x00, 0x0b,                    // ... and c, madd, extract_lane 0
]);

// Numbers a, b, c and a b + c rounded once. Comments name what gives other results.
const ROUNDED_ONCE = [
    [1 + 2 ** -12, 1 + 2 ** -12, -1 - 2 ** -11, 2 ** -24],                               // a rounded product
    [1 + 2 ** -12, -1 - 2 ** -12, 1 + 2 ** -11, -(2 ** -24)],
    [2 ** 127, 2, -(2 ** 127), 2 ** 127],                                                // one that overflows
    [2 ** -12 + 2 ** -30, 2 ** -12 - 2 ** -30, 1 + 2 ** -23, 1 + 2 ** -23],              // a sum rounded to float64 first
    [2 ** -100, 2 ** -49, 0, 2 ** -149], [1, 2 ** -149, 2 ** -149, 2 ** -148],           // subnormal numbers taken as 0
];

function roundsOnce(madd) {
    return ROUNDED_ONCE.every(([a, b, c, result]) => madd(a, b, c) === result);
}

function hasFusedMultiplyAdd() {
    return WebAssembly.validate(PROBE) && roundsOnce(new WebAssembly.Instance(new WebAssembly.Module(PROBE)).exports.madd);
}

if (!Module['wasmBinary']) {
    const locate = Module['locateFile'] || ((file, folder) => folder + file), isRelaxed = HAS_RELAXED_MODULE && hasFusedMultiplyAdd();
    Module['locateFile'] = (file, folder) => locate(isRelaxed && file === 'bmx_melius.wasm' ? 'bmx_melius_relaxed.wasm' : file, folder);
    if (typeof process === 'object' && process.versions && process.versions.node) {  // Emscripten 3.1 would take its fetch for a browser's
        Module['wasmBinary'] = require('fs').readFileSync(Module['locateFile']('bmx_melius.wasm', `${__dirname}/`));
    }
}
