"use strict";
// From the bytes of an image file to the pixels that the model sees, as vitkit makes them: the same turn by EXIF, the
// same geometry, and Pillow's resize to the same bits. An image is {data: Uint8Array, height, width, channels}, row by
// row, channels last. Nothing here needs a browser: it is tested in node too.

// Pillow's filters: how far they reach, in pixels of the smaller image, and their weight at a distance.
const sinc = x => x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);
const FILTERS = {
  box: [0.5, x => x > -0.5 && x <= 0.5 ? 1 : 0],
  bilinear: [1, x => Math.max(0, 1 - Math.abs(x))],
  // The two constants have single precision in Pillow.
  hamming: [1, x => Math.abs(x) >= 1 ? 0 : sinc(x) * (Math.fround(0.54) + Math.fround(0.46) * Math.cos(x * Math.PI))],
  bicubic: [2, x => {
    x = Math.abs(x);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
  }],
  lanczos: [3, x => x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0],
};
const BITS = 22;  // behind the point of a weight: sums of 8-bit levels then fit into 32 bits

// Say which source pixels the places begin..end-1 of `count` are made of when the pixels from `start` to `stop`, which
// need not be whole, become `count`; and by what weights, rounded as Pillow rounds them.
function makeAxis(filter, size, start, stop, count, begin, end) {
  const [reach, weight] = FILTERS[filter];
  start = Math.fround(start);  // Pillow holds a box in single precision
  const scale = Math.fround(Math.fround(stop) - start) / count, wide = Math.max(scale, 1), support = reach * wide;
  const inverse = 1 / wide, axis = [];
  for (let place = begin; place < end; place++) {
    const centre = start + (place + 0.5) * scale;
    const first = Math.max(0, Math.trunc(centre - support + 0.5));
    const last = Math.min(size, Math.trunc(centre + support + 0.5));
    const exact = [];
    let sum = 0;
    for (let tap = first; tap < last; tap++) {
      exact.push(weight((tap - centre + 0.5) * inverse));
      sum += exact[exact.length - 1];
    }
    const weights = Int32Array.from(exact, each => {
      const share = sum ? each / sum : each;
      return Math.trunc((share < 0 ? -0.5 : 0.5) + share * (1 << BITS));
    });
    axis.push({first, weights});
  }
  return axis;
}

const toLevel = sum => {
  const level = sum >> BITS;
  return level < 0 ? 0 : level > 255 ? 255 : level;
};

// Make the columns of an axis from those of an image, of the rows from `top` to `bottom` alone.
function resizeAcross(image, axis, top, bottom) {
  const {data, width, channels} = image, out = new Uint8Array((bottom - top) * axis.length * channels);
  let at = 0;
  for (let row = top; row < bottom; row++) {
    for (const {first, weights} of axis) {
      const from = (row * width + first) * channels;
      for (let channel = 0; channel < channels; channel++) {
        let sum = 1 << (BITS - 1);
        for (let tap = 0, place = from + channel; tap < weights.length; tap++, place += channels)
          sum = (sum + data[place] * weights[tap]) | 0;
        out[at++] = toLevel(sum);
      }
    }
  }
  return {data: out, height: bottom - top, width: axis.length, channels};
}

// Make the rows of an axis; the image's first row is the row `top` that the axis counts from.
function resizeDown(image, axis, top) {
  const {data, width, channels} = image, line = width * channels, out = new Uint8Array(axis.length * line);
  const sums = new Int32Array(line);
  axis.forEach(({first, weights}, row) => {
    sums.fill(1 << (BITS - 1));
    for (let tap = 0; tap < weights.length; tap++) {
      const weight = weights[tap], from = (first - top + tap) * line;
      for (let place = 0; place < line; place++) sums[place] += data[from + place] * weight;
    }
    for (let place = 0; place < line; place++) out[row * line + place] = toLevel(sums[place]);
  });
  return {data: out, height: axis.length, width, channels};
}

const reachOf = axis => [axis[0].first, axis[axis.length - 1].first + axis[axis.length - 1].weights.length];

// Resize the box [top, left, bottom, right] of an image to `size`, and cut [top, left, bottom, right] out of the result,
// with Pillow's filters, which average over the pixels of a larger image. `pillow` is the version, such as [12, 3].
function resample(image, box, size, filter, cut, pillow) {
  const {height, width} = image, [rows, columns] = size;
  if (filter === "nearest") return pickNearest(image, box, size, cut);
  const down = makeAxis(filter, height, box[0], box[2], rows, cut[0], cut[2]);
  const across = makeAxis(filter, width, box[1], box[3], columns, cut[1], cut[3]);
  const [top, bottom] = reachOf(down);
  // It rounds between its two passes, so that their order shows. Version 13 begins with the rows where that leaves less
  // to do, 12.2 and 12.3 with those of very tall images.
  const [major, minor] = pillow;
  const rowsFirst = major >= 13 ? height - rows > Math.max(0, 2 * (width - columns))
    : major === 12 && minor >= 2 && height > 100 * width && height > rows;
  if (rowsFirst) {
    const shorter = resizeDown(image, down, 0);
    return resizeAcross(shorter, across, 0, shorter.height);
  }
  return resizeDown(resizeAcross(image, across, top, bottom), down, top);
}

// Take the nearest pixel of the box for each of the result; Pillow adds up the steps, whose rounding shows.
function pickNearest(image, box, size, cut) {
  const {data, height, width, channels} = image, [top, left, bottom, right] = box.map(Math.fround);
  const pick = (start, stop, count, limit) => {
    const step = Math.fround(stop - start) / count, places = [];
    for (let number = 0, place = start + step * 0.5; number < count; number++, place += step)
      places.push(Math.min(Math.trunc(place), limit - 1));
    return places;
  };
  const down = pick(top, bottom, size[0], height).slice(cut[0], cut[2]);
  const across = pick(left, right, size[1], width).slice(cut[1], cut[3]);
  const out = new Uint8Array(down.length * across.length * channels);
  let at = 0;
  for (const row of down)
    for (const column of across)
      for (let channel = 0; channel < channels; channel++) out[at++] = data[(row * width + column) * channels + channel];
  return {data: out, height: down.length, width: across.length, channels};
}

// Sample without averaging, between four pixels each, in single precision: first between rows, then between columns.
function sample(image, box, size, cut) {
  const {data, height, width, channels} = image, round = Math.fround;
  const neighbours = (start, stop, count, limit, first, last) => Array.from({length: last - first}, (_, number) => {
    const step = (stop - start) / count;
    const centre = Math.min(Math.max(start + (first + number + 0.5) * step - 0.5, 0), limit - 1);
    const before = Math.trunc(centre);
    return [before, Math.min(before + 1, limit - 1), round(centre - before)];
  });
  const down = neighbours(box[0], box[2], size[0], height, cut[0], cut[2]);
  const across = neighbours(box[1], box[3], size[1], width, cut[1], cut[3]);
  const between = (first, second, weight) => round(round(round(second - first) * weight) + first);
  const out = new Uint8Array(down.length * across.length * channels), line = new Float32Array(width * channels);
  let at = 0;
  for (const [above, below, weight] of down) {
    const first = above * line.length, second = below * line.length;
    for (let place = 0; place < line.length; place++)
      line[place] = between(data[first + place], data[second + place], weight);
    for (const [before, after, share] of across)
      for (let channel = 0; channel < channels; channel++)
        out[at++] = round(between(line[before * channels + channel], line[after * channels + channel], share) + 0.5);
  }
  return {data: out, height: down.length, width: across.length, channels};
}

function cutOut(image, [top, left, bottom, right]) {
  const {data, width, channels} = image, line = (right - left) * channels;
  const out = new Uint8Array((bottom - top) * line);
  for (let row = top; row < bottom; row++) {
    const from = (row * width + left) * channels;
    out.set(data.subarray(from, from + line), (row - top) * line);
  }
  return {data: out, height: bottom - top, width: right - left, channels};
}

function resizeBox(image, box, size, rule, cut = [0, 0, ...size]) {
  const {height, width} = image, [top, left, bottom, right] = box;
  const whole = top === 0 && left === 0 && bottom === height && right === width;
  if (whole && height === size[0] && width === size[1]) return cutOut(image, cut);
  // Enlarging, both ways are the same.
  if (rule.antialias || (bottom - top <= size[0] && right - left <= size[1]))
    return resample(image, box, size, rule.interpolation, cut, rule.pillow);
  return sample(image, box, size, cut);
}

// Round a half to the even number, as Python does.
const roundHalf = x => Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x);

// Compute the size [rows, columns] that an image is resized to before the input is cut out of it.
function resizedSize(height, width, rule) {
  const [rows, columns] = rule.image_size.map(side => {
    const larger = side / rule.crop_fraction;
    return rule.resize === "crop" ? roundHalf(larger) : Math.max(Math.floor(larger), 1);
  });
  if (rule.resize === "none") return [height, width];
  if (rule.resize === "squash") return [rows, columns];
  if (rule.resize === "crop") {
    const scale = Math.max(rows / height, columns / width);
    return [roundHalf(height * scale), roundHalf(width * scale)];
  }
  if (rule.resize === "shortest" && rows === columns) {
    const long = Math.trunc(rows * Math.max(height, width) / Math.min(height, width));
    return width <= height ? [long, rows] : [rows, long];
  }
  const ratios = [height / rows, width / columns];
  const ratio = rule.resize === "longest" ? Math.max(...ratios) : Math.min(...ratios);
  return [Math.max(roundHalf(height / ratio), 1), Math.max(roundHalf(width / ratio), 1)];
}

const LARGEST_WHOLE = 2 ** 23;  // pixels up to which an image is resized whole and then cut

// Bring an image to the model's size. Returns the pixels, and the box of the image [top, left, bottom, right] that they
// show, in pixels of the image; it reaches over the edges where there is a border.
function preprocess(image, rule) {
  const {height, width, channels} = image, [rows, columns] = rule.image_size, whole = [0, 0, height, width];
  if (rule.resize === "stretch") return {pixels: resizeBox(image, whole, rule.image_size, rule), box: whole};
  const resized = resizedSize(height, width, rule);
  const offset = spare => {
    if (rule.resize === "crop" || rule.crop_offset === "down") return Math.floor(spare / 2);
    return spare >= 0 ? roundHalf(spare / 2) : -Math.floor(-spare / 2);
  };
  const top = offset(resized[0] - rows), left = offset(resized[1] - columns);
  const cut = [Math.max(top, 0), Math.max(left, 0), Math.min(top + rows, resized[0]), Math.min(left + columns, resized[1])];
  const down = height / resized[0], across = width / resized[1];
  let part;
  if (rule.resize !== "crop" && resized[0] * resized[1] <= LARGEST_WHOLE)
    part = resizeBox(image, whole, resized, rule, cut);
  else {
    // The cut is mapped back: an image of 1 x 10000 pixels would become an enormous one.
    const box = [cut[0] * down, cut[1] * across, Math.min(cut[2] * down, height), Math.min(cut[3] * across, width)];
    part = resizeBox(image, box, [cut[2] - cut[0], cut[3] - cut[1]], rule);
  }
  const box = [top * down, left * across, (top + rows) * down, (left + columns) * across];
  if (part.height === rows && part.width === columns) return {pixels: part, box};
  const data = new Uint8Array(rows * columns * channels), colour = channels === 1 ? [lumaOf(rule.border, 0)] : rule.border;
  for (let place = 0; place < data.length; place++) data[place] = colour[place % channels];
  for (let row = 0; row < part.height; row++) {
    const line = part.width * channels, to = ((cut[0] - top + row) * columns + cut[1] - left) * channels;
    data.set(part.data.subarray(row * line, (row + 1) * line), to);
  }
  return {pixels: {data, height: rows, width: columns, channels}, box};
}

// Turn an image upright that is stored in one of the eight EXIF orientations.
function turnUpright(image, orientation) {
  if (!(orientation >= 2 && orientation <= 8)) return image;
  const {data, height, width, channels} = image, swapped = orientation >= 5;
  const rows = swapped ? width : height, columns = swapped ? height : width, out = new Uint8Array(data.length);
  const fromBottom = [3, 4, 6, 7].includes(orientation), fromRight = [2, 3, 7, 8].includes(orientation);
  let at = 0;
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const [y, x] = swapped ? [column, row] : [row, column];
      const from = (fromBottom ? height - 1 - y : y) * width + (fromRight ? width - 1 - x : x);
      for (let channel = 0; channel < channels; channel++) out[at++] = data[from * channels + channel];
    }
  return {data: out, height: rows, width: columns, channels};
}

const textAt = (bytes, place, length) => String.fromCharCode(...bytes.subarray(place, place + length));
const ORIENTATION = 274;

// Read the orientation of a block of EXIF from `start` on, and overwrite the tag, so that no browser turns the image by
// a rule of its own.
function takeOrientation(bytes, start, end) {
  if (textAt(bytes, start, 6) === "Exif\0\0") start += 6;
  const order = textAt(bytes, start, 2), little = order === "II", view = new DataView(bytes.buffer, bytes.byteOffset);
  let stored = 0;
  try {
    if (!little && order !== "MM") return 1;
    const directory = start + view.getUint32(start + 4, little), entries = view.getUint16(directory, little);
    for (let place = directory + 2; place < directory + 2 + 12 * entries && place + 10 <= end; place += 12) {
      if (view.getUint16(place, little) !== ORIENTATION) continue;
      // Kind 3: a 16-bit number, stored in the entry itself.
      const fits = view.getUint16(place + 2, little) === 3 && view.getUint32(place + 4, little) === 1;
      if (fits && !stored) stored = view.getUint16(place + 8, little);
      view.setUint16(place, 0, little);
    }
  } catch (error) {  // cut short: as if there were none
    if (!(error instanceof RangeError)) throw error;
  }
  return stored >= 1 && stored <= 8 ? stored : 1;
}

// Find the orientation of an image file, from 1 to 8, and make the file one without any.
function readOrientation(bytes) {
  bytes = bytes.slice();
  const view = new DataView(bytes.buffer);
  let orientation = 1;
  if (bytes[0] === 0xff && bytes[1] === 0xd8) {  // JPEG: segments up to the first scan
    for (let place = 2; place + 4 <= bytes.length && bytes[place] === 0xff;) {
      const marker = bytes[place + 1];
      if (marker === 0xff) { place += 1; continue; }  // filling
      if (marker === 0xda) break;
      const length = view.getUint16(place + 2), end = place + 2 + length;
      if (marker === 0xe1 && textAt(bytes, place + 4, 6) === "Exif\0\0") {
        const own = takeOrientation(bytes, place + 4, Math.min(end, bytes.length));
        if (orientation === 1) orientation = own;
      }
      place = end;
    }
  } else if (textAt(bytes, 1, 3) === "PNG") {  // chunks; a block behind the pixels does not count, as in Pillow
    let counts = true;
    for (let place = 8; place + 12 <= bytes.length;) {
      const length = view.getUint32(place), kind = textAt(bytes, place + 4, 4);
      counts = counts && kind !== "IDAT";
      if (kind === "eXIf") {
        const own = takeOrientation(bytes, place + 8, Math.min(place + 8 + length, bytes.length));
        if (counts) orientation = own;
      }
      place += 12 + length;
    }
  } else if (textAt(bytes, 0, 4) === "RIFF" && textAt(bytes, 8, 4) === "WEBP") {
    for (let place = 12; place + 8 <= bytes.length;) {
      const length = view.getUint32(place + 4, true);
      if (textAt(bytes, place, 4) === "EXIF")
        orientation = takeOrientation(bytes, place + 8, Math.min(place + 8 + length, bytes.length));
      place += 8 + length + length % 2;
    }
  }
  return {orientation, bytes};
}

// Give the luma of a pixel, ITU-R 601-2, as Pillow rounds it.
const lumaOf = (data, from) => (data[from] * 19595 + data[from + 1] * 38470 + data[from + 2] * 7471 + 0x8000) >> 16;

function toGrey({data, height, width}) {
  const out = new Uint8Array(height * width);
  for (let place = 0; place < out.length; place++) out[place] = lumaOf(data, 3 * place);
  return {data: out, height, width, channels: 1};
}
