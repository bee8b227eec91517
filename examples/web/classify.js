// Runs a packed network in Node.js: node classify.js PREFIX-0000.params images.bin, like examples/c/run_packed.c. The file
// has the numbers of one image or of several.
'use strict';
const fs = require('fs');
const create = require('./bmx_melius.js'), { Session } = require('./session.js');

async function main(params, file) {
    const session = new Session(await create(), fs.readFileSync(params));
    const bytes = fs.readFileSync(file);
    const images = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
    const count = session.inputShape.reduce((product, size) => product * size, 1);
    const sign = (score) => (Object.is(score, -0) ? '-' : '');  // which toPrecision leaves out
    for (let begin = 0; begin === 0 || begin < images.length; begin += count) {
        const [scores] = session.run(images.subarray(begin, begin + count));
        scores.forEach((score) => console.log(sign(score) + score.toPrecision(9)));
    }
    session.destroy();
}

if (process.argv.length !== 4) {
    console.error('usage: node classify.js PREFIX-0000.params images.bin');
    process.exitCode = 1;
} else {
    main(process.argv[2], process.argv[3]).catch((error) => {
        console.error(`error: ${error.message}`);
        process.exitCode = 1;
    });
}
