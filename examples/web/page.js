// The page that classifies a drawn digit.
'use strict';

const NETWORK = 'digits';
const SIZE = 8;                    // height and width of the input of the network
const CELL = 4;                    // a pixel of the input is the number of white pixels of CELL x CELL, as in the dataset
const BITMAP = SIZE * CELL;
const WIDTH = 20;                  // of a line

const drawing = document.getElementById('drawing'), pen = drawing.getContext('2d', { willReadFrequently: true });
let session, description, last;

async function content(path) {
    const response = await fetch(path);
    if (!response.ok) {
        throw new Error(`${path} cannot be loaded (${response.status}): make wasm builds this page`);
    }
    return response;
}

async function load() {
    const symbol = await (await content(`${NETWORK}-symbol.json`)).json();
    description = JSON.parse(symbol.attrs.bmx_melius_description[1]);
    const params = new Uint8Array(await (await content(`${NETWORK}-0000.params`)).arrayBuffer());
    session = new Session(await createBmxMelius(), params);
    document.getElementById('status').textContent = 'draw here';
}

// Returns the box around the white pixels of the drawing, or null if there are none.
function box() {
    const { data, width, height } = pen.getImageData(0, 0, drawing.width, drawing.height);
    let left = width, right = -1, top = height, bottom = -1;
    for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
            if (data[4 * (y * width + x)] > 127) {
                [left, right] = [Math.min(left, x), Math.max(right, x)];
                [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
            }
        }
    }
    return right < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}

// Returns the pixels of the input, 0 to 255: the drawing fills a bitmap, as the digits of the dataset do.
function pixels({ left, top, width, height }) {
    const scale = BITMAP / Math.max(width, height);
    const bitmap = Object.assign(document.createElement('canvas'), { width: BITMAP, height: BITMAP }).getContext('2d');
    bitmap.imageSmoothingQuality = 'high';
    bitmap.drawImage(drawing, left, top, width, height, (BITMAP - width * scale) / 2, (BITMAP - height * scale) / 2,
        width * scale, height * scale);
    const { data } = bitmap.getImageData(0, 0, BITMAP, BITMAP);
    const result = new Float32Array(SIZE * SIZE);
    for (let y = 0; y < BITMAP; y++) {
        for (let x = 0; x < BITMAP; x++) {
            result[Math.floor(y / CELL) * SIZE + Math.floor(x / CELL)] += data[4 * (y * BITMAP + x)] > 127 ? 255 / CELL ** 2 : 0;
        }
    }
    return result.map(Math.round);
}

function show(input, probabilities) {
    const canvas = document.getElementById('input').getContext('2d'), image = canvas.createImageData(SIZE, SIZE);
    input.forEach((value, i) => image.data.set([value, value, value, 255], 4 * i));
    canvas.putImageData(image, 0, 0);
    const order = [...probabilities.keys()].sort((a, b) => probabilities[b] - probabilities[a]).slice(0, 5);
    document.getElementById('classes').replaceChildren(...order.map((number) => {
        const row = document.createElement('li'), meter = document.createElement('meter');
        meter.value = probabilities[number];
        row.append(`${description.class_names[number]} `, meter, ` ${(100 * probabilities[number]).toFixed(1)} %`);
        return row;
    }));
}

function classify() {
    const around = box();
    if (!session || !around) {
        return;
    }
    const input = pixels(around), { mean, std } = description.input;
    const [scores] = session.run(input.map((value) => (value - mean[0]) / std[0]));
    const highest = Math.max(...scores), weights = Array.from(scores, (score) => Math.exp(score - highest));
    const sum = weights.reduce((a, b) => a + b);
    show(input, weights.map((weight) => weight / sum));
}

function line(event) {
    const point = { x: event.offsetX, y: event.offsetY }, from = last || point;
    Object.assign(pen, { lineWidth: WIDTH, lineCap: 'round', strokeStyle: 'white' });
    pen.beginPath();
    pen.moveTo(from.x, from.y);
    pen.lineTo(point.x, point.y);
    pen.stroke();
    last = point;
}

drawing.addEventListener('pointerdown', line);
drawing.addEventListener('pointermove', (event) => event.buttons && line(event));
addEventListener('pointerup', () => {
    last = null;
    classify();
});
document.getElementById('clear').addEventListener('click', () => {
    pen.clearRect(0, 0, drawing.width, drawing.height);
    document.getElementById('classes').replaceChildren();
});
load().catch((error) => {
    document.getElementById('error').textContent = `error: ${error.message}`;
});
