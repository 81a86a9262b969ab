"use strict";
const at = id => document.getElementById(id);
const make = (tag, text, parent, name) => {
  const made = document.createElement(tag);
  made.textContent = text; made.className = name || "";
  parent.append(made);
  return made;
};
// Whatever the file is called, it is sent as an image: the server says what is wrong with it.
const headers = () => ({
  "Content-Type": "application/octet-stream",
  ...(at("key").value && { Authorization: "Bearer " + at("key").value }),
});

async function answer(file) {
  const article = make("article", "", at("answers"));
  const image = make("img", "", article);
  image.src = URL.createObjectURL(file); image.alt = file.name;
  const place = make("div", "...", article);
  try {
    let response;
    for (let tries = 0; tries < 5; tries++) {
      response = await fetch("predict", { method: "POST", body: file, headers: headers() });
      if (response.status !== 503 || !response.headers.has("Retry-After")) break;
      await new Promise(done => setTimeout(done, 1000 * response.headers.get("Retry-After")));
    }
    at("keys").hidden = response.status !== 401 && !at("key").value;
    const result = await response.json();
    place.textContent = "";
    if (!response.ok) return make("p", result.error, place, "error");
    if (result.none_of_these) make("p", "none of these", place, "none");
    const list = make("ol", "", place);
    for (const guess of result.predictions) {
      const line = make("li", guess.class + " " + (100 * guess.probability).toFixed(1) + " % ", list);
      make("meter", "", line).value = guess.probability;
    }
  } catch (error) { place.textContent = "No answer from the server: " + error.message; }
}
async function answerAll(files) { for (const file of files) await answer(file); }

at("files").onchange = event => answerAll([...event.target.files]);
at("drop").ondragover = event => { event.preventDefault(); at("drop").classList.add("over"); };
at("drop").ondragleave = () => at("drop").classList.remove("over");
at("drop").ondrop = event => { event.preventDefault(); at("drop").classList.remove("over"); answerAll([...event.dataTransfer.files]); };
at("curl").textContent = "curl --data-binary @photo.jpg " + new URL("predict", location);

fetch("ready").then(response => response.json()).then(ready => {
  at("state").textContent = ready.ready ? "Ready; golden set: " + ready.golden.answers : ready.error;
});
fetch("openapi.json").then(response => response.json()).then(api => {
  at("name").textContent = document.title = api.info.title;
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, route] of Object.entries(methods)) {
      make("code", method.toUpperCase() + " " + path, make("dt", "", at("routes")));
      make("dd", route.description || route.summary, at("routes"));
    }
});
