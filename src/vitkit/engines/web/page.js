"use strict";
// What is seen: photos come in, answers go out. The worker computes.

const element = id => document.getElementById(id);
const page = JSON.parse(element("page").textContent);
const state = element("state"), rows = new Map();
const SHOWN = 5;  // classes of an answer
const percent = share => `${(100 * share).toFixed(1)} %`;
let number = 0;

const source = URL.createObjectURL(new Blob([element("worker").textContent], {type: "text/javascript"}));
const worker = new Worker(source);

function say(kind, text) {
  state.className = kind;
  state.textContent = text;
}

// Hand over a block of the page, whose text then takes no more memory here.
function takeBlock(name) {
  const block = element(`block-${name}`), text = block.textContent;
  block.remove();
  return text;
}

function addPhoto(file, name, before) {
  const item = element("row").content.firstElementChild.cloneNode(true), id = number++;
  item.querySelector(".name").textContent = name;
  item.setAttribute("aria-busy", "true");
  element("answers").insertBefore(item, before);
  rows.set(id, item);
  worker.postMessage({kind: "answer", id, file});
}

// The newest photos come first, each choice of several in its own order.
function addPhotos(files, name) {
  const before = element("answers").firstChild;
  for (const file of files) addPhoto(file, name || file.name, before);
}

function paint(canvas, {data, height, width, channels}) {
  Object.assign(canvas, {width, height});
  const context = canvas.getContext("2d"), image = context.createImageData(width, height);
  for (let from = 0, to = 0; from < data.length; from += channels, to += 4)
    image.data.set([data[from], data[from + 1], data[from + 2], 255], to);
  context.putImageData(image, 0, 0);
}

const BRIGHT = 0.95;  // share of the patches that are darkened: a few of them often have nearly all attention

// Darken what the model looks at little: where it looks most the photo stays as it is.
function paintAttention(canvas, attention, [top, left, bottom, right], {height, width}) {
  const [count, across] = page.grid, most = [...attention].sort((a, b) => a - b)[Math.floor(BRIGHT * attention.length)];
  const map = Object.assign(document.createElement("canvas"), {width: across, height: count});
  const image = map.getContext("2d").createImageData(across, count);
  attention.forEach((share, place) => { image.data[4 * place + 3] = 200 * (1 - Math.min(1, share / most)); });
  map.getContext("2d").putImageData(image, 0, 0);
  Object.assign(canvas, {width, height});
  const context = canvas.getContext("2d");
  context.fillStyle = "rgb(0 0 0 / 0.85)";  // what the model does not see
  context.fillRect(0, 0, width, height);
  context.clearRect(left * width, top * height, (right - left) * width, (bottom - top) * height);
  context.imageSmoothingQuality = "high";
  context.drawImage(map, left * width, top * height, (right - left) * width, (bottom - top) * height);
}

function describe({guesses, refused, sure}) {
  if (refused) return ["none of these", ""];
  if (page.several) {
    const there = guesses.filter(guess => guess.probability >= 0.5);
    return [there.map(guess => guess.name).join(", ") || "none of the labels", ""];
  }
  if (page.levels) return sure ? [sure.name, percent(sure.probability)] : ["not sure", ""];
  return [guesses[0].name, percent(guesses[0].probability)];
}

function showAnswer(data) {
  const item = rows.get(data.id), best = item.querySelector(".best"), [name, sureness] = describe(data);
  item.removeAttribute("aria-busy");
  item.className = data.refused ? "refused" : "";
  best.replaceChildren(Object.assign(document.createElement("b"), {textContent: name}), sureness && ` ${sureness}`);
  if (data.refused) best.append(` · the nearest are below, and worth little`);
  for (const {name, probability} of data.guesses.slice(0, page.several ? data.guesses.length : SHOWN)) {
    const guess = document.createElement("li");
    guess.style.setProperty("--share", probability);
    for (const text of [name, percent(probability)]) guess.append(Object.assign(document.createElement("span"), {textContent: text}));
    item.querySelector(".guesses").append(guess);
  }
  paint(item.querySelector(".photo"), data.picture);
  // For who measures the page from outside.
  item.result = {guesses: data.guesses, refused: data.refused, typicality: data.typicality, sure: data.sure, seconds: data.seconds};
  if (!data.attention) return;
  const look = item.querySelector(".look"), over = item.querySelector(".attention");
  paintAttention(over, data.attention, data.place, data.picture);
  look.hidden = false;
  look.addEventListener("click", () => {
    over.hidden = !over.hidden;
    look.setAttribute("aria-pressed", String(!over.hidden));
  });
}

function showLevels({levels, count, provider, refused}) {
  const body = element("levels").tBodies[0], by = provider === "webgpu" ? "WebGPU" : "WebAssembly";
  const instead = refused === null ? "" : `. WebGPU is not used: ${refused}`;
  element("levels").caption.textContent = `The golden set, computed by ${by}, compared with the machine that exported the model${instead}`;
  for (const {name, same, difference, allowed} of levels) {
    const digits = number => number && Math.abs(number) < 1e-3 ? number.toExponential(1) : String(Number(number.toPrecision(3)));
    const shown = number => Number.isFinite(number) ? digits(number) : "not comparable";
    const row = body.insertRow();
    for (const text of [name, `${same} of ${count}`, shown(difference), shown(allowed)]) row.insertCell().textContent = text;
  }
  element("levels").hidden = false;
  const wrong = levels.filter(level => level.same < count);
  if (!wrong.length) return say("good", `${count} of ${count} as when exported`);
  const [first] = wrong, same = Math.min(...wrong.map(level => level.same));
  say("bad", `Only ${same} of ${count} as when exported: the ${first.name} differ here. ` +
    "Do not rely on the answers of this page in this browser: use another one, or the page as it was exported.");
}

worker.onmessage = ({data}) => {
  if (data.kind === "checked") say("busy", `Checking the golden set: ${data.done} of ${data.count} …`);
  else if (data.kind === "ready") showLevels(data);
  else if (data.kind === "answer") showAnswer(data);
  else if (data.kind === "licences") element("licences").querySelector("pre").textContent = data.text;
  else if (data.id === undefined) say("bad", `The model cannot be computed in this browser: ${data.message}. An up-to-date Firefox, Chrome, Edge or Safari can.`);
  else {
    const item = rows.get(data.id);
    item.removeAttribute("aria-busy");
    item.className = "failed";
    item.querySelector(".best").textContent = `This file cannot be read as a photo: ${data.message}`;
  }
};
worker.onerror = event => say("bad", `The model cannot be computed in this browser: ${event.message || "no worker can be started"}.`);

const named = [...document.querySelectorAll("[id^=block-]")].map(block => block.id.slice("block-".length));
const blocks = Object.fromEntries(named.filter(name => name !== "licences").map(name => [name, takeBlock(name)]));
worker.postMessage({kind: "begin", page, ...blocks});

// The ways in: files, the clipboard, dropping, the camera.
for (const id of ["files", "phone"])
  element(id).addEventListener("change", ({target}) => { addPhotos(target.files); target.value = ""; });
element("choose").addEventListener("click", () => element("files").click());
addEventListener("paste", ({clipboardData}) => addPhotos(clipboardData.files));
addEventListener("dragover", event => { event.preventDefault(); element("drop").classList.add("over"); });
addEventListener("dragleave", ({relatedTarget}) => { if (!relatedTarget) element("drop").classList.remove("over"); });
addEventListener("drop", event => {
  event.preventDefault();
  element("drop").classList.remove("over");
  addPhotos(event.dataTransfer.files);
});

const viewfinder = element("viewfinder"), video = element("video");
element("camera").addEventListener("click", async () => {
  // A phone's own camera program takes better photos than a video does.
  if (matchMedia("(pointer: coarse)").matches || !navigator.mediaDevices) return element("phone").click();
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({video: {width: 1920, facingMode: "environment"}});
    viewfinder.showModal();
  } catch {  // no camera, or not permitted
    element("phone").click();
  }
});
element("shoot").addEventListener("click", () => {
  const canvas = Object.assign(document.createElement("canvas"), {width: video.videoWidth, height: video.videoHeight});
  canvas.getContext("2d").drawImage(video, 0, 0);
  canvas.toBlob(file => { if (file) addPhotos([file], `photo of ${new Date().toLocaleTimeString()}`); }, "image/png");
  viewfinder.close();
});
element("close").addEventListener("click", () => viewfinder.close());
viewfinder.addEventListener("close", () => video.srcObject?.getTracks().forEach(track => track.stop()));

element("licences").addEventListener("toggle", () => {
  if (element("block-licences")) worker.postMessage({kind: "licences", block: takeBlock("licences")});
});
