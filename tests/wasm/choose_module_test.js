// Test of the choice of a module (tools/wasm/choose_module.js), run by tools/test_wasm.py: node choose_module_test.js BUILD
//
// BUILD is the folder of bmx_melius.js. Prints the file of the module that is chosen.
'use strict';
const assert = require('assert'), fs = require('fs'), path = require('path');

const source = fs.readFileSync(path.join(__dirname, '..', '..', 'tools', 'wasm', 'choose_module.js'), 'utf8');
const inside = 'return { roundsOnce, hasFusedMultiplyAdd };';
const given = { wasmBinary: new Uint8Array() };  // with a module that is given nothing is chosen
const { roundsOnce, hasFusedMultiplyAdd } = new Function('Module', source + inside)(given);

const float = Math.fround, smallest = 2 ** -126;
const flushed = (x) => (Math.abs(x) < smallest ? 0 : x);
const wrong = {
    'rounds product and sum': (a, b, c) => float(float(a * b) + c),
    'rounds to float64 and to float32': (a, b, c) => float(a * b + c),
    'takes subnormal results as 0': (a, b, c) => flushed(float(a * b + c)),
    'takes subnormal operands as 0': (a, b, c) => float(flushed(a) * flushed(b) + flushed(c)),
    'adds a product to the first operand': (a, b, c) => float(a + b * c),
    'subtracts the product': (a, b, c) => float(c - a * b),
};
for (const [name, madd] of Object.entries(wrong)) {
    assert(!roundsOnce(madd), `a function that ${name} passes as fused`);
}

// Returns [m, e], integers with x = m 2^e.
function parts(x) {
    let exponent = 0;
    while (!Number.isInteger(x)) {
        x *= 2;
        exponent--;
    }
    return [BigInt(x), exponent];
}

// Returns a b + c rounded once to float32, by integers.
function exactMadd(a, b, c) {
    const [[ma, ea], [mb, eb], [mc, ec]] = [a, b, c].map(parts);
    const exponent = Math.min(ea + eb, ec);
    const sum = ((ma * mb) << BigInt(ea + eb - exponent)) + (mc << BigInt(ec - exponent));
    const size = sum < 0n ? -sum : sum, dropped = Math.max(size.toString(2).length - 24, -149 - exponent, 0);
    const unit = 1n << BigInt(dropped), quotient = size / unit, rest = 2n * (size % unit);
    const rounded = quotient + (rest > unit || (rest === unit && quotient % 2n) ? 1n : 0n);
    return (sum < 0n ? -1 : 1) * Number(rounded) * 2 ** (exponent + dropped + 200) * 2 ** -200;
}
assert(roundsOnce(exactMadd), 'an exact multiply-add does not pass as fused');

async function main(build) {
    const files = [];
    const locateFile = (file, folder) => {
        files.push(file);
        return path.join(folder, file);
    };
    const engine = await require(path.resolve(build, 'bmx_melius.js'))({ locateFile });
    assert.strictEqual(engine.UTF8ToString(engine._bmx_isa()), 'wasm');
    assert.strictEqual(new Set(files).size, 1);
    const isBuilt = fs.existsSync(path.join(build, 'bmx_melius_relaxed.wasm'));
    assert.strictEqual(files[0] === 'bmx_melius_relaxed.wasm', isBuilt && hasFusedMultiplyAdd());
    console.log(files[0]);
}

main(process.argv[2]).catch((error) => {
    console.error(error);
    process.exitCode = 1;
});
