// Times a packed network in Node.js with both modules for WebAssembly, in turns:
//
//     node benchmarks/webassembly.js build/web PREFIX-0000.params [RUNS]
//
// (before Node.js 21 with the option --experimental-wasm-relaxed-simd). Ends with an error if results differ.
'use strict';
const fs = require('fs'), path = require('path');

const WARM_UP = 2;  // runs that are not timed: the engine compiles again what runs often
const FILES = ['bmx_melius.wasm', 'bmx_melius_relaxed.wasm'];

function median(numbers) {
    return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}

async function main(build, params, runs) {
    const create = require(path.resolve(build, 'bmx_melius.js')), { Session } = require(path.resolve(build, 'session.js'));
    const sessions = [], times = FILES.map(() => []);
    for (const file of FILES) {
        const engine = await create({ wasmBinary: fs.readFileSync(path.join(build, file)) });
        sessions.push(new Session(engine, fs.readFileSync(params)));
    }
    const image = Float32Array.from({ length: sessions[0].inputShape.reduce((a, b) => a * b) }, (_, i) => Math.sin(i * i));
    for (let run = -WARM_UP; run < runs; run++) {
        const outputs = sessions.map((session, i) => {
            const begin = performance.now(), [scores] = session.run(image);
            times[i].push(...(run < 0 ? [] : [performance.now() - begin]));
            return scores;
        });
        if (outputs.some((scores) => Buffer.compare(Buffer.from(scores.buffer), Buffer.from(outputs[0].buffer)))) {
            throw new Error('the modules differ in the bits of their results');
        }
    }
    FILES.forEach((file, i) => {
        const ratio = median(times[0].map((time, run) => time / times[i][run]));
        console.log(`${file}: median ${median(times[i]).toFixed(2)} ms, minimum ${Math.min(...times[i]).toFixed(2)} ms, speed ${ratio.toFixed(2)}`);
    });
}

if (process.argv.length < 4) {
    console.error('usage: node webassembly.js BUILD PREFIX-0000.params [RUNS]');
    process.exitCode = 1;
} else {
    main(process.argv[2], process.argv[3], Number(process.argv[4] || 15)).catch((error) => {
        console.error(`error: ${error.message}`);
        process.exitCode = 1;
    });
}
