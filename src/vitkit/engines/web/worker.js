"use strict";
// Computes beside the page, so that it stays responsive: unpacks the model, checks it by its golden set, and answers.

let page, ort, session;
const SMALL = 480;  // pixels of the longer side of the picture that is shown
const SLOWEST = 3;  // seconds that WebGPU may take for an image: some browsers compute it without a graphics processor

// Unpack a block of the page: 15 bits in each character, compressed by gzip.
async function unpack(text) {
  const bytes = new Uint8Array(Math.floor(text.length * 15 / 8));
  let bits = 0, held = 0, at = 0;
  for (let place = 0; place < text.length; place++) {
    bits = (bits << 15 | text.charCodeAt(place) - 0x4000) & 0x7fffff;
    for (held += 15; held >= 8; held -= 8) bytes[at++] = bits >> (held - 8) & 0xff;
  }
  // The first four bytes are the length: the last character may hold more bits than are needed.
  const length = new DataView(bytes.buffer).getUint32(0);
  const stream = new Blob([bytes.subarray(4, 4 + length)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Load the runtime of a provider, and have it read the model.
async function createSession(model, provider, blocks) {
  // The runtime with WebGPU waits for it by promises (JSPI), which not every browser has.
  if (provider === "webgpu" && !(navigator.gpu && WebAssembly.Suspending && await navigator.gpu.requestAdapter()))
    throw new Error("this browser has none here");
  const [script, program] = provider === "webgpu" ? ["gpu-runtime", "gpu-wasm"] : ["runtime", "wasm"];
  const address = URL.createObjectURL(new Blob([await unpack(blocks[script])], {type: "text/javascript"}));
  ort = await import(address);
  URL.revokeObjectURL(address);
  ort.env.wasm.wasmBinary = (await unpack(blocks[program])).buffer;
  ort.env.wasm.numThreads = 1;  // more need headers of a server, and a file has none
  return ort.InferenceSession.create(model, {executionProviders: [provider], graphOptimizationLevel: "all"});
}

// Decode an image file: its own pixels, turned by the model's rule, without any conversion of colours.
async function decodeImage(file) {
  const {orientation, bytes} = readOrientation(new Uint8Array(await file.arrayBuffer()));
  const bitmap = await createImageBitmap(new Blob([bytes], {type: file.type}), {colorSpaceConversion: "none"});
  const {width, height} = bitmap, {decode} = page.rule;
  if (width * height > decode.max_pixels) {
    bitmap.close();
    throw new Error(`${width} x ${height} pixels are more than the ${decode.max_pixels} that the model takes`);
  }
  // In strips: some browsers have no canvas of the size of a large photo.
  const rows = Math.min(height, Math.max(1, Math.floor((1 << 20) / width)));
  const context = new OffscreenCanvas(width, rows).getContext("2d", {willReadFrequently: true});
  context.fillStyle = `rgb(${decode.background.join(" ")})`;
  const data = new Uint8Array(width * height * 3);
  let at = 0;
  for (let top = 0; top < height; top += rows) {
    const count = Math.min(rows, height - top);
    context.fillRect(0, 0, width, rows);
    context.drawImage(bitmap, 0, -top);
    const strip = context.getImageData(0, 0, width, count).data;
    for (let from = 0; from < strip.length; from += 4) {
      data[at++] = strip[from];
      data[at++] = strip[from + 1];
      data[at++] = strip[from + 2];
    }
  }
  bitmap.close();
  return turnUpright({data, height, width, channels: 3}, decode.apply_exif ? orientation : 1);
}

// Bring a decoded image to the model's size and number of channels.
const prepare = image => preprocess(page.rule.decode.channels === 1 ? toGrey(image) : image, page.rule);

// Compute what the graph makes of pixels (height, width, channels).
async function compute({data, height, width, channels}) {
  const planes = new Uint8Array(data.length), size = height * width;
  for (let channel = 0; channel < channels; channel++)
    for (let place = 0; place < size; place++) planes[channel * size + place] = data[place * channels + channel];
  const {logits, novelty, attention} = await session.run({images: new ort.Tensor("uint8", planes, [1, channels, height, width])});
  return {logits: logits.data, novelty: novelty ? novelty.data[0] : null, attention: attention ? attention.data : null};
}

const largestDifference = (first, second) => {
  if (first.length !== second.length) return Infinity;
  let most = 0;
  for (let place = 0; place < first.length; place++) {
    const far = Math.abs(first[place] - second[place]);
    if (!(far <= most)) most = Number.isNaN(far) ? Infinity : far;
  }
  return most;
};

// Split the golden block into its images: the file, the pixels that the model was handed, logits and refusal.
function readGolden(bytes) {
  const [rows, columns] = page.rule.image_size, {channels} = page.rule.decode, outputs = page.classes.length + Boolean(page.refusal);
  let at = 0;
  const take = length => bytes.slice(at, at += length);
  return page.golden.images.map(({name, type, bytes, refused}) => {
    const file = new Blob([take(bytes)], {type}), data = take(rows * columns * channels);
    // Of each pixel the difference to the one at its left is stored.
    for (let place = 0; place < data.length; place++)
      if (place % (columns * channels) >= channels) data[place] += data[place - channels];
    const logits = new Float32Array(take(4 * outputs).buffer);
    return {name, file, pixels: {data, height: rows, width: columns, channels}, logits, refused};
  });
}

// Go the way of each golden image, and say at which level this browser departs from the exporting machine.
async function checkGolden(images, provider) {
  const {golden, classes} = page;
  const levels = [["pixels", golden.decoding], ["logits", golden.allowed], ["answers", 0]].map(
    ([name, allowed]) => ({name, allowed, same: 0, difference: 0}));
  const count = (level, difference) => {
    level.same += difference <= level.allowed;
    level.difference = Math.max(level.difference, difference);
  };
  for (const [number, {file, pixels, logits, refused}] of images.entries()) {
    let own = null;
    try {
      own = prepare(await decodeImage(file)).pixels;
    } catch {}  // a browser without this decoder: no pixels are as when exported
    const far = own ? largestDifference(own.data, pixels.data) : Infinity;
    count(levels[0], far);
    const start = performance.now(), outputs = await compute(pixels), seconds = (performance.now() - start) / 1000;
    // The first image waits for programs of the graphics processor to be compiled.
    if (provider === "webgpu" && number === 1 && seconds > SLOWEST) throw new Error(`it takes ${seconds.toFixed(0)} s for an image`);
    const expected = {logits: logits.subarray(0, classes.length), refused};
    count(levels[1], largestDifference(outputs.logits, expected.logits));
    const whole = far === 0 || !own ? outputs : await compute(own);
    const alike = own && sameAnswer(whole.logits, answer(whole.logits, whole.novelty, page).refused, expected, page);
    count(levels[2], alike ? 0 : 1);
    postMessage({kind: "checked", done: number + 1, count: images.length});
  }
  return levels;
}

async function begin(blocks) {
  page = blocks.page;
  const model = await unpack(blocks.model), images = readGolden(await unpack(blocks.golden));
  const last = page.providers.at(-1);
  let refused = null;  // why WebGPU is not used
  for (const provider of page.providers) {
    let levels;
    try {
      session = await createSession(model, provider, blocks);
      levels = await checkGolden(images, provider);
    } catch (error) {
      if (provider === last) throw error;
      refused = error.message || String(error);
      await session?.release();
      continue;
    }
    // WebGPU computes wrongly on some devices: it is used only if it answers as it should.
    const same = Math.min(...levels.map(level => level.same));
    if (provider === last || same === images.length)
      return postMessage({kind: "ready", levels, count: images.length, provider, refused});
    refused = `only ${same} of ${images.length} as when exported`;
    await session.release();
  }
}

async function answerFile(id, file) {
  const start = performance.now(), image = await decodeImage(file), {pixels, box} = prepare(image);
  const {logits, novelty, attention} = await compute(pixels);
  const scale = Math.min(1, SMALL / Math.max(image.height, image.width));
  const size = [image.height, image.width].map(side => Math.max(1, Math.round(side * scale)));
  const picture = resample(image, [0, 0, image.height, image.width], size, "bilinear", [0, 0, ...size], page.rule.pillow);
  const place = [box[0] / image.height, box[1] / image.width, box[2] / image.height, box[3] / image.width];
  const seconds = (performance.now() - start) / 1000;
  postMessage({kind: "answer", id, ...answer(logits, novelty, page), attention, picture, place, seconds});
}

let turn = Promise.resolve();  // a message after the other
onmessage = ({data}) => {
  turn = turn.then(async () => {
    try {
      if (data.kind === "begin") await begin(data);
      else if (data.kind === "licences")
        postMessage({kind: "licences", text: new TextDecoder().decode(await unpack(data.block))});
      else await answerFile(data.id, data.file);
    } catch (error) {
      postMessage({kind: "error", id: data.id, message: String(error && error.message || error)});
    }
  });
};
